"""Readings: Prometheus or the embedded source, in whatever vocabulary a cluster's exporters speak."""
