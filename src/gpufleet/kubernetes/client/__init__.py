"""A thin asynchronous client for the Kubernetes API."""
