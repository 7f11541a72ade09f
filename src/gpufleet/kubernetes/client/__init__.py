"""A small asynchronous client for the Kubernetes API."""
