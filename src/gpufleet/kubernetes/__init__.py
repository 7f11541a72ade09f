"""Client, reflectors, leader election, events and CRD types: the only code that talks to a Kubernetes API."""

from gpufleet.kubernetes.cache import CacheChange
from gpufleet.kubernetes.client.client import KubeClient, Selection
from gpufleet.kubernetes.client.connection import Connection, load_connection
from gpufleet.kubernetes.client.discovery import Discovery
from gpufleet.kubernetes.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    ENDPOINT_SLICES,
    EVENTS,
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    GPU_QUEUES,
    GPU_REPAIRS,
    JOBS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NATIVE_POD_GROUPS,
    NODES,
    OLDER_DEVICE_TAINT_RULES,
    OLDER_LOCAL_QUEUES,
    OLDER_NATIVE_POD_GROUPS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from gpufleet.kubernetes.client.timing import Backoff, Timing
from gpufleet.kubernetes.client.transport import Retries
from gpufleet.kubernetes.events import EventRecorder
from gpufleet.kubernetes.leader_election import ElectionTimings, LeaderElection
from gpufleet.kubernetes.reflector import Reflector, WatchTimings

__all__ = [
    "DEVICE_CLASSES",
    "DEVICE_TAINT_RULES",
    "ENDPOINT_SLICES",
    "EVENTS",
    "GPU_CLAIMS",
    "GPU_NODE_STATUSES",
    "GPU_QUEUES",
    "GPU_REPAIRS",
    "JOBS",
    "LEASES",
    "LOCAL_QUEUES",
    "NAMESPACES",
    "NATIVE_POD_GROUPS",
    "NODES",
    "OLDER_DEVICE_TAINT_RULES",
    "OLDER_LOCAL_QUEUES",
    "OLDER_NATIVE_POD_GROUPS",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "POD_GROUPS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
    "Backoff",
    "CacheChange",
    "Connection",
    "Discovery",
    "ElectionTimings",
    "EventRecorder",
    "KubeClient",
    "LeaderElection",
    "Reflector",
    "Resource",
    "Retries",
    "Selection",
    "Timing",
    "WatchTimings",
    "load_connection",
]
