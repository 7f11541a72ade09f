"""Allocate GPUs to pods with GpuClaims: kube-scheduler's extender and the stand-alone loop."""
