"""A real Kubernetes control plane for the end-to-end tests; see docs/e2e.md."""

from e2e.cluster.cluster import Cluster
from e2e.cluster.component import Component
from e2e.cluster.errors import CommandFailed, ComponentFailed, RequestFailed, Unavailable
from e2e.cluster.identity import Identity
from e2e.cluster.proxy import Proxy

__all__ = [
    "Cluster",
    "CommandFailed",
    "Component",
    "ComponentFailed",
    "Identity",
    "Proxy",
    "RequestFailed",
    "Unavailable",
]
