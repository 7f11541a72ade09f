"""The live picture of one cluster.

Sources put and drop nodes, devices, owners, pods, leases and readings; the picture works out
who holds which GPU, how workloads are doing, and what changed. Putting is cheap: it marks what
it touches. `refresh` then looks again at the marked nodes and workloads alone, each by a pure
function (`look`, `summarise`), and every question refreshes first. Everything happens on one
thread; a question sees all changes or none.

The ledger of holding periods (`billing`) is the exception to laziness: it is written at the moment of
each change, since a pod that lives for seconds must be billed for seconds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from gpufleet.fleet.archive import KEPT_ENDED, Archive, WorkloadRecord
from gpufleet.fleet.changes import Changes, node_changes, workload_changes
from gpufleet.fleet.gpu_columns import GpuColumns
from gpufleet.fleet.hierarchy import ObjectTree, object_tree
from gpufleet.fleet.node_view import GpuReports, NodeView, look
from gpufleet.fleet.ownership import Ownership
from gpufleet.fleet.period_tracker import PeriodTracker, billed, gpus_of, models_of, to_bill_again
from gpufleet.fleet.reading_facts import ROWS_A_STEP, discovered, holders
from gpufleet.fleet.totals import Totals
from gpufleet.fleet.workload_summary import Workload, summarise
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuUser, Readings
from gpufleet.model.workload import FleetOwner, FleetPod

T = TypeVar("T")
_NODES_A_STEP = 16
_WORKLOADS_A_STEP = 64


class Fleet:
    """Nodes, GPUs, pods and workloads of one cluster as they are now."""

    def __init__(
        self,
        cluster: str,
        *,
        clock: Callable[[], float] = time.time,
        simulated: bool = False,
        keep_ended: int = KEPT_ENDED,
    ) -> None:
        self.cluster = cluster
        self.simulated = simulated
        self.ownership = Ownership()
        self.gpu_columns = GpuColumns()
        self.changes = Changes()
        self.totals = Totals()
        self.version = 0
        """Grows with every change, so that an answer made at one version can be kept for it."""
        self._clock = clock
        self._nodes: dict[str, FleetNode] = {}
        self._aliases: dict[str, str] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._described: frozenset[str] = frozenset()
        self._discovered: dict[str, tuple[FleetGpu, ...]] = {}
        self._leases: dict[str, Mapping[int, tuple[str, ...]]] = {}
        self._exporter: dict[str, Mapping[int, tuple[str, ...]]] = {}
        self._pods_on: dict[str, dict[str, None]] = {}
        self._views: dict[str, NodeView] = {}
        self._workloads: dict[str, Workload] = {}
        self._archive = Archive(keep_ended, self._tell_followers)
        self._periods = PeriodTracker(self.ownership, self._views, clock)
        self.allocation_periods = self._periods.allocation_periods
        self.capacity_periods = self._periods.capacity_periods
        self._followers: list[set[str]] = []
        self._dirty_nodes: set[str] = set()
        self._dirty_workloads: set[str] = set()

    # What sources say

    def put_node(self, node: FleetNode) -> None:
        """Add or replace a node."""
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if before is not None and before.aliases != node.aliases:
            self._name_anew()
        for alias in node.aliases:
            self._aliases[alias] = node.name
        self._touch_node(node.name)

    def drop_node(self, name: str) -> None:
        """A node left the cluster."""
        if self._nodes.pop(name, None) is not None:
            self._name_anew()
            self._touch_node(name)

    def put_devices(self, devices: NodeDevices) -> None:
        """Add or replace what was seen of a node's GPUs one by one."""
        self._devices[devices.node] = devices
        self._touch_node(devices.node)

    def drop_devices(self, node: str) -> None:
        """Nobody looks at the node's GPUs any more."""
        if self._devices.pop(node, None) is not None:
            self._touch_node(node)

    def put_leases(self, node: str, holders: Mapping[int, tuple[str, ...]]) -> None:
        """Replace who holds which GPU of a node by the scheduler's leases."""
        if holders:
            self._leases[node] = holders
        else:
            self._leases.pop(node, None)
        self._touch_node(node)

    def put_owner(self, owner: FleetOwner) -> None:
        """Add or replace an object above pods."""
        before = self.ownership.owners.get(owner.uid)
        touched = self.ownership.put_owner(owner)
        self._touch_workloads(touched)
        if before is None or billed(before) != billed(owner):
            for root in touched:
                for pod in self.ownership.live_pods_of(root):
                    self._periods.note(pod, new=False)

    def drop_owner(self, uid: str) -> None:
        """An object above pods was deleted."""
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
        self._periods.note(pod, new=before is None or self.ownership.is_gone(pod.uid))

    def drop_pod(self, uid: str, at: float | None = None) -> None:
        """A pod was deleted."""
        pod = self.ownership.pods.get(uid)
        if pod is None or self.ownership.is_gone(uid):
            return
        moment = self._clock() if at is None else at
        self._touch_workloads(self.ownership.drop_pod(uid, moment))
        self._leave_node(pod)
        self._periods.note_end(pod, moment)

    def put_readings(self, readings: Readings) -> None:
        """Take over new readings, the GPUs that only they know, and the holders that they name."""
        for _ in self.put_readings_steps(readings):
            pass

    def put_readings_steps(self, readings: Readings) -> Iterator[None]:
        """`put_readings` in steps of a few milliseconds; between two of them questions may be asked.

        The numbers change in the last step, all at once.
        """
        last = self.gpu_columns.readings
        described = self._described != self._devices.keys()
        if readings.gpus is not last.gpus or readings.faults != last.faults or described:
            self._described = frozenset(self._devices)
            said = yield from discovered(readings, self.node_name, self._described, dict(self._discovered))
            yield from self._replace(self._discovered, said)
        named = yield from holders(readings, self.node_name, self._uid_of)
        yield from self._replace(self._exporter, named)
        yield from self.refresh_steps()
        self.refresh()
        yield from self.gpu_columns.take(readings, self._aliases)
        self.version += 1

    def start_accounting(self) -> None:
        """All sources have told what there is: from now on holding periods are written."""
        for _ in self.start_accounting_steps():
            pass

    def start_accounting_steps(self) -> Iterator[None]:
        """`start_accounting` in steps of a few milliseconds; between two of them anything may change."""
        yield from self.refresh_steps()
        self.refresh()
        yield from self._periods.begin()

    @property
    def accounting_started(self) -> bool:
        """Whether holding periods are written, of all that there is."""
        return self._periods.begun

    # What it makes of that

    def refresh(self) -> None:
        """Look again at what was touched."""
        if self._dirty_nodes or self._dirty_workloads:
            for _ in self.refresh_steps():
                pass

    def refresh_steps(self) -> Iterator[None]:
        """`refresh` in steps of a few milliseconds; between two of them questions may be asked."""
        while self._dirty_nodes:
            for _ in range(min(_NODES_A_STEP, len(self._dirty_nodes))):
                self._look_at(self._dirty_nodes.pop())
            yield
        while self._dirty_workloads:
            for _ in range(min(_WORKLOADS_A_STEP, len(self._dirty_workloads))):
                self._sum_up(self._dirty_workloads.pop())
            yield

    def node_name(self, name: str) -> str:
        """The node that goes by this name; the name itself if none does."""
        return name if name in self._nodes else self._aliases.get(name, name)

    def views(self) -> Mapping[str, NodeView]:
        """Every node by name."""
        self.refresh()
        return self._views

    def workloads(self) -> Mapping[str, Workload]:
        """Every GPU workload that is there, by uid."""
        self.refresh()
        return self._workloads

    def ended(self) -> Mapping[str, WorkloadRecord]:
        """GPU workloads that are gone from their source, the oldest first."""
        self.refresh()
        return self._archive.records

    def restore_ended(self, ended: Iterable[WorkloadRecord]) -> None:
        """Take ended workloads over from an earlier life, the oldest first."""
        self._archive.remember(ended)
        self.version += 1

    def watch_workloads(self) -> set[str]:
        """A set that gets the uid of every workload that changes; it begins with all there are."""
        self.refresh()
        changed = {*self._workloads, *self._archive.records}
        self._followers.append(changed)
        return changed

    def drain_ended(self) -> list[WorkloadRecord]:
        """The workloads that went since the last call."""
        self.refresh()
        return self._archive.drain()

    def requeue_ended(self, ended: Iterable[WorkloadRecord]) -> None:
        """Give back what was drained and could not be stored."""
        self._archive.undrain(ended)

    def tree(self, uid: str) -> ObjectTree:
        """An object with everything that it controls, ordered by kind and name."""
        return object_tree(self.ownership, uid)

    def models(self, pods: Iterable[FleetPod]) -> dict[str, int]:
        """How many GPUs of each model the pods hold."""
        return models_of(self._views, pods)

    def gpus_of(self, pod: FleetPod) -> tuple[int, ...]:
        """Which GPUs of its node the pod holds; empty where nobody knows."""
        return gpus_of(self._views, pod)

    def _replace(self, mine: dict[str, T], said: Mapping[str, T]) -> Iterator[None]:
        for number, node in enumerate(mine.keys() | said.keys()):
            if number % ROWS_A_STEP == 0:
                yield
            new = said.get(node)
            if mine.get(node) == new:
                continue
            self._touch_node(node)
            if new is None:
                del mine[node]
            else:
                mine[node] = new

    def _uid_of(self, holder: GpuUser, node: str) -> str | None:
        if holder.pod_uid:
            return holder.pod_uid if holder.pod_uid in self.ownership.pods else None
        if holder.pod:
            return self.ownership.uid_of(holder.namespace, holder.pod)
        return self.ownership.uid_of_job(node, holder.job)

    def _name_anew(self) -> None:
        # An address goes from one node to the next, which may be there before the first is gone.
        self._aliases = {alias: node.name for node in self._nodes.values() for alias in node.aliases}

    def _touch_node(self, name: str) -> None:
        self.version += 1
        self._dirty_nodes.add(name)

    def _touch_workloads(self, uids: set[str]) -> None:
        self.version += 1
        self._dirty_workloads |= uids

    def _leave_node(self, pod: FleetPod) -> None:
        pods = self._pods_on.get(pod.node)
        if pods is not None:
            pods.pop(pod.uid, None)
            if not pods:
                del self._pods_on[pod.node]
            self._touch_node(pod.node)

    def _look_at(self, name: str) -> None:
        before, node = self._views.get(name), self._nodes.get(name)
        after = None
        if node is not None:
            evidence = GpuReports(
                devices=self._devices.get(name),
                discovered=self._discovered.get(name, ()),
                leases=self._leases.get(name, {}),
                exporter=self._exporter.get(name, {}),
            )
            pods = (self.ownership.pods[uid] for uid in self._pods_on.get(name, ()))
            after = look(node, evidence, (pod for pod in pods if pod.holds))
        self.totals.replace(before, after)
        self._periods.note_capacity(name, after)
        if after is None:
            self._views.pop(name, None)
            self.gpu_columns.drop(name)
        else:
            self._views[name] = after
            self.gpu_columns.put(after)
            if to_bill_again(before, after):
                for uid in self._pods_on.get(name, ()):
                    self._periods.note(self.ownership.pods[uid], new=False)
        self.changes.tell(node_changes(name, before, after, self._clock()))

    def _tell_followers(self, uid: str) -> None:
        for changed in self._followers:
            changed.add(uid)

    def _sum_up(self, uid: str) -> None:
        self._tell_followers(uid)
        before = self._workloads.pop(uid, None)
        everyone = self.ownership.pods_of(uid)
        owner = self.ownership.owners.get(uid)
        if not everyone and owner is None:
            return
        gone = not self.ownership.lives(uid)
        live = self.ownership.live_pods_of(uid)
        reference = None if owner is not None else self.ownership.reference_to(uid)
        past = [pod for pod in everyone if self.ownership.is_gone(pod.uid)]
        after = summarise(uid, owner, reference, live, past, gone)
        if after.asks_for_gpus:
            if gone:
                self._archive.put(WorkloadRecord(after, self.tree(uid), self.models(after.counted)))
            else:
                self._workloads[uid] = after
            self.changes.tell(workload_changes(before, after, self._clock()))
        if gone:
            self.ownership.forget(uid)
