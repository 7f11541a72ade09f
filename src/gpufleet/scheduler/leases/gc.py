"""Garbage-collect GPU leases: release those that are not needed.

A deleted or finished pod needs no leases. A bound pod has exactly the leases of its annotation;
one that is deleted while the pod runs is recreated. An unbound pod keeps its leases while it is
being bound, while its gang has a plan, and for a grace period. Then they are reclaimed: first
the pod is changed, which invalidates every Binding in flight, then the leases are released unless
another process has renewed them. Leases that this scheduler did not make stay while their pod may
be running.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.allocation import allocated_gpus
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.kubernetes.client.errors import Conflict, ObjectNotFound
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.request import WHOLE
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.binding import Binder
from gpufleet.scheduler.leases.dirty_pods import DirtyPods
from gpufleet.scheduler.leases.writer import LeaseTaken, LeaseWriter, PodRef
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.state import Ledger, valid_request

_log = get_logger("scheduler")

PERIOD = 1.0
"""Seconds between checks for expired holds and failed calls."""

BATCH_WINDOW = 0.05
"""Seconds in which changes are collected."""

_CONCURRENCY = 64

_Item = TypeVar("_Item")
_Leased = dict[str, dict[int, LeaseHolder]]
"""A pod's lease entries by node and GPU id."""


@dataclass
class _UnboundLeases:
    """The stamps of an unbound pod's leases, and since when they have not changed."""

    stamps: frozenset[str]
    since: float


