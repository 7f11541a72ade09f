"""The scheduler's view of the cluster, built only from Kubernetes objects.

`Ledger` takes nodes, GpuNodeStatus, leases, claims and pods from the watches and keeps an
inventory that agrees with them. Scheduler, server and command line share it.
"""

from gpufleet.scheduler.state.claim_requests import request_of, valid_request
from gpufleet.scheduler.state.holders import Hold
from gpufleet.scheduler.state.ledger import Ledger

__all__ = ["Hold", "Ledger", "request_of", "valid_request"]
