"""Write claim statuses and events.

A status is always computed from the current pods, leases and decisions of the planner. So the next write repairs a
lost one, and many pods that change one claim together cost one write. Pods that are being bound go first: as long as
there are any, statuses and events wait, but not forever.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Literal

import msgspec

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import GPU_CLAIMS, Timing
from gpufleet.kubernetes.allocation import allocated_gpus, format_allocation
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import ObjectReference, Pod
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.planning.plan import NOT_TRIED, PENDING
from gpufleet.scheduler.state import Ledger, valid_request
from gpufleet.scheduler.state.allocations import leased_places
from gpufleet.scheduler.state.claim_requests import invalid_reason
from gpufleet.scheduler.state.indexes import Key

_log = get_logger("scheduler")

EventType = Literal["Normal", "Warning"]

BATCH_WINDOW = 0.2
"""Seconds in which changes of a claim are collected: its pods are often created and deleted together."""

MAX_DELAY = 30.0
"""Seconds that statuses and events wait for pods that are being bound. Then they are written one at a time."""

_CONCURRENCY = 4
"""Few, so that binding pods has precedence over status writes when the API server is slow."""
_MAX_EVENTS = 10_000
_ALLOCATED = "Successfully allocated"
_NOT_TRIED = f"{PENDING}{NOT_TRIED}"
"""Not written to new claims: the scheduler tries the pod in a moment."""


class ClaimStatuses:
    """Writes the statuses of changed claims; `run` it while leading."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        reason_of: Callable[[Pod], str],
        binding: Callable[[], bool],
        timing: Timing,
        expected_start: Callable[[Key], datetime | None] = lambda claim: None,
    ) -> None:
        """`reason_of` returns why an unbound pod waits, `binding` whether pods are being bound."""
        self._api = api
        self._ledger = ledger
        self._reason_of = reason_of
        self._binding = binding
        self._expected_start = expected_start
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._dirty: dict[Key, None] = {}
        """The claims to write, the first changed first."""
        self._events: dict[tuple[str, str], tuple[ObjectReference, str, str, EventType]] = {}
        self._wake = asyncio.Event()

    def enqueue(self, namespace: str, claim: str) -> None:
        """Write the status of a claim in the next step."""
        if (namespace, claim) in self._ledger.claims:
            self._dirty[namespace, claim] = None
            self._wake.set()

    def forget(self, namespace: str, claim: str) -> None:
        """Forget a deleted claim."""
        self._dirty.pop((namespace, claim), None)

    def enqueue_all(self) -> None:
        """Write the statuses of all claims; used when this replica starts to lead."""
        self._dirty.update(dict.fromkeys(self._ledger.claims))
        self._wake.set()

    def record_event(self, pod: Pod, reason: str, note: str, type: EventType) -> None:
        """Record an event on a pod and its claim; only the last one per object and reason is written."""
        self.record_pod_event(pod, reason, note, type)
        self.record_claim_event(pod, reason, note, type)

    def record_pod_event(self, pod: Pod, reason: str, note: str, type: EventType) -> None:
        """Record an event on a pod."""
        meta = pod.metadata
        self._record(ObjectReference("v1", "Pod", meta.namespace, meta.name, meta.uid), reason, note, type)

    def record_claim_event(self, pod: Pod, reason: str, note: str, type: EventType) -> None:
        """Record an event on the claim of a pod."""
        if claim := self._ledger.claim_of(pod):
            meta = claim.metadata
            object = ObjectReference(GPU_CLAIMS.api_version, "GpuClaim", meta.namespace, meta.name, meta.uid)
            self._record(object, reason, note, type)

    def _record(self, object: ObjectReference, reason: str, note: str, type: EventType) -> None:
        if len(self._events) < _MAX_EVENTS:
            self._events[object.uid, reason] = (object, reason, note, type)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            overdue = self._timing.monotonic() + MAX_DELAY
            await asyncio.sleep(BATCH_WINDOW)
            self._wake.clear()
            while self._dirty or self._events:
                binding = self._binding()
                if binding and self._timing.monotonic() < overdue:
                    await asyncio.sleep(BATCH_WINDOW)
                elif not await self.step(1 if binding else _CONCURRENCY):
                    await asyncio.sleep(1.0)

    async def step(self, most: int | None = None) -> bool:
        """Write changed statuses and events, or `most` of each; return whether all statuses were written."""
        due = list(islice(self._dirty, most))
        for key in due:
            del self._dirty[key]
        failed = [key for chunk in _chunks(due) for key in await self._write_some(chunk)]
        self._dirty.update(dict.fromkeys(failed))
        events = [self._events.pop(key) for key in list(islice(self._events, most))]
        for some in _chunks(events):
            await asyncio.gather(*(self._api.record_event(*event) for event in some))
        return not failed

    async def _write_some(self, keys: Iterable[Key]) -> list[Key]:
        outcomes = await asyncio.gather(*(self._write(key) for key in keys))
        return [key for key in outcomes if key is not None]

    async def _write(self, key: Key) -> Key | None:
        claim = self._ledger.claims.get(key)
        if claim is None:
            return None
        status = status_of(self._ledger, self._reason_of, claim)
        status["expectedStart"] = self._start_of(key, status)
        if _written_status(claim) == status or (
            status["message"] == _NOT_TRIED and not claim.status.allocations
        ):
            return None
        name = "/".join(key)
        try:
            await self._api.write_status(*key, status)
        except GpufleetError as error:
            self._warnings.warn(name, "claim_status_not_written", claim=name, error=str(error))
            return key
        self._warnings.clear(name)
        return None

    def _start_of(self, key: Key, status: dict[str, Any]) -> str | None:
        """Return when a claim with a pending pod is expected to start."""
        start = self._expected_start(key) if PENDING in status["message"] else None
        return start.strftime("%Y-%m-%dT%H:%M:%SZ") if start is not None else None