class LeaseGc:
    """Reconciles leases and holds; `run` it while leading."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        lease_writer: LeaseWriter,
        binder: Binder,
        dirty: DirtyPods,
        gang_plans: GangPlans,
        metrics: SchedulerMetrics,
        grace_s: float,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._lease_writer = lease_writer
        self._binder = binder
        self._dirty = dirty
        self._gang_plans = gang_plans
        self._metrics = metrics
        self._grace_s = grace_s
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._unbound: dict[str, _UnboundLeases] = {}
        self._foreign: set[str] = set()

    # -- watch events ----------------------------------------------------------------------

    def pod_deleted(self, uid: str) -> None:
        """Release the leases of a deleted pod in the next step."""
        self._dirty.deleted.add(uid)
        self._dirty.add(uid)

    # -- reconciling -----------------------------------------------------------------------

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            await self.step()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._dirty.changed.wait()
            await asyncio.sleep(BATCH_WINDOW)

    async def step(self) -> None:
        """Reconcile the pods that have changed."""
        self._dirty.changed.clear()
        self._expire_holds()
        self._report_foreign_leases()
        for chunk in _chunks(sorted(self._dirty.take() | set(self._unbound))):
            done = await asyncio.gather(*(self._reconcile_safely(uid) for uid in chunk))
            self._dirty.put_back({uid for uid, ok in zip(chunk, done, strict=True) if not ok})

    def enqueue_all(self) -> None:
        """Enqueue every pod that has leases or an allocation; used when this replica starts to lead."""
        for uid in self._ledger.lease_holders():
            self._dirty.add(uid)
        for uid, pod in self._ledger.pods.items():
            if ALLOCATED in pod.metadata.annotations:
                self._dirty.add(uid)

    def _expire_holds(self) -> None:
        now = self._timing.monotonic()
        for uid, hold in list(self._ledger.holds.items()):
            pod = self._ledger.pods.get(uid)
            over = pod is not None and (pod.finished or pod.spec.node_name)
            if (hold.until <= now or over) and not self._binder.busy(uid):
                self._ledger.release_hold(uid)

    def _report_foreign_leases(self) -> None:
        foreign = set(self._ledger.foreign)
        for name in sorted(foreign - self._foreign):
            holder = self._ledger.leases[name].object.spec.holder_identity
            _log.warning("foreign_lease", lease=name, holder=holder)
        self._foreign = foreign
        self._metrics.foreign.set(len(foreign))

    async def _reconcile_safely(self, uid: str) -> bool:
        try:
            ok = await self._reconcile(uid)
        except GpufleetError as error:
            self._warnings.warn(uid, "leases_not_reconciled", pod_uid=uid, error=str(error))
            return False
        if ok and uid not in self._unbound:
            self._warnings.clear(uid)
        return ok

    async def _reconcile(self, uid: str) -> bool:
        """Bring the pod's leases in line with its state; return False to try again in the next step."""
        leased = {node: dict(gpus) for node, gpus in self._ledger.leases_of(uid).items()}
        pod = self._ledger.pods.get(uid)
        missing = _missing(pod, leased) if pod is not None else ()
        if not (leased or missing) or self._binder.busy(uid):
            self._unbound.pop(uid, None)
            self._dirty.deleted.discard(uid)
            return True
        if pod is None:
            return await self._reconcile_missing_pod(uid, leased)
        if pod.finished:
            return await self._release(uid, leased, "finished")
        if pod.spec.node_name:
            restored = await self._restore(pod, missing)
            return await self._release(uid, _surplus(pod, leased), "surplus") and restored
        if self._gang_plans.has(uid):
            self._unbound.pop(uid, None)
            return True
        return await self._reconcile_unbound(pod, leased)

    async def _restore(self, pod: Pod, missing: tuple[int, ...]) -> bool:
        """Recreate leases deleted under a running pod; return False to try again."""
        meta = pod.metadata
        ref = PodRef(meta.uid, meta.namespace, meta.name, meta.annotations.get(CLAIM, ""))
        try:
            for gpu in missing:
                milli, instances = self._share_of(pod, gpu)
                await self._lease_writer.restore(ref, pod.spec.node_name, gpu, milli, instances)
        except (Conflict, ObjectNotFound):
            # The share of another pod in the same GPU is being written at the same time.
            return False
        except LeaseTaken as error:
            name = f"{meta.namespace}/{meta.name}"
            _log.error("lease_of_running_pod_taken", pod=name, error=str(error))
            return True
        if missing:
            _log.warning("leases_recreated", pod=f"{meta.namespace}/{meta.name}", gpus=missing)
            self._metrics.recovered.labels("lease_deleted").inc(len(missing))
        return True

    def _share_of(self, pod: Pod, gpu: int) -> tuple[int, tuple[str, ...]]:
        """Return a running pod's share of a GPU: its MIG instances, else its claim's share, else the whole GPU."""
        visible = set(filter(None, pod.metadata.annotations.get(VISIBLE, "").split(",")))
        device = self._ledger.device(pod.spec.node_name, gpu)
        instances = tuple(
            str(each.id)
            for each in (device.mig_instances if device else ())
            if not visible.isdisjoint((each.uuid, f"{gpu}:{each.id}"))
        )
        if instances:
            return 0, instances
        claim = self._ledger.claim_of(pod)
        request = valid_request(claim) if claim is not None else None
        return (request.milli_per_gpu if request else 0) or WHOLE, ()

    async def _reconcile_missing_pod(self, uid: str, leased: _Leased) -> bool:
        """Ask the server for the pod by name, because the watch may lag; release its leases if it is gone."""
        holder = next(iter(next(iter(leased.values())).values()))
        if not holder.pod:
            if uid in self._dirty.deleted:
                return await self._release(uid, leased, "pod_deleted")
            # A foreign lease: it does not name its pod, so we can't tell whether the pod exists.
            return True
        pod = await self._api.read_pod(holder.namespace, holder.pod)
        if pod is not None and pod.metadata.uid == uid and not pod.finished:
            self._ledger.put_pod(pod)
            return await self._reconcile(uid)
        return await self._release(uid, leased, "pod_deleted")

    async def _reconcile_unbound(self, pod: Pod, leased: _Leased) -> bool:
        uid, now = pod.metadata.uid, self._timing.monotonic()
        leased = _own_leases(leased)
        stamps = frozenset(holder.stamp for gpus in leased.values() for holder in gpus.values())
        if not leased:
            self._unbound.pop(uid, None)
            return True
        known = self._unbound.get(uid)
        if known is None or known.stamps != stamps:
            self._unbound[uid] = _UnboundLeases(stamps, now)
            return True
        if now - known.since < self._grace_s or uid in self._ledger.holds:
            return True
        del self._unbound[uid]
        return await self.reclaim(pod, leased)

    async def reclaim(self, pod: Pod, leased: _Leased) -> bool:
        """Release the leases of an unbound pod as they were read; return True when done."""
        meta = pod.metadata
        now = await self._api.nudge(meta.namespace, meta.name, meta.uid, self._binder.nudge_value())
        if now is None:
            return await self._release(meta.uid, leased, "pod_deleted")
        self._ledger.put_pod(now)
        if now.spec.node_name:
            return await self._release(meta.uid, _surplus(now, leased), "surplus")
        return await self._release(meta.uid, _own_leases(leased), "not_bound", stamped=True)

    async def _release(self, uid: str, leased: _Leased, reason: str, *, stamped: bool = False) -> bool:
        """Release leases, if `stamped` only those with the stamps read; return whether all were released."""
        self._unbound.pop(uid, None)
        ok = True
        for node, gpus in leased.items():
            by_stamp: dict[str | None, list[int]] = {}
            for gpu, holder in gpus.items():
                by_stamp.setdefault(holder.stamp if stamped else None, []).append(gpu)
            for stamp, ids in by_stamp.items():
                if not await self._lease_writer.unreserve(uid, node, ids, stamp):
                    ok = False
                    continue
                _log.info(
                    "leases_released", phase="Unreserve", node=node, gpus=ids, pod_uid=uid, reason=reason
                )
                if reason != "finished":
                    self._metrics.recovered.labels(reason).inc(len(ids))
        return ok


def _missing(pod: Pod, leased: _Leased) -> tuple[int, ...]:
    """Return the allocated GPUs of a running pod that it has no lease of."""
    on_node = leased.get(pod.spec.node_name, {})
    return () if pod.finished else tuple(gpu for gpu in allocated_gpus(pod) if gpu not in on_node)


def _surplus(pod: Pod, leased: _Leased) -> _Leased:
    """Return the leases of a bound pod that are not part of its allocation."""
    allocated = allocated_gpus(pod)
    surplus = {
        node: {gpu: each for gpu, each in gpus.items() if node != pod.spec.node_name or gpu not in allocated}
        for node, gpus in leased.items()
    }
    if not allocated:
        # Bound by something else, which did not record the GPUs: keep all leases on its node.
        surplus.pop(pod.spec.node_name, None)
    return _own_leases(surplus)


def _own_leases(leased: _Leased) -> _Leased:
    """Return the leases that this scheduler made, which have stamps."""
    own = {node: {gpu: each for gpu, each in gpus.items() if each.stamp} for node, gpus in leased.items()}
    return {node: gpus for node, gpus in own.items() if gpus}


def _chunks(items: list[_Item]) -> list[list[_Item]]:
    return [items[at : at + _CONCURRENCY] for at in range(0, len(items), _CONCURRENCY)]
