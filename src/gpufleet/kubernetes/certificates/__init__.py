"""Certificates of our own, kept in a Secret and renewed."""
