"""Allocation and capacity periods, followed from the live state."""
