"""Write the leases and the annotation of pods whose GPUs a ResourceClaim delivers.

They are a mirror: the claim's allocation decides. Leases keep the GPUs of a running pod taken if somebody deletes its
ResourceClaim, and show its GPUs to everything that reads leases or the annotation. They are written after the pod is
bound, when no pod waits for an allocation or a binding, and garbage-collected like other leases.
"""

import asyncio
from collections.abc import Callable, Mapping

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.leases.writer import LeaseTaken, LeaseWriter, PodRef
from gpufleet.scheduler.state import Ledger, valid_request

_log = get_logger("scheduler")

BATCH_WINDOW = 0.5
"""Seconds in which bound pods are collected."""

_MOST_DELAYS = 40
"""Batch windows that the mirror waits for pods without an allocation or a binding."""

_CONCURRENCY = 8


class Mirror:
    """Mirrors the allocations of bound pods; `run` it while leading."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        lease_writer: LeaseWriter,
        annotations: Callable[[Fits], Mapping[str, str]],
        busy: Callable[[], bool],
        timing: Timing,
    ) -> None:
        """`annotations` returns those of a placement, `busy` whether other writes go first."""
        self._api = api
        self._ledger = ledger
        self._lease_writer = lease_writer
        self._annotations = annotations
        self._busy = busy
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()

    def consider(self, pod: Pod) -> None:
        """Mirror the allocation of a pod in the next step, if it is bound and its mirror is not complete."""
        if pod.spec.node_name and not pod.finished and is_delivered_by_claim(pod) and self._place(pod):
            self._dirty.add(pod.metadata.uid)
            self._wake.set()

    def enqueue_all(self) -> None:
        """Mirror all allocations; used when this replica starts to lead."""
        for pod in self._ledger.pods.values():
            self.consider(pod)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            for _ in range(_MOST_DELAYS):
                await asyncio.sleep(BATCH_WINDOW)
                if not self._busy():
                    break
            self._wake.clear()
            if not await self.step():
                self._wake.set()

    async def step(self) -> bool:
        """Mirror the allocations of pods that have changed; return whether all were written."""
        due, self._dirty = sorted(self._dirty), set()
        for at in range(0, len(due), _CONCURRENCY):
            chunk = due[at : at + _CONCURRENCY]
            done = await asyncio.gather(*map(self._mirror, chunk))
            self._dirty.update(uid for uid, ok in zip(chunk, done, strict=True) if not ok)
        return not self._dirty

    async def _mirror(self, uid: str) -> bool:
        pod = self._ledger.pods.get(uid)
        fits = self._place(pod) if pod is not None and not pod.finished else None
        if pod is None or fits is None:
            return True
        meta = pod.metadata
        try:
            missing = set(fits.gpus) - self._ledger.leases_of(uid).get(fits.node, {}).keys()
            if missing:
                ref = PodRef(uid, meta.namespace, meta.name, meta.annotations.get(CLAIM, ""))
                await self._lease_writer.reserve(ref, fits)
            if ALLOCATED not in meta.annotations:
                now = await self._api.annotate_pod(pod, self._annotations(fits))
                if now is not None:
                    self._ledger.put_pod(now)
        except LeaseTaken as error:
            _log.error("lease_of_running_pod_taken", pod=f"{meta.namespace}/{meta.name}", error=str(error))
        except GpufleetError as error:
            self._warnings.warn(uid, "allocation_not_mirrored", pod_uid=uid, error=str(error))
            return False
        self._warnings.clear(uid)
        return True

    def _place(self, pod: Pod) -> Fits | None:
        """Return the GPUs to mirror; None if leases and annotation are there, or nothing is allocated."""
        meta, node = pod.metadata, pod.spec.node_name
        held = self._ledger.resource_claims.held(meta.uid).get(node, {})
        leased = self._ledger.leases_of(meta.uid).get(node, {})
        if not held or (held.keys() <= leased.keys() and ALLOCATED in meta.annotations):
            return None
        claim = self._ledger.claim_of(pod)
        request = valid_request(claim) if claim is not None else None
        if request is None:
            return None
        instances = tuple((gpu, each) for gpu, holder in sorted(held.items()) for each in holder.instances)
        return Fits(request, node, tuple(sorted(held)), instances)
