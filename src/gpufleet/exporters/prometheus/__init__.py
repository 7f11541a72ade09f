"""Read GPU metrics from a Prometheus-compatible server."""
