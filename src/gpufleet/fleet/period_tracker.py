"""What the books are told of a fleet: who holds which GPUs since when, which node has how many.

Nothing is told before all sources have said what there is, so that a pod which is merely not
listed yet doesn't end. From then on every change is told at the moment at which it happens.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpufleet.fleet.allocation_periods import AllocationPeriods
from gpufleet.fleet.capacity_periods import CapacityPeriods
from gpufleet.fleet.node_view import NodeView
from gpufleet.fleet.ownership import Ownership
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.workload import FleetOwner, FleetPod

NEW_NODE = 600.0
"""A node that is seen within so many seconds of its creation has had its GPUs from the beginning."""

_A_STEP = 64
Views = Mapping[str, NodeView]


class PeriodTracker:
    """Keeps the ledgers of one fleet, over its ownership and the views of its nodes."""

    def __init__(self, ownership: Ownership, views: Views, clock: Callable[[], float]) -> None:
        self.on = False
        """Whether changes are told."""
        self.begun = False
        """Whether all that there was at the beginning is told as well."""
        self.allocation_periods = AllocationPeriods()
        self.capacity_periods = CapacityPeriods()
        self._ownership = ownership
        self._views = views
        self._clock = clock
        self._nodes_before: set[str] = set()
        self._pods_before: set[str] = set()
        """What was there at the beginning and is not told yet."""

    def begin(self) -> Iterator[None]:
        """All sources have told what there is: from now on periods are written.

        In steps; what changes between two of them is told at once, by whoever changes it.
        """
        self.on = True
        self._nodes_before, self._pods_before = set(self._views), set(self._ownership.pods)
        while self._nodes_before:
            for name in list(itertools.islice(self._nodes_before, _A_STEP)):
                self.note_capacity(name, self._views.get(name))
            yield
        while self._pods_before:
            for uid in list(itertools.islice(self._pods_before, _A_STEP)):
                self._pods_before.discard(uid)
                pod = self._ownership.pods.get(uid)
                if pod is not None and not self._ownership.is_gone(uid):
                    self.note(pod, new=True)
            yield
        self.begun = True

    def note(self, pod: FleetPod, *, new: bool) -> None:
        """Something about a pod may have changed."""
        if not self.on:
            return
        moment = self._clock()
        new = new or pod.uid in self._pods_before
        self._pods_before.discard(pod.uid)
        if pod.holds and not self._ownership.is_gone(pod.uid):
            self.allocation_periods.note(pod.uid, self._holding(pod, pod.bound or moment), moment)
        elif new and pod.gpus and pod.node and pod.bound and pod.ended:
            # First seen when it was over: it held its GPUs all the same.
            self.allocation_periods.note(pod.uid, self._holding(pod, pod.bound), moment)
            self.allocation_periods.note(pod.uid, None, pod.ended)
        else:
            self.allocation_periods.note(pod.uid, None, pod.ended or moment)

    def note_end(self, pod: FleetPod, at: float) -> None:
        """A pod is gone."""
        if not self.on:
            return
        if pod.uid in self._pods_before and pod.holds:
            self.allocation_periods.note(pod.uid, self._holding(pod, pod.bound or at), at)
        self._pods_before.discard(pod.uid)
        self.allocation_periods.note(pod.uid, None, pod.ended or at)

    def note_capacity(self, name: str, view: NodeView | None) -> None:
        """A node has as many GPUs as its view says, or is gone."""
        if not self.on:
            return
        if name in self._nodes_before:
            self._nodes_before.discard(name)
            self._note_capacity(name, self._views.get(name), from_the_beginning=True)
        self._note_capacity(name, view)

    def _note_capacity(self, name: str, view: NodeView | None, *, from_the_beginning: bool = False) -> None:
        moment = self._clock()
        if view is None or not view.total:
            self.capacity_periods.note(name, None, moment)
            return
        node = view.node
        known = from_the_beginning or moment - node.created < NEW_NODE
        model = node.gpu_model or _only(gpu.model for gpu in view.gpus) or "unknown"
        period = CapacityPeriod(
            node=name,
            gpus=view.total,
            model=model.replace(" ", "_"),
            aliases=node.aliases,
            start=min(moment, node.created) if known and node.created else moment,
        )
        self.capacity_periods.note(name, period, moment)

    def _holding(self, pod: FleetPod, start: float) -> AllocationPeriod:
        root = self._ownership.root_of(pod.uid)
        owner = self._ownership.owners.get(root)
        reference = self._ownership.reference_to(root)
        held = gpus_of(self._views, pod)
        model, models = _models(self._views.get(pod.node), pod, held)
        return AllocationPeriod(
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
            model=model,
            held=held,
            models=models,
            labels={**(owner.labels if owner else {}), **pod.labels},
            annotations={**(owner.annotations if owner else {}), **pod.annotations},
            start=start,
        )


def models_of(views: Views, pods: Iterable[FleetPod]) -> dict[str, int]:
    """How many GPUs of each model the pods hold."""
    counts: dict[str, int] = {}
    for pod in pods:
        view = views.get(pod.node)
        named, usual = _named_models(view, gpus_of(views, pod)[: pod.gpus])
        # The rest as one number: a pod may ask for a billion GPUs, and a walk over them would stop everything.
        for model, number in (*((model, 1) for model in named), (usual, pod.gpus - len(named))):
            if number:
                counts[model] = counts.get(model, 0) + number
    return dict(sorted(counts.items()))


def _models(view: NodeView | None, pod: FleetPod, held: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """The model of the GPUs that a pod holds; where they are of several, that of each GPU that is named as well."""
    named, usual = _named_models(view, held)
    if not named:
        return usual, ()
    only = _only(named)
    if only and (only == usual or len(held) >= pod.gpus):
        return only, ()
    return usual, named


def _named_models(view: NodeView | None, held: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """The models of these GPUs of a node, and that of GPUs of which nobody says which they are."""
    by_index = {gpu.index: gpu.model for gpu in view.gpus} if view else {}
    usual = (view.node.gpu_model if view else "") or _only(by_index.values()) or "unknown"
    named = tuple((by_index.get(index) or usual).replace(" ", "_") for index in held)
    return named, usual.replace(" ", "_")


def gpus_of(views: Views, pod: FleetPod) -> tuple[int, ...]:
    """Which GPUs of its node the pod holds; empty where nobody knows."""
    if pod.held:
        return pod.held
    view = views.get(pod.node)
    if view is None:
        return ()
    return tuple(index for index, uids in view.holders.items() if pod.uid in uids)


def billed(owner: FleetOwner) -> tuple[object, ...]:
    """What a holding period says of an owner."""
    return (owner.parent, owner.name, owner.labels, owner.annotations)


def to_bill_again(before: NodeView | None, after: NodeView) -> bool:
    """Whether what is written of a node's pods may have changed: who holds its GPUs, or that a model is known."""
    if before is None or before.holders != after.holders:
        return True
    if before.gpus == after.gpus:
        return False
    label = after.node.gpu_model
    known = {gpu.index: gpu.model for gpu in before.gpus}
    # An exporter that is away leaves the label's model: that is no news of a GPU whose model was known.
    return any(
        gpu.model and gpu.model != known.get(gpu.index) and not (known.get(gpu.index) and gpu.model == label)
        for gpu in after.gpus
    )


def _only(names: Iterable[str]) -> str:
    distinct = {name for name in names if name}
    return distinct.pop() if len(distinct) == 1 else ""
