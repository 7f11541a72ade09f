"""Decide which node and which GPUs serve a request, or why none do.

`Inventory` holds nodes and allocations and answers `place(request)` with `Fits` or `Refused`;
`place_gang` places several requests together. Nothing here does I/O. docs/placement.md
describes the orders and the score.
"""

from gpufleet.placement.allocation import Allocation
from gpufleet.placement.demand import PRIOR, Demand, DemandMemory, Kind
from gpufleet.placement.earliest import Earliest, earliest
from gpufleet.placement.fragmentation import Fragmentation, fragmentation
from gpufleet.placement.gang import GangFits, GangRefused, place_gang
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.node import CandidateGpu, CandidateMigInstance, CandidateNode
from gpufleet.placement.reasons import Reason
from gpufleet.placement.remedies import Remedy, remedies
from gpufleet.placement.request import Exclusivity, Policy, Request, Topology
from gpufleet.placement.verdict import Fits, Refused, Verdict
from gpufleet.placement.victims import Eviction, Victim, evict_from, evictions

__all__ = [
    "PRIOR",
    "Allocation",
    "CandidateGpu",
    "CandidateMigInstance",
    "CandidateNode",
    "Demand",
    "DemandMemory",
    "Earliest",
    "Eviction",
    "Exclusivity",
    "Fits",
    "Fragmentation",
    "GangFits",
    "GangRefused",
    "Inventory",
    "Kind",
    "Policy",
    "Reason",
    "Refused",
    "Remedy",
    "Request",
    "Topology",
    "Verdict",
    "Victim",
    "earliest",
    "evict_from",
    "evictions",
    "fragmentation",
    "place_gang",
    "remedies",
]
