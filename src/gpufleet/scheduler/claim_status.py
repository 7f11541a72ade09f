"""Claim statuses and events: always found anew from pods, leases and refusals, then written.

A status is a function of what is there, so a write that was lost is made good by the next,
and many pods that change one claim at once cost one write.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import GPU_CLAIMS
from gpufleet.kubernetes.allocation import allocated_gpus, format_allocation
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import ObjectReference, Pod
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import Api
from gpufleet.scheduler.filtering import whole_allocation
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.state import Ledger, sensible_request
from gpufleet.scheduler.state.ledger import Key

_log = get_logger("scheduler")

TOGETHER = 0.2
"""Seconds in which changes of a claim are gathered: its pods often come and go together."""

_AT_ONCE = 4
"""Few: when the API server is busy each takes longer, and so the binding of pods goes before the telling of it."""
_MOST_EVENTS = 10_000
_NO_NEWS = "Waits: not looked at yet"
"""Not worth a write: the scheduler's word on the pod comes in a moment."""


class ClaimStatuses:
    """Writes what has changed; `run` it while leading."""

    def __init__(self, api: Api, ledger: Ledger, waiting: PendingPods, timing: Timing) -> None:
        self._api = api
        self._ledger = ledger
        self._waiting = waiting
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._dirty: set[Key] = set()
        self._events: dict[
            tuple[str, str], tuple[ObjectReference, str, str, Literal["Normal", "Warning"]]
        ] = {}
        self._wake = asyncio.Event()

    def look_at(self, namespace: str, claim: str) -> None:
        """Something about this claim has changed."""
        if (namespace, claim) in self._ledger.claims:
            self._dirty.add((namespace, claim))
            self._wake.set()

    def forget(self, namespace: str, claim: str) -> None:
        """The claim is gone."""
        self._dirty.discard((namespace, claim))

    def look_at_all(self) -> None:
        """After a start."""
        self._dirty.update(self._ledger.claims)
        self._wake.set()

    def say(self, pod: Pod, reason: str, note: str, type: Literal["Normal", "Warning"]) -> None:
        """Say something of a pod, and of its claim; the last word on each is what is written."""
        meta = pod.metadata
        about = [ObjectReference("v1", "Pod", meta.namespace, meta.name, meta.uid)]
        if claim := self._ledger.claim_of(pod):
            name = claim.metadata
            about.append(
                ObjectReference(GPU_CLAIMS.api_version, "GpuClaim", name.namespace, name.name, name.uid)
            )
        if len(self._events) < _MOST_EVENTS:
            for each in about:
                self._events[each.uid, reason] = (each, reason, note, type)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(TOGETHER)
            self._wake.clear()
            if not await self.step():
                await asyncio.sleep(1.0)
                self._wake.set()

    async def step(self) -> bool:
        """Write all that is due; whether everything could be written."""
        due, self._dirty = sorted(self._dirty), set()
        failed = [key for chunk in _chunks(due) for key in await self._write_some(chunk)]
        self._dirty.update(failed)
        events, self._events = list(self._events.values()), {}
        for some in _chunks(events):
            await asyncio.gather(*(self._api.say(*event) for event in some))
        return not failed

    async def _write_some(self, keys: Iterable[Key]) -> list[Key]:
        outcomes = await asyncio.gather(*(self._write(key) for key in keys))
        return [key for key in outcomes if key is not None]

    async def _write(self, key: Key) -> Key | None:
        claim = self._ledger.claims.get(key)
        if claim is None:
            return None
        status = status_of(self._ledger, self._waiting, claim)
        if _told(claim) == status or (status["message"] == _NO_NEWS and not claim.status.allocations):
            return None
        name = "/".join(key)
        try:
            await self._api.write_status(*key, status)
        except GpufleetError as error:
            self._warnings.warn(name, "claim status not written", claim=name, error=str(error))
            return key
        self._warnings.clear(name)
        return None


def status_of(ledger: Ledger, waiting: PendingPods, claim: GpuClaim) -> dict[str, Any]:
    """The whole status as it should be; None for fields that should not be there."""
    meta = claim.metadata
    pods = [pod for pod in ledger.pods_of(meta.namespace, meta.name) if not pod.finished]
    entries = [entry for pod in pods if (entry := _entry(ledger, claim, pod))]
    first = entries[0] if entries else {}
    notes = [waiting.pods[pod.metadata.uid].note for pod in pods if pod.metadata.uid in waiting.pods]
    return {
        "phase": first.get("phase", _phase(claim)),
        "nodeName": first.get("nodeName"),
        "gpuIds": first.get("gpuIds"),
        "allocated": format_allocation(first["nodeName"], first["gpuIds"]) if first else None,
        "message": _message(claim, pods, entries, notes),
        "allocations": entries or None,
    }


def _phase(claim: GpuClaim) -> str:
    return "Pending" if sensible_request(claim) else "Failed"


def _message(claim: GpuClaim, pods: list[Pod], entries: list[dict[str, Any]], notes: list[str]) -> str:
    waits = len(pods) - len(entries)
    if entries and not waits:
        return "Successfully allocated" if len(pods) == 1 else f"All {len(pods)} pods are served"
    why = notes[0] if notes else "not looked at yet"
    if entries:
        return f"{len(entries)} pods are served, {waits} wait: {why}"
    if pods:
        return f"Waits: {why}"
    return "No pod that names the claim is running or waiting"


def _entry(ledger: Ledger, claim: GpuClaim, pod: Pod) -> dict[str, Any] | None:
    """What one pod has, if it has something."""
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
        request = sensible_request(claim)
        entry["share"] = request.share_milli / 1000 if request else None
    return {key: value for key, value in entry.items() if value not in (None, [], "")}


def _reserved(ledger: Ledger, claim: GpuClaim, uid: str) -> tuple[str, list[int]] | None:
    request = sensible_request(claim)
    if request is None:
        return None
    for node, parts in ledger.parts(uid).items():
        if (fits := whole_allocation(request, node, parts)) is not None:
            return node, list(fits.gpus)
    return None


def _uuids(ledger: Ledger, uid: str, node: str, gpus: list[int]) -> list[str]:
    found = []
    for gpu in gpus:
        device = ledger.device(node, gpu)
        if device is None:
            continue
        holder = ledger.parts(uid).get(node, {}).get(gpu)
        mine = holder.instances if holder else ()
        found += [each.uuid for each in device.mig_instances if str(each.id) in mine] or [device.uuid]
    return found if all(found) else []


def _told(claim: GpuClaim) -> dict[str, Any]:
    """The status that the claim has, in the same form."""
    status: dict[str, Any] = msgspec.to_builtins(claim.status)
    keys = ("phase", "nodeName", "gpuIds", "allocated", "message", "allocations")
    entries = [
        {**entry, "phase": entry.get("phase", "Pending")}
        for entry in map(dict, status.get("allocations", ()))
    ]
    told = {key: status.get(key) for key in keys}
    told["phase"] = claim.status.phase
    told["allocations"] = entries or None
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))
    return plain


def _chunks(items: list[Any]) -> list[list[Any]]:
    return [items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE)]