def status_of(ledger: Ledger, reason_of: Callable[[Pod], str], claim: GpuClaim) -> dict[str, Any]:
    """Return the whole status; fields that must be absent are None."""
    meta = claim.metadata
    pods = [pod for pod in ledger.pods_of(meta.namespace, meta.name) if not pod.finished]
    entries = [entry for pod in pods if (entry := _entry(ledger, claim, pod))]
    served = {entry["podUid"] for entry in entries}
    notes = (reason_of(pod) for pod in pods if pod.metadata.uid not in served)
    status = compose_status(_phase(claim), len(pods), entries, next(filter(None, notes), ""))
    if not entries and (reason := invalid_reason(claim)):
        # An API server accepts such a claim only if the CRD had no rules when it was created.
        status["message"] = f"The claim is invalid, no pod can use it: {reason}"
    elif status["message"].startswith(_ALLOCATED) and (note := _not_adjacent(claim, entries)):
        status["message"] += f"; {note}"
    return status


def compose_status(phase: str, pods: int, entries: list[dict[str, Any]], note: str) -> dict[str, Any]:
    """Return the status of a claim that `pods` pods use: their allocations, and why others are pending.

    `phase` applies while there is no allocation.
    """
    first = entries[0] if entries else {}
    reserved = sum(entry.get("phase") == "Reserved" for entry in entries)
    return {
        "phase": first.get("phase", phase),
        "nodeName": first.get("nodeName"),
        "gpuIds": first.get("gpuIds"),
        "allocated": format_allocation(first["nodeName"], first["gpuIds"]) if first else None,
        "message": _message(pods, len(entries) - reserved, reserved, note),
        "allocations": entries or None,
    }


def _phase(claim: GpuClaim) -> str:
    return "Pending" if valid_request(claim) else "Failed"


def _message(pods: int, allocated: int, reserved: int, note: str) -> str:
    if not pods:
        return "No running or pending pod uses the claim"
    if allocated == pods:
        return _ALLOCATED if pods == 1 else f"{_ALLOCATED} for {pods} pods"
    sentences = []
    if allocated:
        sentences.append(f"Allocated for {allocated} of {pods} pods")
    if reserved:
        some = "" if reserved == pods == 1 else f" for {reserved} of {pods} pods"
        sentences.append(f"Reserved{some}, not bound yet")
    if allocated + reserved < pods:
        sentences.append(f"{PENDING}{note}" if note else _NOT_TRIED)
    return ". ".join(sentences)


def _not_adjacent(claim: GpuClaim, entries: Sequence[dict[str, Any]]) -> str:
    """Return a note about GPUs that are not adjacent although the claim prefers it."""
    devices = claim.spec.devices
    if devices.policy != "contiguous" or devices.exclusivity != "Exclusive":
        return ""
    for entry in entries:
        ids = entry["gpuIds"]
        if ids[-1] - ids[0] >= len(ids):
            return f"GPU ids {','.join(map(str, ids))} of {entry['nodeName']} are not adjacent"
    return ""


def _entry(ledger: Ledger, claim: GpuClaim, pod: Pod) -> dict[str, Any] | None:
    """Return the allocation of one pod, if it has one."""
    meta = pod.metadata
    if pod.spec.node_name:
        node, gpus, phase = pod.spec.node_name, list(allocated_gpus(pod)), "Bound"
        if not gpus:
            return None
    else:
        found = _reserved(ledger, claim, meta.uid)
        if found is None:
            return None
        (node, gpus), phase = found, "Reserved"
    entry: dict[str, Any] = {
        "podUid": meta.uid,
        "podName": meta.name,
        "nodeName": node,
        "gpuIds": gpus,
        "uuids": _uuids(ledger, meta.uid, node, gpus),
        "phase": phase,
    }
    if claim.spec.devices.exclusivity == "Shared":
        request = valid_request(claim)
        entry["share"] = request.share_milli / 1000 if request else None
    return {key: value for key, value in entry.items() if value not in (None, [], "")}


def _reserved(ledger: Ledger, claim: GpuClaim, uid: str) -> tuple[str, list[int]] | None:
    request = valid_request(claim)
    if request is None:
        return None
    found = leased_places(ledger, uid, request)
    return (found[0].node, list(found[0].gpus)) if found else None


def _uuids(ledger: Ledger, uid: str, node: str, gpus: list[int]) -> list[str]:
    found = []
    for gpu in gpus:
        device = ledger.device(node, gpu)
        if device is None:
            continue
        holder = ledger.held_by(uid).get(node, {}).get(gpu)
        mine = holder.instances if holder else ()
        found += [each.uuid for each in device.mig_instances if str(each.id) in mine] or [device.uuid]
    return found if all(found) else []


def _written_status(claim: GpuClaim) -> dict[str, Any]:
    """Return the claim's current status in the form of `status_of`."""
    status: dict[str, Any] = msgspec.to_builtins(claim.status)
    keys = ("phase", "nodeName", "gpuIds", "allocated", "message", "expectedStart", "allocations")
    entries = [
        {**entry, "phase": entry.get("phase", "Pending")}
        for entry in map(dict, status.get("allocations", ()))
    ]
    written = {key: status.get(key) for key in keys}
    written["phase"] = claim.status.phase
    written["allocations"] = entries or None
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(written))
    return plain


def _chunks(items: list[Any]) -> list[list[Any]]:
    return [items[at : at + _CONCURRENCY] for at in range(0, len(items), _CONCURRENCY)]
