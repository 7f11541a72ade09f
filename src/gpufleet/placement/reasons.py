"""Why a node can't take a request: a small fixed vocabulary.

kube-scheduler groups equal reasons and prints their number before them, so each reads well
behind a number and says nothing that differs from node to node. The order is the order of
the checks: a node is refused for the first that holds.
"""

from collections.abc import Mapping
from enum import IntEnum

from gpufleet.placement.request import WHOLE, Exclusivity, Request


class Reason(IntEnum):
    """The vocabulary; 0 is no reason at all."""

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


UNRESOLVABLE = frozenset(
    {
        Reason.UNKNOWN_NODE,
        Reason.SELECTOR,
        Reason.CORDONED,
        Reason.NOT_READY,
        Reason.TOO_FEW_GPUS,
        Reason.MODEL,
        Reason.UNHEALTHY,
    }
)
"""What no preemption of pods can change."""

_VERBS = {"past": ("had", "had", "lacked", "lacked"), "present": ("has", "have", "lacks", "lack")}


def phrase(reason: Reason, request: Request, count: int = 0) -> str:
    """The reason without a subject: in the past tense, or about `count` nodes in the present."""
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
            return f"{have} {_wanted(request, '')}"
        case Reason.MODEL:
            return f"{have} {_wanted(request, '')} of model {' or '.join(sorted(request.models))}"
        case Reason.UNHEALTHY:
            return f"{have} {_wanted(request, 'healthy ')}"
        case Reason.BUSY:
            if request.exclusivity is Exclusivity.SHARED:
                return f"{have} {_wanted(request, '')} with a free share of {request.share_milli / WHOLE:g}"
            return f"{have} {_wanted(request, 'free ')}"
        case Reason.ISLAND:
            speed = f" at {request.min_bandwidth_gbps} GB/s" if request.min_bandwidth_gbps else ""
            return f"{lack} an island with {request.count} free{speed}"
        case Reason.CPU:
            return f"{have} too little free CPU"
        case Reason.MEMORY:
            return f"{have} too little free memory"
        case _:
            return "fit"


def for_node(reason: Reason, request: Request) -> str:
    """The reason as kube-scheduler prints it behind a number of nodes."""
    return f"node(s) {phrase(reason, request)}"


def summary(counts: Mapping[Reason, int], request: Request, total: int) -> str:
    """One line over all nodes, the commonest reason first."""
    if not total:
        return "0/0 nodes fit: no node is known"
    parts = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    told = ", ".join(f"{count} {phrase(reason, request, count)}" for reason, count in parts if count)
    return f"0/{total} nodes fit: {told}"


def _wanted(request: Request, state: str) -> str:
    if request.exclusivity is Exclusivity.MIG:
        return f"fewer than {request.count} {state}MIG instances of {request.mig_profile}"
    if request.count == 1:
        return f"no {state}GPU"
    return f"fewer than {request.count} {state}GPUs"
