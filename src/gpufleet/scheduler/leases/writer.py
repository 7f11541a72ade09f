"""Reserve and Unreserve: acquire, renew and release the leases of a pod's GPUs.

Every write for a pod puts a new stamp on its entry, even if the pod held the GPU before. An entry
is released under the lease's version and only if it still has the known stamp. So an entry that
another process has renewed can't be released, nor can another pod's lease.

A failed attempt releases only the leases that the pod did not have before. Those that it renewed
may be in use by another process that binds the pod; `leases/gc.py` reclaims them after it has changed
the pod.

A write without a response may have been done, so the lease is read again.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, KubernetesUnavailable, OperationRefused
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.client.errors import AlreadyExists, Conflict, ObjectNotFound
from gpufleet.kubernetes.leases import (
    GpuLease,
    LeaseHolder,
    lease_name,
    new_lease,
    read_lease,
    with_holders,
)
from gpufleet.kubernetes.objects import Lease
from gpufleet.model.gpu_models import canonical_model
from gpufleet.placement.request import WHOLE
from gpufleet.placement.verdict import Fits
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.state.ledger import Ledger

_log = get_logger("scheduler")

_ATTEMPTS = 6

_CONCURRENCY = 64
"""Leases that are acquired at the same time. A large gang must not wait for connections until its calls time out."""


def new_stamp() -> str:
    """Return a random stamp for an attempt."""
    return secrets.token_hex(6)


class LeaseTaken(OperationRefused):
    """Another holder has the GPU."""


@dataclass(frozen=True)
class PodRef:
    """A pod and the claim that it uses."""

    uid: str
    namespace: str
    name: str
    claim: str = ""


@dataclass(frozen=True)
class Reserved:
    """The result of an attempt: its stamp, and the GPUs that the pod did not have before."""

    stamp: str
    new: tuple[int, ...]


class LeaseWriter:
    """Acquires and releases leases; the server's responses go into the ledger immediately."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        namespace: str,
        timing: Timing,
        new_stamp: Callable[[], str],
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._namespace = namespace
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._new_stamp = new_stamp
        self._turns = asyncio.Semaphore(_CONCURRENCY)

    async def reserve(self, pod: PodRef, fits: Fits) -> Reserved:
        """Acquire the leases of all GPUs concurrently; if one fails, release the others and raise."""
        stamp = self._new_stamp()
        entries = {gpu: self._entry(pod, fits, gpu, stamp) for gpu in fits.gpus}
        renewed: set[int] = set()
        tasks = [self._acquire(fits.node, gpu, pod.uid, entry, renewed) for gpu, entry in entries.items()]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        new = tuple(gpu for gpu in fits.gpus if gpu not in renewed)
        if not failures:
            return Reserved(stamp, new)
        await self.unreserve(pod.uid, fits.node, new, stamp)
        expected = [failure for failure in failures if isinstance(failure, GpufleetError)]
        raise next(iter(set(failures) - set(expected)), failures[0])

    async def restore(
        self, pod: PodRef, node: str, gpu: int, milli: int, instances: tuple[str, ...] = ()
    ) -> None:
        """Recreate a lease of a bound pod; raise `LeaseTaken` if another pod has the GPU."""
        known = await self._read(lease_name(node, gpu))
        if known is None or pod.uid not in known.holders:
            entry = LeaseHolder(pod.namespace, pod.name, pod.claim, milli, instances, self._new_stamp())
            self._ledger.put_lease(await self._write(known, node, gpu, pod.uid, entry))

    async def unreserve(self, uid: str, node: str, gpus: Iterable[int], stamp: str | None) -> bool:
        """Release entries with this `stamp` (any, if None); return whether all were released."""
        ids = list(gpus)
        tasks = [self._release_lease(node, gpu, uid, stamp) for gpu in ids]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for gpu, outcome in zip(ids, outcomes, strict=True):
            key = f"{uid} {lease_name(node, gpu)}"
            if outcome is None:
                self._warnings.clear(key)
            elif isinstance(outcome, KubernetesUnavailable):
                self._warnings.warn(
                    key, "lease_not_released", node=node, gpu=gpu, pod_uid=uid, error=str(outcome)
                )
            elif isinstance(outcome, BaseException):
                raise outcome
        return not any(isinstance(outcome, BaseException) for outcome in outcomes)

    def _entry(self, pod: PodRef, fits: Fits, gpu: int, stamp: str) -> LeaseHolder:
        instances = tuple(instance for at, instance in fits.instances if at == gpu)
        return LeaseHolder(pod.namespace, pod.name, pod.claim, fits.request.milli_per_gpu, instances, stamp)

    async def _acquire(self, node: str, gpu: int, uid: str, entry: LeaseHolder, renewed: set[int]) -> None:
        """Acquire or renew one lease; add the GPU to `renewed` if the pod may have had it before."""
        async with self._turns:
            await self._acquire_now(node, gpu, uid, entry, renewed)

    async def _acquire_now(
        self, node: str, gpu: int, uid: str, entry: LeaseHolder, renewed: set[int]
    ) -> None:
        name = lease_name(node, gpu)
        known = self._ledger.leases.get(name)
        for _ in range(_ATTEMPTS):
            if known is not None and (mine := known.holders.get(uid)):
                if mine.stamp == entry.stamp:
                    return
                renewed.add(gpu)
            else:
                renewed.discard(gpu)  # it was released since it was read
            try:
                self._ledger.put_lease(await self._write(known, node, gpu, uid, entry))
                return
            except (AlreadyExists, Conflict, ObjectNotFound):
                known = await self._read(name)
            except KubernetesUnavailable:
                known = await self._read(name)
        raise LeaseTaken(
            f"GPU {gpu} of {node}: its lease changed {_ATTEMPTS} times while it was being acquired"
        )

    async def _write(
        self, known: GpuLease | None, node: str, gpu: int, uid: str, entry: LeaseHolder
    ) -> Lease:
        now = self._timing.now()
        if known is None:
            device = self._ledger.device(node, gpu)
            model = canonical_model(device.model) if device else ""
            return await self._api.create_lease(
                new_lease(self._namespace, node, gpu, {uid: entry}, model, now)
            )
        others = {other: holder for other, holder in known.holders.items() if other != uid}
        if why := _conflict_reason(others, entry, foreign=known.foreign and bool(others)):
            raise LeaseTaken(f"GPU {gpu} of {node} {why}")
        return await self._api.replace_lease(with_holders(known.object, {**others, uid: entry}, now))

    async def _release_lease(self, node: str, gpu: int, uid: str, stamp: str | None) -> None:
        name = lease_name(node, gpu)
        known = self._ledger.leases.get(name)
        if known is None or uid not in known.holders or not _has_stamp(known.holders[uid], stamp):
            known = await self._read(name)
        for _ in range(_ATTEMPTS):
            if known is None or uid not in known.holders or not _has_stamp(known.holders[uid], stamp):
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
        raise KubernetesUnavailable(f"lease {name} changed {_ATTEMPTS} times while it was being released")

    async def _read(self, name: str) -> GpuLease | None:
        """Read the lease from the server into the ledger and return it."""
        known = self._ledger.leases.get(name)
        lease = await self._api.read_lease(name)
        if lease is None:
            if known is not None:
                self._ledger.drop_lease(name, known.object.metadata.uid)
            return None
        self._ledger.put_lease(lease)
        return read_lease(lease)


def _has_stamp(holder: LeaseHolder, stamp: str | None) -> bool:
    return stamp is None or holder.stamp == stamp


def _conflict_reason(others: Mapping[str, LeaseHolder], entry: LeaseHolder, foreign: bool) -> str:
    """Return why the GPU has no room for the entry, or an empty string."""
    if not others:
        return ""
    if foreign:
        return "has a lease that this scheduler did not make"
    held = sum(holder.milli for holder in others.values())
    if entry.instances:
        used = {instance for holder in others.values() for instance in holder.instances}
        if held or used & set(entry.instances):
            return "is allocated to another pod"
        return ""
    if any(holder.instances for holder in others.values()) or held + entry.milli > WHOLE:
        return "is allocated to another pod"
    return ""
