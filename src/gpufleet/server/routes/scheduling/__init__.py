"""Routes about claims, queues and repairs of a Kubernetes cluster."""
