"""Dispatch watch events: update the ledger, then let the components that depend on the object reconcile."""

import asyncio
from collections.abc import Callable, Sequence

from gpufleet.kubernetes import CacheChange, Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease, NativePodGroup, Node, Pod, PodDisruptionBudget, PodGroup
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceSlice, is_delivered_by_claim
from gpufleet.placement import DemandMemory
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.delivery.allocator import ClaimAllocator
from gpufleet.scheduler.delivery.mirror import Mirror
from gpufleet.scheduler.delivery.overlaps import Overlaps
from gpufleet.scheduler.direct_binding import DirectBinding
from gpufleet.scheduler.extender.nudger import Nudger
from gpufleet.scheduler.leases.dirty_pods import DirtyPods
from gpufleet.scheduler.leases.gc import LeaseGc
from gpufleet.scheduler.planning.gangs import Gangs
from gpufleet.scheduler.planning.planner import Planner
from gpufleet.scheduler.planning.preemption import Preemption
from gpufleet.scheduler.planning.queue import Queue
from gpufleet.scheduler.state import Ledger, valid_request
from gpufleet.scheduler.state.gang_identity import Gang
from gpufleet.scheduler.state.indexes import Key


class WatchEvents:
    """Handles the changes of all watched objects; `changed` is set when units may fit that did not fit before."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        planner: Planner,
        preemption: Preemption,
        gangs: Gangs,
        lease_gc: LeaseGc,
        allocator: ClaimAllocator,
        mirror: Mirror,
        overlaps: Overlaps,
        statuses: ClaimStatuses,
        dirty: DirtyPods,
        nudger: Nudger,
        direct: DirectBinding,
        demand: DemandMemory,
        changed: asyncio.Event,
        timing: Timing,
        *,
        namespace: str,
        leading: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._planner = planner
        self._preemption = preemption
        self._gangs = gangs
        self._lease_gc = lease_gc
        self._allocator = allocator
        self._mirror = mirror
        self._overlaps = overlaps
        self._statuses = statuses
        self._dirty = dirty
        self._nudger = nudger
        self._direct = direct
        self._demand = demand
        self._changed = changed
        self._timing = timing
        self._namespace = namespace
        self._leading = leading

    def on_nodes(self, changes: Sequence[CacheChange[Node]]) -> None:
        """Handle node changes; most are heartbeats, which free no GPUs."""
        for change in changes:
            if change.after is None:
                self._ledger.drop_node(change.object.metadata.name)
            else:
                self._ledger.put_node(change.after)

    def on_reports(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        """Handle changes of GpuNodeStatus."""
        for change in changes:
            if change.after is None:
                self._ledger.drop_report(change.object.spec.node_name)
            else:
                self._ledger.put_report(change.after)

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        """Handle lease changes, by this scheduler or others."""
        for change in changes:
            meta, lease = change.object.metadata, read_lease(change.object)
            if meta.namespace != self._namespace or lease is None:
                continue
            if change.after is None:
                self._ledger.drop_lease(meta.name, meta.uid)
            else:
                self._ledger.put_lease(change.after)
                lease = self._ledger.leases.get(meta.name)
            if lease is not None:
                self._overlaps.check([(lease.node, lease.gpu)])
            # Also after a deletion: a user may have deleted the lease of a running pod.
            for uid in lease.holders if lease else ():
                self._dirty.add(uid)

    def on_slices(self, changes: Sequence[CacheChange[ResourceSlice]]) -> None:
        """Handle changes of ResourceSlices."""
        for change in changes:
            if change.after is None:
                self._ledger.drop_slice(change.object)
            else:
                self._ledger.put_slice(change.after)

    def on_resource_claims(self, changes: Sequence[CacheChange[ResourceClaim]]) -> None:
        """Handle changes of ResourceClaims, of this scheduler or others."""
        for change in changes:
            meta = change.object.metadata
            known = self._ledger.resource_claims.get((meta.namespace, meta.name))
            places = {(gpu.node, gpu.gpu) for gpu in known.gpus} if known else set()
            if change.after is None:
                self._ledger.drop_resource_claim(change.object)
            else:
                self._ledger.put_resource_claim(change.after)
                known = self._ledger.resource_claims.get((meta.namespace, meta.name))
                places |= {(gpu.node, gpu.gpu) for gpu in known.gpus} if known else set()
            self._overlaps.check(places)
            for owner in meta.owner_references:
                self._claim_changed(owner.uid)

    def _claim_changed(self, uid: str) -> None:
        """Plan, watch or mirror the pod of a ResourceClaim."""
        pod = self._ledger.pods.get(uid)
        if pod is None or not is_delivered_by_claim(pod):
            return
        self._allocator.consider(uid)
        self._mirror.consider(pod)
        self._statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
        if not pod.spec.node_name and (gang := self._ledger.gangs.of(pod)) is not None:
            self._enqueue_gang(gang)

    def on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        """Handle claim changes."""
        for change in changes:
            meta = change.object.metadata
            key = (meta.namespace, meta.name)
            if change.after is None:
                self._ledger.drop_claim(key)
                self._statuses.forget(*key)
            else:
                self._ledger.put_claim(change.after)
                # Even after our own write: a request that timed out may be executed after later ones.
                self._statuses.enqueue(*key)
                if change.before is None:
                    self.record_demand(change.after, len(self._ledger.pods_of(*key)))
            specs = [state.spec for state in (change.before, change.after) if state is not None]
            if len(specs) < 2 or specs[0] != specs[1]:
                self._replan_pods_of(key)

    def on_groups(self, changes: Sequence[CacheChange[PodGroup] | CacheChange[NativePodGroup]]) -> None:
        """Handle PodGroup changes, native or not: a gang may get its size, or be another one."""
        for change in changes:
            key = (change.object.metadata.namespace, change.object.metadata.name)
            before = self._ledger.gangs.named(key)
            if isinstance(change.object, NativePodGroup):
                self._ledger.gangs.drop_native_group(key)
            elif change.after is None:
                self._ledger.gangs.drop_group(key)
            if isinstance(change.after, NativePodGroup):
                self._ledger.gangs.put_native_group(change.after)
            elif change.after is not None:
                self._ledger.gangs.put_group(change.after)
            for gang in before | self._ledger.gangs.named(key):
                self._enqueue_gang(gang)

    def on_budgets(self, changes: Sequence[CacheChange[PodDisruptionBudget]]) -> None:
        """Handle changes of PodDisruptionBudgets: other pods may be evicted now."""
        self._preemption.forget_searches()
        self._ledger.note_freed()
        for change in changes:
            if change.after is None:
                self._ledger.budgets.drop(change.object)
            else:
                self._ledger.budgets.put(change.after)

    def on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        """Handle pod changes."""
        for change in changes:
            pod, uid = change.object, change.object.metadata.uid
            gangs = {self._ledger.gangs.of(state) for state in (change.before, change.after) if state}
            if change.after is None:
                self._ledger.drop_pod(uid)
                self._ledger.release_hold(uid)
                self._lease_gc.pod_deleted(uid)
                self._gangs.forget(uid)
                self._leave_queue(uid)
            else:
                if uid not in self._ledger.pods and (claim := self._ledger.claim_of(pod)):
                    self.record_demand(claim, 1)
                self._ledger.put_pod(change.after)
                if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
                    self._leave_queue(uid)
                elif self._direct.applies(pod):
                    self._queue.put_pod(pod)
                    self._changed.set()
            names = {
                state.metadata.annotations.get(CLAIM) for state in (change.before, change.after) if state
            }
            if not any(names) and not self._ledger.held_by(uid):
                continue
            self._dirty.add(uid)
            if pod.spec.resource_claims:
                self._allocator.consider(uid)
                self._mirror.consider(pod)
            self._report_exclusion(pod)
            for name in names:
                self._statuses.enqueue(pod.metadata.namespace, name or "")
            for gang in gangs:
                if gang is not None:
                    self._enqueue_gang(gang)

    def _report_exclusion(self, pod: Pod) -> None:
        """Record an event if no node admits a pod that waits: kube-scheduler does not ask for such a pod."""
        if not self._leading() or pod.metadata.uid not in self._ledger.pods or pod.spec.node_name:
            return
        why = "" if pod.finished else self._planner.exclusion(pod)
        if why and self._planner.reason(pod) == why:
            self._statuses.record_event(pod, "GpusUnavailable", why, "Warning")

    def _leave_queue(self, uid: str) -> None:
        self._queue.drop(uid)
        self._nudger.drop(uid)
        self._direct.forget(uid)

    def _enqueue_gang(self, gang: Gang) -> None:
        members = self._ledger.gangs.members(gang)
        if members and all(map(self._planner.is_foreign, members)):
            return
        self._gangs.enqueue(gang)
        self._changed.set()

    def _replan_pods_of(self, key: Key) -> None:
        """Plan the waiting pods of a new or changed claim again, and report the result: it is about another request."""
        for pod in self._ledger.pods_of(*key):
            if (unit := self._queue.of_pod(pod)) is not None:
                unit.told_at = float("-inf")
            if (entry := self._queue.get(pod.metadata.uid)) is not None:
                entry.planned = -1
                self._changed.set()
            if (gang := self._ledger.gangs.of(pod)) is not None:
                self._enqueue_gang(gang)

    def record_demand(self, claim: GpuClaim, pods: int) -> None:
        """Count one request of the claim for each new pod that uses it."""
        request = valid_request(claim)
        if request is None:
            return
        for _ in range(pods):
            self._demand.observe(request, self._timing.monotonic())
