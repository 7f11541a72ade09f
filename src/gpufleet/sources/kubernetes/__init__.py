"""Fills a fleet from a Kubernetes API: nodes, pods, their owners, claims, node statuses, leases."""

from gpufleet.sources.kubernetes.source import KubernetesSource

__all__ = ["KubernetesSource"]
