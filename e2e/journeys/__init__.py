"""Journeys through the whole product, as users and operators make them; each prints what was done and seen."""
