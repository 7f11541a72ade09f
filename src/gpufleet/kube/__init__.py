"""The only code that speaks to a Kubernetes API: client, reflector, leader election, discovery, events."""

from gpufleet.kube.cache import Cache, Change
from gpufleet.kube.client import ALL, KubeClient, Page, Selection
from gpufleet.kube.connection import Connection, load_connection
from gpufleet.kube.discovery import Discovery
from gpufleet.kube.events import EventRecorder
from gpufleet.kube.leader import LeaderElection, Terms
from gpufleet.kube.reflector import Pace, Reflector, ReflectorState
from gpufleet.kube.resource import (
    EVENTS,
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    Resource,
)
from gpufleet.kube.timing import Backoff, Timing
from gpufleet.kube.transport import Retries

__all__ = [
    "ALL",
    "EVENTS",
    "GPU_CLAIMS",
    "GPU_NODE_STATUSES",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "POD_GROUPS",
    "Backoff",
    "Cache",
    "Change",
    "Connection",
    "Discovery",
    "EventRecorder",
    "KubeClient",
    "LeaderElection",
    "Pace",
    "Page",
    "Reflector",
    "ReflectorState",
    "Resource",
    "Retries",
    "Selection",
    "Terms",
    "Timing",
    "load_connection",
]
