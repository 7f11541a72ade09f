"""The live state of one cluster.

Sources put and drop nodes, devices, owners, pods, leases and readings. The fleet derives who holds
which GPU, how workloads are doing, and what changed. A put is cheap: it only marks what it touches.
`refresh` then recomputes the marked nodes and workloads, each by a pure function (`node_view`,
`summarise`), and every query refreshes first. Everything runs on one thread, so a query sees all
changes or none.

Allocation periods are the exception: they are recorded at the moment of each change, so that a pod
that runs for seconds is billed for seconds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from gpufleet.fleet.canonical_models import with_canonical_model, with_canonical_models
from gpufleet.fleet.changes import Changes, node_changes, workload_changes
from gpufleet.fleet.gpu_columns import GpuColumns
from gpufleet.fleet.node_names import NodeNames
from gpufleet.fleet.node_view import GpuReports, NodeView, node_view
from gpufleet.fleet.periods.tracker import (
    PeriodTracker,
    affects_periods,
    gpus_of,
    models_of,
    owner_facts,
)
from gpufleet.fleet.reading_facts import ROWS_PER_STEP, discovered_gpus, exporter_holders
from gpufleet.fleet.totals import Totals
from gpufleet.fleet.workloads.archive import MAX_ARCHIVED, Archive, WorkloadRecord
from gpufleet.fleet.workloads.hierarchy import ObjectTree, object_tree
from gpufleet.fleet.workloads.ownership import Ownership
from gpufleet.fleet.workloads.summary import Workload, summarise
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuUser, Readings
from gpufleet.model.workload import FleetOwner, FleetPod

T = TypeVar("T")
_NODES_PER_STEP = 16
_WORKLOADS_PER_STEP = 64


class Fleet:
    """Nodes, GPUs, pods and workloads of one cluster as they are now."""

    def __init__(
        self,
        cluster: str,
        *,
        clock: Callable[[], float] = time.time,
        simulated: bool = False,
        keep_ended: int = MAX_ARCHIVED,
    ) -> None:
        self.cluster = cluster
        self.simulated = simulated
        self.ownership = Ownership()
        self.gpu_columns = GpuColumns()
        self.node_names = NodeNames()
        self.changes = Changes()
        self.totals = Totals()
        self.version = 0
        """Grows with every change, so that callers can cache an answer per version."""
        self.clock = clock
        self._nodes: dict[str, FleetNode] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._described: frozenset[str] = frozenset()
        """The nodes that had devices when `_discovered` was computed."""
        self._discovered: dict[str, tuple[FleetGpu, ...]] = {}
        self._lease_holders: dict[str, Mapping[int, tuple[str, ...]]] = {}
        self._exporter_holders: dict[str, Mapping[int, tuple[str, ...]]] = {}
        self._pods_on: dict[str, dict[str, None]] = {}
        self._views: dict[str, NodeView] = {}
        self._workloads: dict[str, Workload] = {}
        self._archive = Archive(keep_ended, self._notify_watchers)
        self._periods = PeriodTracker(self.ownership, self._views, clock)
        self.allocation_periods = self._periods.allocation_periods
        self.capacity_periods = self._periods.capacity_periods
        self._workload_watchers: list[set[str]] = []
        self._dirty_nodes: set[str] = set()
        self._dirty_workloads: set[str] = set()

    # Input from sources

    def put_node(self, node: FleetNode) -> None:
        """Add or replace a node."""
        self._nodes[node.name] = with_canonical_model(node)
        self.node_names.put(node.name, node.aliases)
        self._touch_node(node.name)

    def drop_node(self, name: str) -> None:
        """Remove a node that left the cluster."""
        if self._nodes.pop(name, None) is not None:
            self.node_names.drop(name)
            self._touch_node(name)

    def put_devices(self, devices: NodeDevices) -> None:
        """Add or replace what a node's agent reports of its GPUs."""
        self._devices[devices.node] = with_canonical_models(devices)
        self._touch_node(devices.node)

    def drop_devices(self, node: str) -> None:
        """Remove the devices of a node whose agent no longer reports."""
        if self._devices.pop(node, None) is not None:
            self._touch_node(node)

    def put_leases(self, node: str, holders: Mapping[int, tuple[str, ...]]) -> None:
        """Replace who holds which GPU of a node according to the scheduler's leases."""
        if holders:
            self._lease_holders[node] = holders
        else:
            self._lease_holders.pop(node, None)
        self._touch_node(node)

    def put_owner(self, owner: FleetOwner) -> None:
        """Add or replace an owner of pods."""
        before = self.ownership.owners.get(owner.uid)
        self._touch_workloads(self.ownership.put_owner(owner))
        if before is not None and owner_facts(before) != owner_facts(owner):
            for pod in self.ownership.live_pods_of(owner.uid):
                self._periods.update_pod(pod, new=False)

    def drop_owner(self, uid: str) -> None:
        """Remove a deleted owner."""
        self._touch_workloads(self.ownership.drop_owner(uid))

    def put_pod(self, pod: FleetPod) -> None:
        """Add or replace a pod."""
        before = self.ownership.pods.get(pod.uid)
        if before is not None and before.node != pod.node:
            self._leave_node(before)
        self._touch_workloads(self.ownership.put_pod(pod))
        if pod.node:
            self._pods_on.setdefault(pod.node, {})[pod.uid] = None
            self._touch_node(pod.node)
        self._periods.update_pod(pod, new=before is None or self.ownership.is_gone(pod.uid))

    def drop_pod(self, uid: str, at: float | None = None) -> None:
        """Remove a deleted pod."""
        pod = self.ownership.pods.get(uid)
        if pod is None or self.ownership.is_gone(uid):
            return
        moment = self.clock() if at is None else at
        self._touch_workloads(self.ownership.drop_pod(uid, moment))
        self._leave_node(pod)
        self._periods.end_pod(pod, moment)

    def put_readings(self, readings: Readings) -> None:
        """Replace the readings, the GPUs that only exporters report, and the holders they name."""
        for _ in self.put_readings_steps(readings):
            pass

    def put_readings_steps(self, readings: Readings) -> Iterator[None]:
        """Run `put_readings` in steps of a few milliseconds, between which queries are allowed.

        The values change together in the last step.
        """
        readings = yield from self.node_names.resolve_readings(readings)
        last = self.gpu_columns.readings
        described = self._described != self._devices.keys()
        if readings.gpus is not last.gpus or readings.faults != last.faults or described:
            self._described = frozenset(self._devices)
            gpus = yield from discovered_gpus(readings, self._described, dict(self._discovered))
            yield from self._replace(self._discovered, gpus)
        holders = yield from exporter_holders(readings, self._uid_of)
        yield from self._replace(self._exporter_holders, holders)
        yield from self.refresh_steps()
        self.refresh()
        yield from self.gpu_columns.put_readings(readings)
        self.version += 1

    def start_accounting(self) -> None:
        """Record periods from now on. Call it when all sources have listed their objects."""
        for _ in self.start_accounting_steps():
            pass

    def start_accounting_steps(self) -> Iterator[None]:
        """Run `start_accounting` in steps of a few milliseconds, between which anything may change."""
        yield from self.refresh_steps()
        self.refresh()
        yield from self._periods.start()

    @property
    def accounting_started(self) -> bool:
        """Whether periods are recorded, including those of all initial objects."""
        return self._periods.started

    # Queries

    def refresh(self) -> None:
        """Recompute the nodes and workloads that were touched."""
        if self._dirty_nodes or self._dirty_workloads:
            for _ in self.refresh_steps():
                pass

    def refresh_steps(self) -> Iterator[None]:
        """Run `refresh` in steps of a few milliseconds, between which queries are allowed."""
        while self._dirty_nodes:
            for _ in range(min(_NODES_PER_STEP, len(self._dirty_nodes))):
                self._refresh_node(self._dirty_nodes.pop())
            yield
        while self._dirty_workloads:
            for _ in range(min(_WORKLOADS_PER_STEP, len(self._dirty_workloads))):
                self._refresh_workload(self._dirty_workloads.pop())
            yield

    def views(self) -> Mapping[str, NodeView]:
        """Return every node by name."""
        self.refresh()
        return self._views

    def workloads(self) -> Mapping[str, Workload]:
        """Return every existing GPU workload by uid."""
        self.refresh()
        return self._workloads

    def ended(self) -> Mapping[str, WorkloadRecord]:
        """Return GPU workloads that were deleted at their source, the oldest first."""
        self.refresh()
        return self._archive.records

    def ended_with(self, uid: str) -> WorkloadRecord | None:
        """Return the ended workload that has an object of that uid below it."""
        self.refresh()
        return self._archive.record_with(uid)

    def final_status(self, uid: str) -> str | None:
        """Return how a workload ended, or None if it runs or is not known."""
        workload = self.workloads().get(uid)
        if workload is None and (record := self.ended().get(uid)) is not None:
            workload = record.workload
        return workload.status.value if workload is not None and workload.status.ended else None

    def restore_ended(self, ended: Iterable[WorkloadRecord]) -> None:
        """Add ended workloads of an earlier run, the oldest first."""
        self._archive.restore(ended)
        self.version += 1

    def watch_workloads(self) -> set[str]:
        """Return a set that receives the uid of every changed workload; it starts with all of them."""
        self.refresh()
        changed = {*self._workloads, *self._archive.records}
        self._workload_watchers.append(changed)
        return changed

    def drain_ended(self) -> list[WorkloadRecord]:
        """Return the workloads that ended since the last call."""
        self.refresh()
        return self._archive.drain()

    def requeue_ended(self, ended: Iterable[WorkloadRecord]) -> None:
        """Put back drained workloads that could not be stored."""
        self._archive.requeue(ended)

    def object_tree(self, uid: str) -> ObjectTree:
        """Return an object with everything it controls, ordered by kind and name."""
        return object_tree(self.ownership, uid)

    def gpu_models(self, pods: Iterable[FleetPod]) -> dict[str, int]:
        """Return how many GPUs of each model the pods hold."""
        return models_of(self._views, pods)

    def gpus_of(self, pod: FleetPod) -> tuple[int, ...]:
        """Return the indices of the GPUs that the pod holds; empty if they are not known."""
        return gpus_of(self._views, pod)

    def _replace(self, stored: dict[str, T], new: Mapping[str, T]) -> Iterator[None]:
        for number, node in enumerate(stored.keys() | new.keys()):
            if number % ROWS_PER_STEP == 0:
                yield
            found = new.get(node)
            if stored.get(node) == found:
                continue
            self._touch_node(node)
            if found is None:
                del stored[node]
            else:
                stored[node] = found

    def _uid_of(self, user: GpuUser, node: str) -> str | None:
        if user.pod_uid:
            return user.pod_uid if user.pod_uid in self.ownership.pods else None
        if user.pod:
            return self.ownership.uid_of(user.namespace, user.pod)
        return self.ownership.uid_of_job(node, user.job)

    def _touch_node(self, name: str) -> None:
        self.version += 1
        self._dirty_nodes.add(name)

    def _touch_workloads(self, uids: set[str]) -> None:
        self.version += 1
        self._dirty_workloads |= uids
        moved, self.ownership.moved = self.ownership.moved, set()
        for uid in moved:
            if not self.ownership.is_gone(uid):
                self._periods.update_pod(self.ownership.pods[uid], new=False)

    def _leave_node(self, pod: FleetPod) -> None:
        pods = self._pods_on.get(pod.node)
        if pods is not None:
            pods.pop(pod.uid, None)
            if not pods:
                del self._pods_on[pod.node]
            self._touch_node(pod.node)

    def _refresh_node(self, name: str) -> None:
        before, node = self._views.get(name), self._nodes.get(name)
        after = None
        if node is not None:
            reports = GpuReports(
                devices=self._devices.get(name),
                discovered=self._discovered.get(name, ()),
                lease_holders=self._lease_holders.get(name, {}),
                exporter_holders=self._exporter_holders.get(name, {}),
            )
            pods = (self.ownership.pods[uid] for uid in self._pods_on.get(name, ()))
            after = node_view(node, reports, (pod for pod in pods if pod.holds))
        self.totals.replace(before, after)
        self._periods.update_capacity(name, after)
        if after is None:
            self._views.pop(name, None)
            self.gpu_columns.drop_node(name)
        else:
            self._views[name] = after
            self.gpu_columns.put_node(after)
            if affects_periods(before, after):
                for uid in self._pods_on.get(name, ()):
                    self._periods.update_pod(self.ownership.pods[uid], new=False)
        self.changes.publish(node_changes(name, before, after, self.clock()))

    def _notify_watchers(self, uid: str) -> None:
        for changed in self._workload_watchers:
            changed.add(uid)

    def _refresh_workload(self, uid: str) -> None:
        self._notify_watchers(uid)
        before = self._workloads.pop(uid, None)
        pods = self.ownership.pods_of(uid)
        owner = self.ownership.owners.get(uid)
        if (not pods and owner is None) or self.ownership.root_of(uid) != uid:
            return
        gone = not self.ownership.exists(uid)
        live = self.ownership.live_pods_of(uid)
        reference = None if owner is not None else self.ownership.reference_to(uid)
        past = [pod for pod in pods if self.ownership.is_gone(pod.uid)]
        after = summarise(uid, owner, reference, live, past, gone, self.ownership.queue_entry_of(uid))
        if after.uses_gpus:
            if gone:
                record = WorkloadRecord(after, self.object_tree(uid), self.gpu_models(after.counted))
                self._archive.put(record)
            else:
                self._workloads[uid] = after
            self.changes.publish(workload_changes(before, after, self.clock()))
        if gone and (touched := self.ownership.forget(uid)):
            self._touch_workloads(touched)
