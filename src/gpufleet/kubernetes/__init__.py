"""Client, reflectors, leader election, events and CRD types: the only code that talks to a Kubernetes API."""

from gpufleet.kubernetes.cache import Cache, CacheChange
from gpufleet.kubernetes.client.client import ALL, KubeClient, Page, Selection
from gpufleet.kubernetes.client.connection import Connection, load_connection
from gpufleet.kubernetes.client.discovery import Discovery
from gpufleet.kubernetes.client.resources import (
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
from gpufleet.kubernetes.client.timing import Backoff, Timing
from gpufleet.kubernetes.client.transport import Retries
from gpufleet.kubernetes.events import EventRecorder
from gpufleet.kubernetes.leader_election import ElectionTimings, LeaderElection
from gpufleet.kubernetes.reflector import Reflector, ReflectorState, WatchTimings

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
    "CacheChange",
    "Connection",
    "Discovery",
    "ElectionTimings",
    "EventRecorder",
    "KubeClient",
    "LeaderElection",
    "Page",
    "Reflector",
    "ReflectorState",
    "Resource",
    "Retries",
    "Selection",
    "Timing",
    "WatchTimings",
    "load_connection",
]
