"""The live picture of one cluster.

Sources put and drop nodes, devices, owners, pods, leases and readings; the picture works out
who holds which GPU, how workloads are doing, and what changed. Putting is cheap: it marks what
it touches. `refresh` then looks again at the marked nodes and workloads alone, each by a pure
function (`look`, `summarise`), and every question refreshes first. Everything happens on one
thread; a question sees all changes or none.

The ledger of holding periods is the exception to laziness: it is written at the moment of each
change, since a pod that lives for seconds must be billed for seconds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from gpufleet.fleet.board import Board
from gpufleet.fleet.capacity_ledger import CapacityLedger
from gpufleet.fleet.changes import Changes, node_changes, workload_changes
from gpufleet.fleet.family import Family
from gpufleet.fleet.ledger import Ledger
from gpufleet.fleet.node_view import Evidence, NodeView, look
from gpufleet.fleet.reading_facts import ROWS_A_STEP, discovered, holders
from gpufleet.fleet.summary import Workload, summarise
from gpufleet.fleet.totals import Totals
from gpufleet.model.holding import Capacity, Holding
from gpufleet.model.node import Gpu, Node, NodeDevices
from gpufleet.model.reading import Holder, Readings
from gpufleet.model.workload import Owner, Pod

T = TypeVar("T")
_NODES_A_STEP = 16

NEW_NODE = 600.0
"""A node that is seen within so many seconds of its creation has had its GPUs from the beginning."""

KEPT_ENDED = 20_000
"""Ended workloads that are remembered for lists; all of them are in the store."""


class Branch(NamedTuple):
    """An object and what it controls."""

    uid: str
    kind: str
    name: str
    namespace: str
    children: tuple["Branch", ...]


class Ended(NamedTuple):
    """A workload that is gone from its source, as it was last."""

    workload: Workload
    tree: Branch
    models: dict[str, int]


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
        self.family = Family()
        self.board = Board()
        self.ledger = Ledger()
        self.capacities = CapacityLedger()
        self.changes = Changes()
        self.totals = Totals()
        self.version = 0
        """Grows with every change, so that an answer made at one version can be kept for it."""
        self._clock = clock
        self._keep_ended = keep_ended
        self._billing = False
        self._nodes: dict[str, Node] = {}
        self._aliases: dict[str, str] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._described: frozenset[str] = frozenset()
        self._discovered: dict[str, tuple[Gpu, ...]] = {}
        self._leases: dict[str, Mapping[int, tuple[str, ...]]] = {}
        self._exporter: dict[str, Mapping[int, tuple[str, ...]]] = {}
        self._pods_on: dict[str, dict[str, None]] = {}
        self._views: dict[str, NodeView] = {}
        self._workloads: dict[str, Workload] = {}
        self._ended: dict[str, Ended] = {}
        self._just_ended: list[Ended] = []
        self._followers: list[set[str]] = []
        self._dirty_nodes: set[str] = set()
        self._dirty_workloads: set[str] = set()

    # What sources say

    def put_node(self, node: Node) -> None:
        """Add or replace a node."""
        self._nodes[node.name] = node
        for alias in node.aliases:
            self._aliases[alias] = node.name
        self._touch_node(node.name)

    def drop_node(self, name: str) -> None:
        """A node left the cluster."""
        if self._nodes.pop(name, None) is not None:
            self._aliases = {alias: node for alias, node in self._aliases.items() if node != name}
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

    def put_owner(self, owner: Owner) -> None:
        """Add or replace an object above pods."""
        before = self.family.owners.get(owner.uid)
        touched = self.family.put_owner(owner)
        self._touch_workloads(touched)
        if before is None or _billed(before) != _billed(owner):
            for root in touched:
                for pod in self.family.live_pods_of(root):
                    self._note(pod, new=False)

    def drop_owner(self, uid: str) -> None:
        """An object above pods was deleted."""
        self._touch_workloads(self.family.drop_owner(uid))

    def put_pod(self, pod: Pod) -> None:
        """Add or replace a pod."""
        before = self.family.pods.get(pod.uid)
        if before is not None and before.node != pod.node:
            self._leave_node(before)
        self._touch_workloads(self.family.put_pod(pod))
        if pod.node:
            self._pods_on.setdefault(pod.node, {})[pod.uid] = None
            self._touch_node(pod.node)
        self._note(pod, new=before is None or self.family.is_gone(pod.uid))

    def drop_pod(self, uid: str, at: float | None = None) -> None:
        """A pod was deleted."""
        pod = self.family.pods.get(uid)
        if pod is None or self.family.is_gone(uid):
            return
        moment = self._clock() if at is None else at
        self._touch_workloads(self.family.drop_pod(uid, moment))
        self._leave_node(pod)
        if self._billing:
            self.ledger.note(uid, None, pod.ended or moment)

    def put_readings(self, readings: Readings) -> None:
        """Take over new readings, the GPUs that only they know, and the holders that they name."""
        for _ in self.take_readings(readings):
            pass

    def take_readings(self, readings: Readings) -> Iterator[None]:
        """`put_readings` in steps of a few milliseconds; between two of them questions may be asked.

        The numbers change in the last step, all at once.
        """
        last = self.board.readings
        described = self._described != self._devices.keys()
        if readings.gpus is not last.gpus or readings.faults != last.faults or described:
            self._described = frozenset(self._devices)
            said = yield from discovered(readings, self.node_name, self._described, dict(self._discovered))
            yield from self._replace(self._discovered, said)
        named = yield from holders(readings, self.node_name, self._uid_of)
        yield from self._replace(self._exporter, named)
        while self._dirty_nodes:
            for _ in range(min(_NODES_A_STEP, len(self._dirty_nodes))):
                self._look_at(self._dirty_nodes.pop())
            yield
        self.refresh()
        yield from self.board.take(readings, self._aliases)
        self.version += 1

    def begin_billing(self) -> None:
        """All sources have told what there is: from now on holding periods are written."""
        self.refresh()
        self._billing = True
        for view in self._views.values():
            self._note_capacity(view.node.name, view, since=view.node.created)
        for pod in self.family.pods.values():
            if not self.family.is_gone(pod.uid):
                self._note(pod, new=True)

    @property
    def billing(self) -> bool:
        """Whether holding periods are written."""
        return self._billing

    # What it makes of that

    def refresh(self) -> None:
        """Look again at what was touched."""
        nodes, self._dirty_nodes = self._dirty_nodes, set()
        for name in nodes:
            self._look_at(name)
        workloads, self._dirty_workloads = self._dirty_workloads, set()
        for uid in workloads:
            self._sum_up(uid)

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

    def ended(self) -> Mapping[str, Ended]:
        """GPU workloads that are gone from their source, the oldest first."""
        self.refresh()
        return self._ended

    def remember(self, ended: Iterable[Ended]) -> None:
        """Take ended workloads over from an earlier life, the oldest first."""
        for record in ended:
            self._ended.setdefault(record.workload.uid, record)
            self._tell_followers(record.workload.uid)
        self.version += 1

    def follow_workloads(self) -> set[str]:
        """A set that gets the uid of every workload that changes; it begins with all there are."""
        self.refresh()
        changed = {*self._workloads, *self._ended}
        self._followers.append(changed)
        return changed

    def drain_ended(self) -> list[Ended]:
        """The workloads that went since the last call."""
        self.refresh()
        ended, self._just_ended = self._just_ended, []
        return ended

    def undrain(self, ended: Iterable[Ended]) -> None:
        """Give back what was drained and could not be stored."""
        self._just_ended[:0] = ended

    def tree(self, uid: str) -> Branch:
        """An object with everything that it controls, ordered by kind and name."""
        return self._branch(uid, frozenset())

    def models(self, pods: Iterable[Pod]) -> dict[str, int]:
        """How many GPUs of each model the pods hold."""
        counts: dict[str, int] = {}
        for pod in pods:
            view = self._views.get(pod.node)
            held = self.gpus_of(pod)
            by_index = {gpu.index: gpu.model for gpu in view.gpus} if view else {}
            for number in range(pod.gpus):
                model = by_index.get(held[number], "") if number < len(held) else ""
                name = (
                    model or (view.node.gpu_model if view else "") or _only(by_index.values()) or "unknown"
                ).replace(" ", "_")
                counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items()))

    def gpus_of(self, pod: Pod) -> tuple[int, ...]:
        """Which GPUs of its node the pod holds; empty where nobody knows."""
        if pod.held:
            return pod.held
        view = self._views.get(pod.node)
        if view is None:
            return ()
        return tuple(index for index, uids in view.holders.items() if pod.uid in uids)

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

    def _uid_of(self, holder: Holder, node: str) -> str | None:
        if holder.pod_uid:
            return holder.pod_uid if holder.pod_uid in self.family.pods else None
        if holder.pod:
            return self.family.uid_of(holder.namespace, holder.pod)
        return self.family.uid_of_job(node, holder.job)

    def _touch_node(self, name: str) -> None:
        self.version += 1
        self._dirty_nodes.add(name)

    def _touch_workloads(self, uids: set[str]) -> None:
        self.version += 1
        self._dirty_workloads |= uids

    def _leave_node(self, pod: Pod) -> None:
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
            evidence = Evidence(
                devices=self._devices.get(name),
                discovered=self._discovered.get(name, ()),
                leases=self._leases.get(name, {}),
                exporter=self._exporter.get(name, {}),
            )
            pods = (self.family.pods[uid] for uid in self._pods_on.get(name, ()))
            after = look(node, evidence, (pod for pod in pods if pod.holds))
        self.totals.replace(before, after)
        if self._billing:
            self._note_capacity(name, after, since=0.0)
        if after is None:
            self._views.pop(name, None)
            self.board.drop(name)
        else:
            self._views[name] = after
            self.board.put(after)
            if before is None or before.holders != after.holders:
                for uid in self._pods_on.get(name, ()):
                    self._note(self.family.pods[uid], new=False)
        self.changes.tell(node_changes(name, before, after, self._clock()))

    def _note_capacity(self, name: str, view: NodeView | None, since: float) -> None:
        moment = self._clock()
        if view is None or not view.total:
            self.capacities.note(name, None, moment)
            return
        node = view.node
        new = bool(node.created) and moment - node.created < NEW_NODE
        model = node.gpu_model or _only(gpu.model for gpu in view.gpus) or "unknown"
        period = Capacity(
            node=name,
            gpus=view.total,
            model=model.replace(" ", "_"),
            aliases=node.aliases,
            start=min(moment, since or (node.created if new else moment)),
        )
        self.capacities.note(name, period, moment)

    def _tell_followers(self, uid: str) -> None:
        for changed in self._followers:
            changed.add(uid)

    def _sum_up(self, uid: str) -> None:
        self._tell_followers(uid)
        before = self._workloads.pop(uid, None)
        everyone = self.family.pods_of(uid)
        owner = self.family.owners.get(uid)
        if not everyone and owner is None:
            return
        gone = not self.family.lives(uid)
        live = self.family.live_pods_of(uid)
        reference = None if owner is not None else self.family.reference_to(uid)
        past = [pod for pod in everyone if self.family.is_gone(pod.uid)]
        after = summarise(uid, owner, reference, live, past, gone)
        if after.asks_for_gpus:
            if gone:
                self._archive(after)
            else:
                self._workloads[uid] = after
            self.changes.tell(workload_changes(before, after, self._clock()))
        if gone:
            self.family.forget(uid)

    def _archive(self, workload: Workload) -> None:
        record = Ended(workload, self.tree(workload.uid), self.models(workload.counted))
        self._ended.pop(workload.uid, None)
        self._ended[workload.uid] = record
        self._just_ended.append(record)
        while len(self._ended) > self._keep_ended:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._tell_followers(oldest)

    def _branch(self, uid: str, above: frozenset[str]) -> Branch:
        children = [
            self._branch(child, above | {uid})
            for child in self.family.children_of(uid)
            if child not in above and child != uid
        ]
        ordered = tuple(sorted(children, key=lambda b: (b.kind, b.name, b.uid)))
        found = self.family.pods.get(uid) or self.family.owners.get(uid)
        if found is not None:
            return Branch(uid, found.kind, found.name, found.namespace, ordered)
        reference = self.family.reference_to(uid)
        namespace = ordered[0].namespace if ordered else ""
        if reference is None:
            return Branch(uid, "", uid, namespace, ordered)
        return Branch(uid, reference.kind, reference.name, namespace, ordered)

    def _note(self, pod: Pod, *, new: bool) -> None:
        if not self._billing:
            return
        moment = self._clock()
        if pod.holds and not self.family.is_gone(pod.uid):
            self.ledger.note(pod.uid, self._holding(pod, pod.bound or moment), moment)
        elif new and pod.gpus and pod.node and pod.bound and pod.ended:
            # First seen when it was over: it held its GPUs all the same.
            self.ledger.note(pod.uid, self._holding(pod, pod.bound), moment)
            self.ledger.note(pod.uid, None, pod.ended)
        else:
            self.ledger.note(pod.uid, None, pod.ended or moment)

    def _holding(self, pod: Pod, start: float) -> Holding:
        root = self.family.root_of(pod.uid)
        owner = self.family.owners.get(root)
        reference = self.family.reference_to(root)
        models = self.models([pod])
        return Holding(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=pod.namespace,
            node=pod.node,
            workload_uid=root,
            workload_kind=owner.kind if owner else reference.kind if reference else pod.kind,
            workload_name=owner.name if owner else reference.name if reference else pod.name,
            source=pod.source,
            gpus=pod.gpus,
            share=pod.share,
            model=next(iter(models), "unknown"),
            held=self.gpus_of(pod),
            labels={**(owner.labels if owner else {}), **pod.labels},
            annotations={**(owner.annotations if owner else {}), **pod.annotations},
            start=start,
        )


def _billed(owner: Owner) -> tuple[object, ...]:
    """What a holding period says of an owner."""
    return (owner.parent, owner.name, owner.labels, owner.annotations)


def _only(names: Iterable[str]) -> str:
    distinct = {name for name in names if name}
    return distinct.pop() if len(distinct) == 1 else ""
