"""Reserve and Unreserve: taking, keeping and giving back the leases of a pod's GPUs.

Every write for a pod puts a fresh stamp on its entry, also where the pod held the GPU before.
Whoever gives back an entry does it under the lease's version and only while the stamp is the
one it knows. So an entry that another process has renewed meanwhile can't be taken from it,
and a lease of another pod can't be released by mistake.

An attempt that fails gives back only what the pod did not have before. What it renewed may be
what another process is about to bind the pod with, or has bound it with: that goes only after
the pod has been changed (`care.py`).

No answer to a write means that it may have been done: the lease is read to find out.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, KubernetesUnavailable, OperationRefused
from gpufleet.kubernetes.client.errors import AlreadyExists, Conflict, ObjectNotFound
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.leases import (
    GpuLease,
    LeaseHolder,
    lease_name,
    new_lease,
    read_lease,
    with_holders,
)
from gpufleet.kubernetes.objects import Lease
from gpufleet.placement.request import WHOLE
from gpufleet.placement.verdict import Fits
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import Api
from gpufleet.scheduler.state.ledger import Ledger

_log = get_logger("scheduler")

_TRIES = 6


class TakenLease(OperationRefused):
    """Somebody else has the GPU."""


@dataclass(frozen=True)
class PodName:
    """Which pod, and the claim that it names."""

    uid: str
    namespace: str
    name: str
    claim: str = ""


@dataclass(frozen=True)
class Reserved:
    """The leases of one attempt: their stamp, and the GPUs that the pod did not have before."""

    stamp: str
    new: tuple[int, ...]


class Reservations:
    """Takes and gives back leases; what the server answers goes into the ledger at once."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        namespace: str,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        new_stamp: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._namespace = namespace
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._new_stamp = new_stamp

    async def reserve(self, pod: PodName, fits: Fits) -> Reserved:
        """Take a lease of every GPU, all at once; if one can't be had, give back the others and raise."""
        stamp = self._new_stamp()
        parts = {gpu: self._part(pod, fits, gpu, stamp) for gpu in fits.gpus}
        renewed: set[int] = set()
        tasks = [self._take(fits.node, gpu, pod.uid, part, renewed) for gpu, part in parts.items()]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        new = tuple(gpu for gpu in fits.gpus if gpu not in renewed)
        if not failures:
            return Reserved(stamp, new)
        await self.unreserve(pod.uid, fits.node, new, stamp)
        expected = [failure for failure in failures if isinstance(failure, GpufleetError)]
        raise next(iter(set(failures) - set(expected)), failures[0])

    async def restore(
        self, pod: PodName, node: str, gpu: int, milli: int, instances: tuple[str, ...] = ()
    ) -> None:
        """Write again a lease that a bound pod should have and has not; Taken if another has the GPU."""
        known = await self._read(lease_name(node, gpu))
        if known is None or pod.uid not in known.holders:
            part = LeaseHolder(pod.namespace, pod.name, pod.claim, milli, instances, self._new_stamp())
            self._ledger.put_lease(await self._write(known, node, gpu, pod.uid, part))

    async def unreserve(self, uid: str, node: str, gpus: Iterable[int], stamp: str | None) -> bool:
        """Give back what was taken under `stamp` (any, if None: the pod is gone); whether all of it is back."""
        ids = list(gpus)
        tasks = [self._leave(node, gpu, uid, stamp) for gpu in ids]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for gpu, outcome in zip(ids, outcomes, strict=True):
            about = f"{uid} {lease_name(node, gpu)}"
            if outcome is None:
                self._warnings.clear(about)
            elif isinstance(outcome, KubernetesUnavailable):
                self._warnings.warn(
                    about, "lease not given back yet", node=node, gpu=gpu, pod_uid=uid, error=str(outcome)
                )
            elif isinstance(outcome, BaseException):
                raise outcome
        return not any(isinstance(outcome, BaseException) for outcome in outcomes)

    def _part(self, pod: PodName, fits: Fits, gpu: int, stamp: str) -> LeaseHolder:
        instances = tuple(instance for at, instance in fits.instances if at == gpu)
        return LeaseHolder(pod.namespace, pod.name, pod.claim, fits.request.milli_per_gpu, instances, stamp)

    async def _take(self, node: str, gpu: int, uid: str, part: LeaseHolder, renewed: set[int]) -> None:
        """Take one lease, or renew it; `renewed` gets it if the pod may have had it before."""
        name = lease_name(node, gpu)
        known = self._ledger.leases.get(name)
        for _ in range(_TRIES):
            if known is not None and (mine := known.holders.get(uid)):
                if mine.stamp == part.stamp:
                    return
                renewed.add(gpu)
            try:
                self._ledger.put_lease(await self._write(known, node, gpu, uid, part))
                return
            except (AlreadyExists, Conflict, ObjectNotFound):
                known = await self._read(name)
            except KubernetesUnavailable:
                known = await self._read(name)
        raise TakenLease(f"GPU {gpu} of {node}: its lease changed {_TRIES} times while it was being taken")

    async def _write(self, known: GpuLease | None, node: str, gpu: int, uid: str, part: LeaseHolder) -> Lease:
        now = self._timing.now()
        if known is None:
            device = self._ledger.device(node, gpu)
            model = device.model if device else ""
            return await self._api.create_lease(
                new_lease(self._namespace, node, gpu, {uid: part}, model, now)
            )
        others = {other: holder for other, holder in known.holders.items() if other != uid}
        if why := _no_room(others, part, foreign=known.foreign and bool(others)):
            raise TakenLease(f"GPU {gpu} of {node} {why}")
        return await self._api.replace_lease(with_holders(known.object, {**others, uid: part}, now))

    async def _leave(self, node: str, gpu: int, uid: str, stamp: str | None) -> None:
        name = lease_name(node, gpu)
        known = self._ledger.leases.get(name)
        if known is None or uid not in known.holders or not _same(known.holders[uid], stamp):
            known = await self._read(name)
        for _ in range(_TRIES):
            if known is None or uid not in known.holders or not _same(known.holders[uid], stamp):
                return
            others = {other: holder for other, holder in known.holders.items() if other != uid}
            meta = known.object.metadata
            try:
                if others:
                    fresh = with_holders(known.object, others, self._timing.now())
                    self._ledger.put_lease(await self._api.replace_lease(fresh))
                else:
                    await self._api.delete_lease(name, meta.uid, meta.resource_version)
                    self._ledger.drop_lease(name, meta.uid)
                return
            except (Conflict, ObjectNotFound):
                known = await self._read(name)
        raise KubernetesUnavailable(f"lease {name} changed {_TRIES} times while it was being given back")

    async def _read(self, name: str) -> GpuLease | None:
        """The lease as the server has it now, also for the ledger."""
        known = self._ledger.leases.get(name)
        lease = await self._api.read_lease(name)
        if lease is None:
            if known is not None:
                self._ledger.drop_lease(name, known.object.metadata.uid)
            return None
        self._ledger.put_lease(lease)
        return read_lease(lease)


def _same(holder: LeaseHolder, stamp: str | None) -> bool:
    return stamp is None or holder.stamp == stamp


def _no_room(others: Mapping[str, LeaseHolder], part: LeaseHolder, foreign: bool) -> str:
    """Why the GPU can't take one more, by what its lease says."""
    if not others:
        return ""
    if foreign:
        return "has a lease that this scheduler did not make"
    held = sum(holder.milli for holder in others.values())
    if part.instances:
        used = {instance for holder in others.values() for instance in holder.instances}
        if held or used & set(part.instances):
            return "has been given to another pod"
        return ""
    if any(holder.instances for holder in others.values()) or held + part.milli > WHOLE:
        return "has been given to another pod"
    return ""
