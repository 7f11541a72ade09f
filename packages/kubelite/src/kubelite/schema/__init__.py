"""Structural schemas and JSONPath."""
