"""The scheduler's view of the cluster, kept from the objects of the API and nothing else.

`Ledger` takes nodes, GpuNodeStatus, leases, claims and pods as they come and keeps an
inventory that agrees with them. Scheduler, server and command line share it.
"""

from gpufleet.scheduler.state.claim_requests import request_of, sensible_request
from gpufleet.scheduler.state.ledger import Hold, Ledger

__all__ = ["Hold", "Ledger", "request_of", "sensible_request"]
