"""Admission: environment of pods with a claim, checks of claims."""
