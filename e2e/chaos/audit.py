"""Find GPUs that were held twice, from the API server's audit log, which is independent of gpufleet.

A pod holds the GPUs of its Binding from the Binding until it is deleted or its status is terminal. Two pods held a
GPU at the same time if the later Binding completed before the request that ended the earlier pod was received. A
killed API server may lose its last log lines, so a pod that is gone without a logged end counts as an unrecorded
end, not as a holder.

Leases are checked too: no state of a lease may hold more than one GPU, and each delete must have preconditions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from gpufleet.kubernetes.annotations import ALLOCATED
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease
from gpufleet.placement.request import WHOLE

Event = dict[str, Any]


@dataclass
class Holding:
    """A pod that was bound with GPUs."""

    uid: str
    name: str
    gpus: list[str]
    bound: datetime
    ended: datetime | None = None


@dataclass
class Verdict:
    """Counts and faults found in the log."""

    bindings: int = 0
    lease_writes: int = 0
    lease_deletes: int = 0
    unrecorded_ends: int = 0
    faults: list[str] = field(default_factory=list)


def check_log(events: Iterable[Event], shares: dict[str, int], alive: set[str]) -> Verdict:
    """Check the log. `shares` are thousandths of a GPU by pod UID, `alive` the UIDs of existing pods."""
    verdict, holdings, by_name = Verdict(), dict[str, Holding](), dict[tuple[str, str], str]()
    for event in events:
        if event.get("stage") != "ResponseComplete" or not _succeeded(event):
            continue
        about = event.get("objectRef", {})
        match about.get("resource"), about.get("subresource"), event["verb"]:
            case "pods", "binding", "create":
                if (holding := _holding(event)) is not None:
                    verdict.bindings += 1
                    holdings[holding.uid] = holding
                    by_name[about["namespace"], about["name"]] = holding.uid
            case "pods", "status", "patch" | "update":
                _record_end(holdings, event)
            case "pods", None, "delete":
                uid = _deleted(event) or by_name.get((about["namespace"], about["name"]), "")
                if uid in holdings and holdings[uid].ended is None:
                    holdings[uid].ended = _moment(event["requestReceivedTimestamp"])
            case "leases", None, "create" | "update" | "patch" if about["name"].startswith("gpu-"):
                verdict.lease_writes += 1
                verdict.faults += _overallocated(event)
            case "leases", None, "delete" if about["name"].startswith("gpu-"):
                verdict.lease_deletes += 1
                verdict.faults += _without_preconditions(event)
    verdict.unrecorded_ends = sum(each.ended is None and each.uid not in alive for each in holdings.values())
    verdict.faults += held_twice(holdings.values(), shares, alive)
    return verdict


def held_twice(holdings: Iterable[Holding], shares: dict[str, int], alive: set[str]) -> Iterator[str]:
    """Yield GPUs whose holders at one time add up to more than one GPU."""
    by_gpu: dict[str, list[Holding]] = {}
    for holding in sorted(holdings, key=lambda holding: holding.bound):
        if holding.ended is None and holding.uid not in alive:
            continue
        for gpu in holding.gpus:
            before = [
                each for each in by_gpu.get(gpu, []) if each.ended is None or each.ended > holding.bound
            ]
            used = sum(shares.get(each.uid, WHOLE) for each in (*before, holding))
            if used > WHOLE:
                names = ", ".join(each.name for each in (*before, holding))
                yield f"{gpu} was held by {names} at {holding.bound:%H:%M:%S.%f}"
            by_gpu[gpu] = [*before, holding]


def _holding(event: Event) -> Holding | None:
    meta = event["requestObject"].get("metadata", {})
    node, _, ids = meta.get("annotations", {}).get(ALLOCATED, "").rpartition(":")
    if not node:
        return None
    about = event["objectRef"]
    uid = meta.get("uid") or about.get("uid", "")
    gpus = [f"{node}:{gpu}" for gpu in ids.split(",")]
    return Holding(uid, about["name"], gpus, _moment(event["stageTimestamp"]))


def _record_end(holdings: dict[str, Holding], event: Event) -> None:
    pod = event.get("responseObject", {})
    holding = holdings.get(pod.get("metadata", {}).get("uid", ""))
    if holding and holding.ended is None and pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        holding.ended = _moment(event["requestReceivedTimestamp"])


def _deleted(event: Event) -> str:
    return str(event.get("requestObject", {}).get("preconditions", {}).get("uid", ""))


def _overallocated(event: Event) -> Iterator[str]:
    read = read_lease(msgspec.convert(event["responseObject"], Lease))
    if read is not None and sum(holder.milli for holder in read.holders.values()) > WHOLE:
        yield f"{read.name} was written with holders {', '.join(read.holders)}"


def _without_preconditions(event: Event) -> Iterator[str]:
    conditions = event.get("requestObject", {}).get("preconditions", {})
    if not {"uid", "resourceVersion"} <= conditions.keys():
        yield f"{event['objectRef']['name']} was deleted without preconditions"


def _succeeded(event: Event) -> bool:
    return 200 <= int(event.get("responseStatus", {}).get("code", 0)) < 300


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
