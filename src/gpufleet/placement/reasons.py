"""The reasons for which a node can't take a request.

kube-scheduler groups equal reasons and prints the number of nodes in front. So each reason
reads well after a number and contains nothing specific to one node. Reasons are checked in
this order, and the first that applies is reported.
"""

from collections.abc import Mapping
from enum import IntEnum

from gpufleet.placement.request import WHOLE, Exclusivity, Request


class Reason(IntEnum):
    """All reasons. 0 means that the node fits."""

    NONE = 0
    UNKNOWN_NODE = 1
    SELECTOR = 2
    CORDONED = 3
    NOT_READY = 4
    TOO_FEW_GPUS = 5
    MODEL = 6
    UNHEALTHY = 7
    BUSY = 8
    ISLAND = 9
    CPU = 10
    MEMORY = 11
    POD_LABELS = 12
    TAINTED = 13
    PODS = 14
    OTHER_RESOURCE = 15
    OTHER = 16
    RESERVED = 17


UNRESOLVABLE = frozenset(
    {
        Reason.UNKNOWN_NODE,
        Reason.SELECTOR,
        Reason.CORDONED,
        Reason.NOT_READY,
        Reason.TOO_FEW_GPUS,
        Reason.MODEL,
        Reason.UNHEALTHY,
        Reason.POD_LABELS,
        Reason.TAINTED,
    }
)
"""Reasons that preempting pods can't remove."""

_VERBS = {"past": ("had", "had", "lacked", "lacked"), "present": ("has", "have", "lacks", "lack")}


def phrase(reason: Reason, request: Request, count: int = 0) -> str:
    """Return the reason without a subject: in the past tense, or in the present for `count` nodes."""
    one, many, lack_one, lack_many = _VERBS["present" if count else "past"]
    have, lack = (one, lack_one) if count == 1 else (many, lack_many)
    match reason:
        case Reason.UNKNOWN_NODE:
            return f"{have} no GPU report"
        case Reason.SELECTOR:
            return f"{have} other labels than the claim's selector"
        case Reason.CORDONED:
            return f"{have} been cordoned"
        case Reason.NOT_READY:
            return f"{'were' if not count else 'is' if count == 1 else 'are'} not ready"
        case Reason.TOO_FEW_GPUS:
            return f"{have} {_too_few(request, '')}"
        case Reason.MODEL:
            return f"{have} {_too_few(request, '')} of model {' or '.join(sorted(request.models))}"
        case Reason.UNHEALTHY:
            return f"{have} {_too_few(request, 'healthy ')}"
        case Reason.BUSY:
            if request.exclusivity is Exclusivity.SHARED:
                return f"{have} {_too_few(request, '')} with a free share of {request.share_milli / WHOLE:g}"
            return f"{have} {_too_few(request, 'free ')}"
        case Reason.ISLAND:
            speed = f" at {request.min_bandwidth_gbps} GB/s" if request.min_bandwidth_gbps else ""
            return f"{lack} an island with {request.count} free{speed}"
        case Reason.CPU:
            return f"{have} too little free CPU"
        case Reason.MEMORY:
            return f"{have} too little free memory"
        case Reason.POD_LABELS:
            return f"{have} other labels than the pod's node selector or affinity"
        case Reason.TAINTED:
            return f"{have} a taint that the pod does not tolerate"
        case Reason.PODS:
            return f"{have} no room for another pod"
        case Reason.OTHER_RESOURCE:
            return f"{have} too little of another resource that the pod requests"
        case Reason.OTHER:
            return f"{'were' if not count else 'is' if count == 1 else 'are'} excluded by kube-scheduler"
        case Reason.RESERVED:
            return f"{have} free GPUs that are reserved for pods ahead in the queue"
        case _:
            return "fit"


def for_node(reason: Reason, request: Request) -> str:
    """Return the reason as kube-scheduler prints it after a number of nodes."""
    return f"node(s) {phrase(reason, request)}"


def summary(counts: Mapping[Reason, int], request: Request, total: int) -> str:
    """Return one line for all nodes, the most frequent reason first."""
    if not total:
        return "0/0 nodes fit: no node is known"
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    reasons = ", ".join(f"{count} {phrase(reason, request, count)}" for reason, count in ranked if count)
    return f"0/{total} nodes fit: {reasons}"


def _too_few(request: Request, state: str) -> str:
    if request.exclusivity is Exclusivity.MIG:
        of_profile = f" of {request.mig_profile}" if request.mig_profile else ""
        return f"fewer than {request.count} {state}MIG instances{of_profile}"
    if request.count == 1:
        return f"no {state}GPU"
    return f"fewer than {request.count} {state}GPUs"
