"""Metric sources: Prometheus with any known exporter, or readings embedded in the store."""
