"""Limits on what one caller may send and hold open."""
