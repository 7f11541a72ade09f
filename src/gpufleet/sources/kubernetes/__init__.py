"""Fill the fleet from a Kubernetes API: nodes, pods, their owners, claims, node statuses, leases."""

from gpufleet.sources.kubernetes.source import KubernetesSource, kind_of

__all__ = ["KubernetesSource", "kind_of"]
