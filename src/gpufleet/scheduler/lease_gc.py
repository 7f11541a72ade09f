"""Lease care: what nobody needs is released, by watch and at once; who waits for it is woken.

A pod that is gone or has ended holds nothing. A bound pod holds what its annotation says, no
more and no less: a lease that somebody deletes under it is written again. A pod that has leases and is not bound keeps them while it is being bound or its gang
is under way, and for a grace period; then they are taken back: first the pod is changed, which
outdates every Binding under way, then its leases are given back if they have not been renewed.
Leases that this scheduler did not make are left alone while their pod may live.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes.allocation import allocated_gpus
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.kubernetes.client.errors import Conflict, ObjectNotFound
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.request import WHOLE
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import Api
from gpufleet.scheduler.binding import Binder
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.reservation import PodName, Reservations, TakenLease
from gpufleet.scheduler.state import Ledger, sensible_request

_log = get_logger("scheduler")

PERIOD = 1.0
"""Seconds between two looks at what time changes: holds that run out, calls that failed."""

TOGETHER = 0.05
"""Seconds in which changes are gathered."""

_AT_ONCE = 64

_Item = TypeVar("_Item")


@dataclass
class _Stray:
    """Leases of a pod that is not bound: their stamps, and since when they are seen like this."""

    stamps: frozenset[str]
    since: float


class LeaseGc:
    """Looks after leases, holds and waiting pods; `run` it while leading."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        leasing: Reservations,
        binder: Binder,
        waiting: PendingPods,
        metrics: SchedulerMetrics,
        grace_s: float,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._leasing = leasing
        self._binder = binder
        self._waiting = waiting
        self._metrics = metrics
        self._grace_s = grace_s
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._dirty: set[str] = set()
        self._departed: set[str] = set()
        self._strays: dict[str, _Stray] = {}
        self._foreign: set[str] = set()
        self._freed = True
        self._wake = asyncio.Event()
        self.keeps: Callable[[str], bool] = lambda uid: False
        """Whether something else answers for a pod's reservation (its gang)."""
        self.on_freed: Callable[[], None] = lambda: None

    # -- what the watch tells --------------------------------------------------------------

    def look_at(self, uid: str) -> None:
        """Something about this holder has changed."""
        if uid not in self._ledger.pods and not self._ledger.parts(uid):
            # Nothing is left to look after. A replica that does not lead would remember it for good.
            self._dirty.discard(uid)
            self._departed.discard(uid)
            return
        self._dirty.add(uid)
        self._wake.set()

    def pod_gone(self, uid: str) -> None:
        """The watch has shown that the pod was deleted."""
        if self._ledger.parts(uid):
            self._departed.add(uid)
            self.look_at(uid)

    def freed(self) -> None:
        """GPUs may have become free, or nodes may have come."""
        self._freed = True
        self._wake.set()

    # -- work ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.step()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._wake.wait()
            # What comes at the same time is looked at together.
            await asyncio.sleep(TOGETHER)

    async def step(self) -> None:
        """One look: release what is due, then wake those whom it helps."""
        self._wake.clear()
        self._expire_holds()
        self._note_foreign()
        due, self._dirty = self._dirty | set(self._strays), set()
        for chunk in _chunks(sorted(due)):
            done = await asyncio.gather(*(self._tend_safely(uid) for uid in chunk))
            self._dirty.update(uid for uid, well in zip(chunk, done, strict=True) if not well)
        if self._freed:
            self._freed = False
            self.on_freed()
            await self.wake_waiting()

    def look_at_all(self) -> None:
        """After a start: everybody who has a lease, or should have one."""
        self._dirty.update(self._ledger.lessees())
        self._dirty.update(
            uid for uid, pod in self._ledger.pods.items() if ALLOCATED in pod.metadata.annotations
        )
        self.freed()

    async def wake_waiting(self) -> None:
        """Nudge the waiting pods that fit now."""
        helped = self._waiting.helped(self._ledger, self._timing.monotonic())
        self._freed |= self._waiting.later
        for chunk in _chunks(helped):
            await asyncio.gather(*(self._nudge(each.pod) for each in chunk))

    async def _nudge(self, pod: Pod) -> None:
        meta = pod.metadata
        try:
            now = await self._api.nudge(meta.namespace, meta.name, meta.uid, self._binder.mark())
        except GpufleetError as error:
            name = f"{meta.namespace}/{meta.name}"
            self._warnings.warn(f"nudge {meta.uid}", "pod not woken", pod=name, error=str(error))
            self._freed = True
            return
        self._warnings.clear(f"nudge {meta.uid}")
        if now is None:
            self._waiting.drop(meta.uid)

    def _expire_holds(self) -> None:
        now = self._timing.monotonic()
        for uid, hold in list(self._ledger.holds.items()):
            pod = self._ledger.pods.get(uid)
            over = pod is not None and (pod.finished or pod.spec.node_name)
            if (hold.until <= now or over) and not self._binder.busy(uid):
                self._ledger.release_hold(uid)
                self._freed = True

    def _note_foreign(self) -> None:
        foreign = set(self._ledger.foreign)
        for name in sorted(foreign - self._foreign):
            lease = self._ledger.leases[name]
            _log.warning(
                "lease made by hand or by another program; its GPU is left alone",
                lease=name,
                holder=lease.object.spec.holder_identity,
            )
        self._foreign = foreign
        self._metrics.foreign.set(len(foreign))

    async def _tend_safely(self, uid: str) -> bool:
        try:
            well = await self._tend(uid)
        except GpufleetError as error:
            self._warnings.warn(uid, "leases not tended", pod_uid=uid, error=str(error))
            return False
        if well and uid not in self._strays:
            self._warnings.clear(uid)
        return well

    async def _tend(self, uid: str) -> bool:
        """Whether everything about this holder is as it should be, or will be looked at when it changes."""
        parts = {node: dict(gpus) for node, gpus in self._ledger.parts(uid).items()}
        pod = self._ledger.pods.get(uid)
        missing = _missing(pod, parts) if pod is not None else ()
        if not (parts or missing) or self._binder.busy(uid):
            self._strays.pop(uid, None)
            self._departed.discard(uid)
            return True
        if pod is None:
            return await self._tend_missing(uid, parts)
        if pod.finished:
            return await self._release(uid, parts, "ended")
        if pod.spec.node_name:
            restored = await self._restore(pod, missing)
            return await self._release(uid, _beyond(pod, parts), "superfluous") and restored
        if self.keeps(uid):
            self._strays.pop(uid, None)
            return True
        return await self._tend_unbound(pod, parts)

    async def _restore(self, pod: Pod, missing: tuple[int, ...]) -> bool:
        """Write again what was deleted under a pod that runs, lest its GPUs be given to another; whether that is over."""
        meta = pod.metadata
        name = PodName(meta.uid, meta.namespace, meta.name, meta.annotations.get(CLAIM, ""))
        try:
            for gpu in missing:
                milli, instances = self._part_of(pod, gpu)
                await self._leasing.restore(name, pod.spec.node_name, gpu, milli, instances)
        except (Conflict, ObjectNotFound):
            # Another pod's part of the same GPU is being written at the same time.
            return False
        except TakenLease as error:
            _log.error(
                "leases of a running pod are gone", pod=f"{meta.namespace}/{meta.name}", error=str(error)
            )
            return True
        if missing:
            _log.warning(
                "leases written again under a running pod", pod=f"{meta.namespace}/{meta.name}", gpus=missing
            )
            self._metrics.recovered.labels("deleted under its pod").inc(len(missing))
        return True

    def _part_of(self, pod: Pod, gpu: int) -> tuple[int, tuple[str, ...]]:
        """How much of a GPU a running pod has: MIG instances by its annotation, else by its claim, else all of it."""
        told = set(filter(None, pod.metadata.annotations.get(VISIBLE, "").split(",")))
        device = self._ledger.device(pod.spec.node_name, gpu)
        instances = tuple(
            str(each.id)
            for each in (device.mig_instances if device else ())
            if not told.isdisjoint((each.uuid, f"{gpu}:{each.id}"))
        )
        if instances:
            return 0, instances
        claim = self._ledger.claim_of(pod)
        request = sensible_request(claim) if claim is not None else None
        return (request.milli_per_gpu if request else 0) or WHOLE, ()

    async def _tend_missing(self, uid: str, parts: dict[str, dict[int, LeaseHolder]]) -> bool:
        """No such pod is known: the watch may lag, so the server is asked by name."""
        holder = next(iter(next(iter(parts.values())).values()))
        if not holder.pod:
            if uid in self._departed:
                return await self._release(uid, parts, "pod gone")
            # Nobody says which pod it is: made by hand or by another program, and not ours to judge.
            return True
        pod = await self._api.read_pod(holder.namespace, holder.pod)
        if pod is not None and pod.metadata.uid == uid and not pod.finished:
            self._ledger.put_pod(pod)
            return await self._tend(uid)
        return await self._release(uid, parts, "pod gone")

    async def _tend_unbound(self, pod: Pod, parts: dict[str, dict[int, LeaseHolder]]) -> bool:
        uid, now = pod.metadata.uid, self._timing.monotonic()
        parts = _ours(parts)
        stamps = frozenset(holder.stamp for gpus in parts.values() for holder in gpus.values())
        if not parts:
            self._strays.pop(uid, None)
            return True
        stray = self._strays.get(uid)
        if stray is None or stray.stamps != stamps:
            self._strays[uid] = _Stray(stamps, now)
            return True
        if now - stray.since < self._grace_s or uid in self._ledger.holds:
            return True
        del self._strays[uid]
        return await self.take_back(pod, parts)

    async def take_back(self, pod: Pod, parts: dict[str, dict[int, LeaseHolder]]) -> bool:
        """Take the leases of an unbound pod, as they were read; whether nothing is left to do."""
        meta = pod.metadata
        now = await self._api.nudge(meta.namespace, meta.name, meta.uid, self._binder.mark())
        if now is None:
            return await self._release(meta.uid, parts, "pod gone")
        self._ledger.put_pod(now)
        if now.spec.node_name:
            return await self._release(meta.uid, _beyond(now, parts), "superfluous")
        return await self._release(meta.uid, _ours(parts), "not bound", stamped=True)

    async def _release(
        self, uid: str, parts: dict[str, dict[int, LeaseHolder]], why: str, *, stamped: bool = False
    ) -> bool:
        self._strays.pop(uid, None)
        well = True
        for node, gpus in parts.items():
            by_stamp: dict[str | None, list[int]] = {}
            for gpu, holder in gpus.items():
                by_stamp.setdefault(holder.stamp if stamped else None, []).append(gpu)
            for stamp, ids in by_stamp.items():
                if not await self._leasing.unreserve(uid, node, ids, stamp):
                    well = False
                    continue
                _log.info("leases released", node=node, gpus=ids, pod_uid=uid, why=why)
                if why != "ended":
                    self._metrics.recovered.labels(why).inc(len(ids))
        if parts:
            self._freed = True
        return well


