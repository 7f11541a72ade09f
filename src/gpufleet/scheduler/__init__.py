"""Hands out GPUs: kube-scheduler's extender and the stand-alone loop, over leases and claims."""
