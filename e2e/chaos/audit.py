"""Find GPUs that were held twice, from the API server's audit log, which is independent of gpufleet.

A pod holds a GPU

- by its Binding (mode `extender`), until it is deleted or its status is terminal;
- by the allocation of its ResourceClaim (mode `dra`), until that is cleared or the claim is deleted;
- by a lease, until the lease is released or the pod has ended: leases of ended pods are garbage-collected later.

Two pods held a GPU at the same time if the later write completed before the request that ended the earlier holding was
received. A killed API server may lose its last log lines, so a pod that is gone without a logged end counts as an
unrecorded end, not as a holder.

Leases are checked too: no state of a lease may hold more than one GPU, and each delete must have preconditions. An
allocation must not be cleared while its pod runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from gpufleet.kubernetes.annotations import ALLOCATED, SHARE
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease
from gpufleet.placement.request import WHOLE

Event = dict[str, Any]


@dataclass
class Holding:
    """GPUs that a pod had by its Binding, its ResourceClaim or a lease. A claim without a pod is its own holder."""

    uid: str
    name: str
    gpus: list[str]
    bound: datetime
    ended: datetime | None = None


@dataclass
class Verdict:
    """Counts and faults found in the log."""

    bindings: int = 0
    allocations: int = 0
    lease_writes: int = 0
    lease_deletes: int = 0
    unrecorded_ends: int = 0
    faults: list[str] = field(default_factory=list)


def check_log(events: Iterable[Event], shares: Mapping[str, int], alive: set[str]) -> Verdict:
    """Check the log. `alive` are the UIDs of existing pods.

    `shares` are thousandths of a GPU by pod UID, for pods whose leases and ResourceClaims don't tell them.
    """
    log = _Log()
    for event in events:
        if event.get("stage") == "ResponseComplete" and _succeeded(event):
            log.read(event)
    return log.verdict_about(shares, alive)


class _Log:
    """Collects who held which GPU from when to when."""

    def __init__(self) -> None:
        self._verdict = Verdict()
        self._bound: dict[str, datetime] = {}
        self._ended: dict[str, datetime] = {}
        self._pods: dict[tuple[str, str], str] = {}
        """UIDs by namespace and name."""
        self._by_binding: list[Holding] = []
        self._by_claim: list[Holding] = []
        self._by_lease: list[Holding] = []
        self._allocated: dict[tuple[str, str], Holding] = {}
        self._claim_versions: dict[str, int] = {}
        self._leased: dict[str, dict[str, Holding]] = {}
        self._shares: dict[str, int] = {}

    def read(self, event: Event) -> None:
        """Read one successful request."""
        about = event.get("objectRef", {})
        match about.get("resource"), about.get("subresource"), event["verb"]:
            case "pods", "binding", "create":
                self._binding(event)
            case "pods", "status", "patch" | "update":
                pod = event.get("responseObject", {})
                if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                    self._end(pod.get("metadata", {}).get("uid", ""), event)
            case "pods", None, "delete":
                name = about["namespace"], about["name"]
                self._end(_deleted(event) or self._pods.get(name, ""), event)
            case "resourceclaims", None | "status", "create" | "update" | "patch":
                self._claim(event)
            case "resourceclaims", None, "delete":
                # With a finalizer the response is the claim, which still exists.
                if not event.get("responseObject", {}).get("metadata", {}).get("finalizers"):
                    self._clear(event)
            case "leases", None, "create" | "update" | "patch" if about["name"].startswith("gpu-"):
                self._verdict.lease_writes += 1
                self._lease(event)
            case "leases", None, "delete" if about["name"].startswith("gpu-"):
                self._verdict.lease_deletes += 1
                self._verdict.faults += _without_preconditions(event)
                self._hold_lease(event, "", set())

    def verdict_about(self, shares: Mapping[str, int], alive: set[str]) -> Verdict:
        """Return all faults."""
        verdict = self._verdict
        for holding in self._by_binding:
            holding.ended = self._ended.get(holding.uid)
        for holding in self._by_lease:
            ends = [end for end in (holding.ended, self._ended.get(holding.uid)) if end is not None]
            holding.ended = min(ends, default=None)
        holdings = [*self._by_binding, *self._by_claim, *self._by_lease]
        bound = {each.uid for each in (*self._by_binding, *self._by_claim) if each.uid in self._bound}
        verdict.unrecorded_ends = len(bound - self._ended.keys() - alive)
        verdict.faults += self._cleared_early(alive)
        verdict.faults += held_twice(holdings, {**shares, **self._shares}, alive)
        return verdict

    def _binding(self, event: Event) -> None:
        about, meta = event["objectRef"], event["requestObject"].get("metadata", {})
        uid = meta.get("uid") or about.get("uid", "")
        at = _moment(event["stageTimestamp"])
        self._bound.setdefault(uid, at)
        self._pods[about["namespace"], about["name"]] = uid
        node, _, ids = meta.get("annotations", {}).get(ALLOCATED, "").rpartition(":")
        if node:
            self._verdict.bindings += 1
            gpus = [f"{node}:{gpu}" for gpu in ids.split(",")]
            self._by_binding.append(Holding(uid, about["name"], gpus, at))

    def _end(self, uid: str, event: Event) -> None:
        self._ended.setdefault(uid, _moment(event["requestReceivedTimestamp"]))

    def _claim(self, event: Event) -> None:
        """Read a state of a ResourceClaim; lines of almost simultaneous writes may be out of order."""
        claim, about = event["responseObject"], event["objectRef"]
        meta = claim["metadata"]
        version = int(meta.get("resourceVersion", 0))
        if version < self._claim_versions.get(meta["uid"], 0):
            return
        self._claim_versions[meta["uid"]] = version
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        gpus = [
            f"{each['pool']}:{each['device'].removeprefix('gpu-')}"
            for each in results
            if not each.get("adminAccess")
        ]
        key = about["namespace"], meta["name"]
        if key in self._allocated and self._allocated[key].gpus == gpus:
            return
        self._clear(event)
        if gpus:
            self._verdict.allocations += 1
            owners = [each["uid"] for each in meta.get("ownerReferences", ()) if each["kind"] == "Pod"]
            uid = owners[0] if owners else meta["uid"]
            if share := meta.get("annotations", {}).get(SHARE):
                self._shares[uid] = int(share)
            holding = Holding(uid, f"ResourceClaim {meta['name']}", gpus, _moment(event["stageTimestamp"]))
            self._allocated[key] = holding
            self._by_claim.append(holding)

    def _clear(self, event: Event) -> None:
        about = event["objectRef"]
        # The name of a claim that is created is only in the response.
        name = about.get("name") or event.get("responseObject", {}).get("metadata", {}).get("name", "")
        holding = self._allocated.pop((about["namespace"], name), None)
        if holding is not None:
            holding.ended = _moment(event["requestReceivedTimestamp"])

    def _cleared_early(self, alive: set[str]) -> Iterator[str]:
        """Yield the allocations that were cleared before their bound pod had ended."""
        for each in self._by_claim:
            if each.ended is None or self._bound.get(each.uid, each.ended) >= each.ended:
                continue
            ended = self._ended.get(each.uid)
            if ended > each.ended if ended is not None else each.uid in alive:
                yield f"{each.name} was cleared at {each.ended:%H:%M:%S.%f}, while its pod was running"

    def _lease(self, event: Event) -> None:
        lease = read_lease(msgspec.convert(event["responseObject"], Lease))
        if lease is None:
            return
        if sum(holder.milli for holder in lease.holders.values()) > WHOLE:
            self._verdict.faults.append(f"{lease.name} was written with holders {', '.join(lease.holders)}")
        self._shares |= {uid: holder.milli for uid, holder in lease.holders.items() if holder.milli}
        self._hold_lease(event, f"{lease.node}:{lease.gpu}", set(lease.holders))

    def _hold_lease(self, event: Event, gpu: str, uids: set[str]) -> None:
        """Begin and end holdings so that exactly these pods hold the lease."""
        name = event["objectRef"]["name"]
        held = self._leased.setdefault(name, {})
        for uid in held.keys() - uids:
            held.pop(uid).ended = _moment(event["requestReceivedTimestamp"])
        for uid in uids - held.keys():
            held[uid] = Holding(uid, f"lease {name} of {uid}", [gpu], _moment(event["stageTimestamp"]))
            self._by_lease.append(held[uid])


def held_twice(holdings: Iterable[Holding], shares: Mapping[str, int], alive: set[str]) -> Iterator[str]:
    """Yield GPUs whose holders at one time add up to more than one GPU."""
    by_gpu: dict[str, list[Holding]] = {}
    for holding in sorted(holdings, key=lambda holding: holding.bound):
        if holding.ended is None and holding.uid not in alive:
            continue
        for gpu in holding.gpus:
            before = [
                each for each in by_gpu.get(gpu, []) if each.ended is None or each.ended > holding.bound
            ]
            holders = {each.uid for each in (*before, holding)}
            used = sum(shares.get(uid, WHOLE) for uid in holders)
            if used > WHOLE:
                names = ", ".join(each.name for each in (*before, holding))
                yield f"{gpu} was held by {names} at {holding.bound:%H:%M:%S.%f}"
            by_gpu[gpu] = [*before, holding]


def _deleted(event: Event) -> str:
    return str(event.get("requestObject", {}).get("preconditions", {}).get("uid", ""))


def _without_preconditions(event: Event) -> Iterator[str]:
    conditions = event.get("requestObject", {}).get("preconditions", {})
    if not {"uid", "resourceVersion"} <= conditions.keys():
        yield f"{event['objectRef']['name']} was deleted without preconditions"


def _succeeded(event: Event) -> bool:
    return 200 <= int(event.get("responseStatus", {}).get("code", 0)) < 300


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