def _missing(pod: Pod, parts: dict[str, dict[int, LeaseHolder]]) -> tuple[int, ...]:
    """The GPUs of a running pod, by its annotation, of which it has no lease."""
    leased = parts.get(pod.spec.node_name, {})
    return () if pod.finished else tuple(gpu for gpu in allocated_gpus(pod) if gpu not in leased)


def _beyond(pod: Pod, parts: dict[str, dict[int, LeaseHolder]]) -> dict[str, dict[int, LeaseHolder]]:
    """The leases of a bound pod that are not part of its allocation."""
    mine = allocated_gpus(pod)
    beyond = {
        at: {gpu: holder for gpu, holder in gpus.items() if at != pod.spec.node_name or gpu not in mine}
        for at, gpus in parts.items()
    }
    if not mine:
        # Bound by another hand, which did not say to which GPUs: on its node everything stays.
        beyond.pop(pod.spec.node_name, None)
    return _ours(beyond)


def _ours(parts: dict[str, dict[int, LeaseHolder]]) -> dict[str, dict[int, LeaseHolder]]:
    """Without the leases that this scheduler did not make, which stay while their pod may live."""
    mine = {at: {gpu: holder for gpu, holder in gpus.items() if holder.stamp} for at, gpus in parts.items()}
    return {at: gpus for at, gpus in mine.items() if gpus}


def _chunks(items: list[_Item]) -> list[list[_Item]]:
    return [items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE)]
