"""An embedded Kubernetes-shaped API for the demo and for tests."""
