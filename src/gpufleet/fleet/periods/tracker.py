"""Record when pods hold GPUs and when nodes have them.

Nothing is recorded before all sources have listed their objects: a pod that is merely not listed
yet must not look ended. From then on every change is recorded at the moment at which it happens.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpufleet.fleet.node_view import NodeView
from gpufleet.fleet.periods.allocation_periods import AllocationPeriods
from gpufleet.fleet.periods.capacity_periods import CapacityPeriods
from gpufleet.fleet.workloads.ownership import Ownership
from gpufleet.model.gpu_models import UNKNOWN_MODEL, single_model
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.workload import FleetOwner, FleetPod

NEW_NODE = 600.0
"""A node first seen within so many seconds of its creation has had its GPUs since its creation."""

_PER_STEP = 64
Views = Mapping[str, NodeView]


class PeriodTracker:
    """The allocation and capacity periods of one fleet."""

    def __init__(self, ownership: Ownership, views: Views, clock: Callable[[], float]) -> None:
        self.started = False
        """Whether the initial pods and nodes are recorded, too."""
        self.allocation_periods = AllocationPeriods()
        self.capacity_periods = CapacityPeriods()
        self._recording = False
        self._ownership = ownership
        self._views = views
        self._clock = clock
        self._initial_nodes: set[str] = set()
        self._initial_pods: set[str] = set()
        """Initial objects that are not recorded yet."""

    def start(self) -> Iterator[None]:
        """Start recording, initial objects first, in steps.

        An initial object that changes between two steps is recorded by that change.
        """
        self._recording = True
        self._initial_nodes, self._initial_pods = set(self._views), set(self._ownership.pods)
        while self._initial_nodes:
            for name in list(itertools.islice(self._initial_nodes, _PER_STEP)):
                self.update_capacity(name, self._views.get(name))
            yield
        while self._initial_pods:
            for uid in list(itertools.islice(self._initial_pods, _PER_STEP)):
                self._initial_pods.discard(uid)
                pod = self._ownership.pods.get(uid)
                if pod is not None and not self._ownership.is_gone(uid):
                    self.update_pod(pod, new=True)
            yield
        self.started = True

    def update_pod(self, pod: FleetPod, *, new: bool) -> None:
        """Record what the pod holds now."""
        if not self._recording:
            return
        moment = self._clock()
        new = new or pod.uid in self._initial_pods
        self._initial_pods.discard(pod.uid)
        if pod.holds and not self._ownership.is_gone(pod.uid):
            self.allocation_periods.update(pod.uid, self._period(pod, pod.bound or moment), moment)
        elif new and pod.gpus and pod.node and pod.bound and pod.ended:
            # First seen after it ended: it held its GPUs nevertheless.
            self.allocation_periods.update(pod.uid, self._period(pod, pod.bound), moment)
            self._end(pod, pod.ended)
        else:
            self._end(pod, pod.ended or moment)

    def end_pod(self, pod: FleetPod, at: float) -> None:
        """Record that the pod is gone."""
        if not self._recording:
            return
        if pod.uid in self._initial_pods and pod.holds:
            self.allocation_periods.update(pod.uid, self._period(pod, pod.bound or at), at)
        self._initial_pods.discard(pod.uid)
        self._end(pod, pod.ended or at)

    def _end(self, pod: FleetPod, at: float) -> None:
        self.allocation_periods.update(pod.uid, None, at, interrupted=pod.interrupted)

    def update_capacity(self, name: str, view: NodeView | None) -> None:
        """Record how many GPUs the node has now; None if the node is gone."""
        if not self._recording:
            return
        if name in self._initial_nodes:
            self._initial_nodes.discard(name)
            self._update_capacity(name, self._views.get(name), initial=True)
        self._update_capacity(name, view)

    def _update_capacity(self, name: str, view: NodeView | None, *, initial: bool = False) -> None:
        moment = self._clock()
        if view is None or not view.total or not view.node.allocation_known:
            # Without known allocation, hours of capacity would say that all of it was free.
            self.capacity_periods.update(name, None, moment)
            return
        node = view.node
        since_creation = initial or moment - node.created < NEW_NODE
        period = CapacityPeriod(
            node=name,
            gpus=view.total,
            model=view.model or UNKNOWN_MODEL,
            aliases=node.aliases,
            start=min(moment, node.created) if since_creation and node.created else moment,
        )
        self.capacity_periods.update(name, period, moment)

    def _period(self, pod: FleetPod, start: float) -> AllocationPeriod:
        root = self._ownership.root_of(pod.uid)
        owner = self._ownership.owners.get(root)
        named = owner or self._ownership.reference_to(root) or pod
        held = gpus_of(self._views, pod)
        model, models = _period_models(self._views.get(pod.node), pod, held)
        return AllocationPeriod(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=pod.namespace,
            node=pod.node,
            workload_uid=root,
            workload_kind=named.kind,
            workload_name=named.name,
            source=pod.source,
            gpus=pod.gpus,
            share=pod.share,
            model=model,
            held=held,
            models=models,
            labels={**(owner.labels if owner else {}), **pod.labels},
            annotations={**(owner.annotations if owner else {}), **pod.annotations},
            created=pod.created,
            priority=pod.priority,
            max_runtime=pod.max_runtime,
            start=start,
        )


def models_of(views: Views, pods: Iterable[FleetPod]) -> dict[str, int]:
    """Return how many GPUs of each model the pods hold."""
    counts: dict[str, int] = {}
    for pod in pods:
        models, usual = _models(views.get(pod.node), gpus_of(views, pod)[: pod.gpus])
        # Count the rest as one number: a pod may request a billion GPUs, too many to loop over.
        for model, number in (*((model, 1) for model in models), (usual, pod.gpus - len(models))):
            if number:
                counts[model] = counts.get(model, 0) + number
    return dict(sorted(counts.items()))


def gpus_of(views: Views, pod: FleetPod) -> tuple[int, ...]:
    """Return the indices of the GPUs that the pod holds; empty if they are not known."""
    if pod.held:
        return pod.held
    view = views.get(pod.node)
    if view is None:
        return ()
    return tuple(index for index, uids in view.holders.items() if pod.uid in uids)


def owner_facts(owner: FleetOwner) -> tuple[object, ...]:
    """Return what allocation periods record of an owner."""
    return (owner.name, owner.labels, owner.annotations)


def affects_periods(before: NodeView | None, after: NodeView) -> bool:
    """Return whether the pods of a node need new periods: other holders, or a newly known GPU model."""
    if before is None or before.holders != after.holders:
        return True
    if before.gpus == after.gpus:
        return False
    label, renamed = after.node.gpu_model, after.node.gpu_model != before.node.gpu_model
    known = {gpu.index: gpu.model for gpu in before.gpus}
    # Without its exporter a GPU falls back to the node label's model: that is not a new model, unless the label is.
    return any(
        gpu.model
        and gpu.model != known.get(gpu.index)
        and not (known.get(gpu.index) and gpu.model == label and not renamed)
        for gpu in after.gpus
    )


def _period_models(
    view: NodeView | None, pod: FleetPod, held: tuple[int, ...]
) -> tuple[str, tuple[str, ...]]:
    """Return the model of a pod's GPUs, and the model of each held GPU if they differ."""
    models, usual = _models(view, held)
    if not models:
        return usual, ()
    single = single_model(models)
    if single and (single == usual or len(held) >= pod.gpus):
        return single, ()
    return usual, models


def _models(view: NodeView | None, held: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """Return the models of these GPUs of a node, and the model of GPUs without a known index."""
    by_index = {gpu.index: gpu.model for gpu in view.gpus} if view else {}
    usual = (view.model if view else "") or UNKNOWN_MODEL
    return tuple(by_index.get(index) or usual for index in held), usual
