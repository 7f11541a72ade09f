"""Hourly statistics: stored, paged, and summed for reports."""
