"""Frozen data types that all packages share."""
