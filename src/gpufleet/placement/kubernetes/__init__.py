"""Placement's picture of a Kubernetes cluster, made from the objects of the API and nothing else.

`Ledger` takes nodes, GpuNodeStatus, leases, claims and pods as they come and keeps a
`Cluster` that agrees with them. Scheduler, server and command line share it.
"""

from gpufleet.placement.kubernetes.claims import request_of, sensible_request
from gpufleet.placement.kubernetes.explain import Explanation, explain
from gpufleet.placement.kubernetes.leases import GpuLease, Holder, lease_name, read_lease
from gpufleet.placement.kubernetes.ledger import Hold, Ledger

__all__ = [
    "Explanation",
    "GpuLease",
    "Hold",
    "Holder",
    "Ledger",
    "explain",
    "lease_name",
    "read_lease",
    "request_of",
    "sensible_request",
]
