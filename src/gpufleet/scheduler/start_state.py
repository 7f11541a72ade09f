"""Describe the fleet and its queue for estimates of start times, from the scheduler's state.

The order is that of the queue: by priority, then by age, or that of GpuQueues. Members of a gang are one unit.
`start_state` is a generator, so that a server can answer requests between its steps.
"""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpufleet.errors import InvalidRequest
from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.kubernetes.model_labels import with_canonical_models
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.request import WHOLE, Request
from gpufleet.scheduler.planning.queue import foreign_gates, gang_key, priority_of
from gpufleet.scheduler.queues.expected_order import expected_order, queue_of
from gpufleet.scheduler.state import Ledger, request_of
from gpufleet.scheduler.state.holders import uid_of
from gpufleet.scheduler.state.run_times import expected_end, max_runtime, started

_STEP = 200
"""Nodes or pods that are read at a time: a few milliseconds."""

_RUN_NUMBER = re.compile(r"(?:[-._](?=[0-9a-z]*[0-9])[0-9a-z]{1,12})+$")


def workload_stem(name: str) -> str:
    """Return the name of a workload without the numbers of its run: `train-28391040` is a run of `train`."""
    return _RUN_NUMBER.sub("", name) or name


@dataclass
class StartState:
    """The state of the fleet, and which unit each claim and each pod belongs to."""

    fleet: FleetState
    unit_of_claim: dict[tuple[str, str], str] = field(default_factory=dict)
    unit_of_pod: dict[str, str] = field(default_factory=dict)
    """By UID."""
    unit_of_pod_named: dict[tuple[str, str], str] = field(default_factory=dict)
    namespace_of: dict[str, str] = field(default_factory=dict)
    name_of: dict[str, str] = field(default_factory=dict)
    created_of: dict[str, float] = field(default_factory=dict)
    least_uid_of: dict[str, str] = field(default_factory=dict)


@dataclass
class _Unit:
    key: str
    name: str
    pods: list[Pod]
    request: Request

    @property
    def order(self) -> tuple[int, str, str]:
        created = min(str(pod.metadata.creation_timestamp) for pod in self.pods)
        return -min(map(priority_of, self.pods)), created, self.name


def start_state(ledger: Ledger, now: datetime, queues: Iterable[GpuQueue] = ()) -> StartState:
    """Return the state of now; `queues` are all GpuQueues."""
    steps = start_state_steps(ledger, now, queues)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: StartState = done.value
            return found


def start_state_steps(
    ledger: Ledger, now: datetime, queues: Iterable[GpuQueue] = ()
) -> Generator[None, None, StartState]:
    """Return the state of now, in steps of a few milliseconds; the ledger may change between them."""
    names = {name: at for at, name in enumerate(sorted(ledger.cluster.nodes))}
    capacity, free, models = [], [], []
    for at, name in enumerate(names):
        yield from _pause(at)
        size, left, model = _node(ledger, name)
        capacity.append(size)
        free.append(left)
        models.append(model)
    order, namespaces = expected_order(queues)
    units: dict[str, list[tuple[Pod, tuple[int, int]]]] = {}
    for at, (holder, allocation) in enumerate(list(ledger.cluster.allocations.items())):
        yield from _pause(at)
        pod = ledger.pods.get(uid_of(holder))
        if pod is not None and not pod.finished and allocation.node in names and allocation.milli:
            place = names[allocation.node], len(allocation.gpus) * allocation.milli
            units.setdefault(_key(ledger, pod), []).append((pod, place))
    running = []
    for at, held in enumerate(units.values()):
        yield from _pause(at)
        running.append(_running(held, now, namespaces))
    found = yield from _units(ledger)
    by_key = {unit.key: unit for unit in sorted(found, key=lambda unit: unit.order)}
    selected = _SelectedModels(ledger)
    waiting = [_waiting(unit, selected.of(unit), namespaces) for unit in by_key.values()]
    fleet = FleetState(capacity, free, models, running, waiting, order=order)
    state = StartState(replace(fleet, waiting=fleet.in_order()))
    for unit in state.fleet.waiting:
        pods = by_key[unit.key].pods
        created = [pod.metadata.creation_timestamp for pod in pods if pod.metadata.creation_timestamp]
        state.created_of[unit.key] = min(created, default=now).timestamp()
        state.least_uid_of[unit.key] = min(pod.metadata.uid for pod in pods)
        state.namespace_of[unit.key] = pods[0].metadata.namespace
        state.name_of[unit.key] = by_key[unit.key].name
        for pod in pods:
            state.unit_of_pod[pod.metadata.uid] = unit.key
            state.unit_of_pod_named[pod.metadata.namespace, pod.metadata.name] = unit.key
            claim = (pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
            state.unit_of_claim.setdefault(claim, unit.key)
    return state


def _pause(at: int) -> Iterable[None]:
    return (None,) if at % _STEP == _STEP - 1 else ()


def _node(ledger: Ledger, name: str) -> tuple[int, int, str]:
    """Return capacity, free capacity and model of a node."""
    node = ledger.cluster.nodes.get(name)
    if node is None:
        return 0, 0, ""
    usable = {gpu.id for gpu in node.gpus if gpu.usable and not gpu.taken and not gpu.mig}
    open_ = usable if node.ready and not node.cordoned else set[int]()
    left = ledger.cluster.free_milli(name)
    free = sum(max(milli, 0) for gpu, milli in left.items() if gpu in open_)
    return WHOLE * len(open_), free, node.gpus[0].model if node.gpus else ""


def seen_runs(ledger: Ledger, now: datetime) -> Iterable[tuple[Job, float]]:
    """Return the run times of finished units that still exist: the only history where no server has recorded more."""
    units: dict[str, list[tuple[Pod, float, float]]] = {}
    for pod in ledger.pods.values():
        ended = [each.state.terminated for each in pod.status.container_statuses if each.state.terminated]
        claim = ledger.claim_of(pod)
        if not pod.finished or claim is None or pod.status.start_time is None or not ended:
            continue
        try:
            gpus = request_of(claim).gpu_milli / WHOLE
        except InvalidRequest:
            continue
        last = max((each.finished_at for each in ended if each.finished_at), default=None)
        if last is not None:
            seconds = (last - pod.status.start_time).total_seconds()
            units.setdefault(_key(ledger, pod), []).append((pod, gpus, seconds))
    for runs in units.values():
        yield job_of(runs[0][0], sum(gpus for _, gpus, _ in runs), now), max(seconds for *_, seconds in runs)


def job_of(pod: Pod, gpus: float, now: datetime) -> Job:
    """Return what is known about the run time of a pod."""
    meta = pod.metadata
    name = meta.controller.name if meta.controller is not None else meta.name
    service = expected_end(pod, now) is None
    return Job(workload_stem(name), meta.namespace, gpus, max_runtime(pod), service)


def _running(
    held: Sequence[tuple[Pod, tuple[int, int]]], now: datetime, namespaces: Mapping[str, str]
) -> RunningUnit:
    """Return a unit that runs, given as its pods with the GPUs that each has on a node."""
    pods, places = [pod for pod, _ in held], tuple(place for _, place in held)
    elapsed = max(max((now - started(pod, now)).total_seconds() for pod in pods), 0.0)
    job = job_of(pods[0], sum(milli for _, milli in places) / WHOLE, now)
    queue = queue_of(pods[0].metadata.namespace, namespaces)
    return RunningUnit(job, elapsed, places, min(map(priority_of, pods)), queue)


def _key(ledger: Ledger, pod: Pod) -> str:
    """Return the key of the unit that a pod belongs to: its gang, or itself."""
    gang = ledger.gangs.of(pod)
    return pod.metadata.uid if gang is None else gang_key(gang)


def _units(ledger: Ledger) -> Generator[None, None, list[_Unit]]:
    found: dict[str, _Unit] = {}
    for at, pod in enumerate(list(ledger.pods.values())):
        yield from _pause(at)
        claim = ledger.claim_of(pod)
        if claim is None or pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            continue
        try:
            request = request_of(claim)
        except InvalidRequest:
            continue
        gang, key = ledger.gangs.of(pod), _key(ledger, pod)
        name = f"{pod.metadata.namespace}/{pod.metadata.name}" if gang is None else f"gang {gang}"
        unit = found.get(key)
        if unit is None:
            found[key] = _Unit(key, name, [pod], request)
        else:
            unit.pods.append(pod)
    return list(found.values())


class _SelectedModels:
    """The GPU models of the nodes that units select by labels: estimates tell nodes apart by their model only."""

    def __init__(self, ledger: Ledger) -> None:
        self._nodes = [node for node in ledger.cluster.nodes.values() if node.gpus]
        self._all = frozenset(node.gpus[0].model for node in self._nodes)
        self._found: dict[frozenset[tuple[str, str]], frozenset[str]] = {}

    def of(self, unit: _Unit) -> frozenset[str]:
        """Return the models that a unit can get; empty for any."""
        accepted = unit.request.models
        labels = unit.request.match_labels | frozenset(
            with_canonical_models(unit.pods[0].spec.node_selector).items()
        )
        if not labels:
            return accepted
        if labels not in self._found:
            self._found[labels] = frozenset(
                node.gpus[0].model for node in self._nodes if labels <= node.labels.items()
            )
        models = self._found[labels]
        if accepted:
            models = models & accepted
        if models == self._all:
            return frozenset()
        # No node: a name that is not a model matches none.
        return models or frozenset({",".join(f"{key}={value}" for key, value in sorted(labels))})


def _waiting(unit: _Unit, models: frozenset[str], namespaces: Mapping[str, str]) -> WaitingUnit:
    pod, request = unit.pods[0], unit.request
    gates = foreign_gates(pod)
    waits_for = f"scheduling gate {', '.join(gates)}" if gates else ""
    if not request.gpu_milli:
        waits_for = waits_for or "a free MIG instance"
    now = pod.metadata.creation_timestamp
    total = len(unit.pods) * request.gpu_milli / WHOLE
    job = job_of(pod, total, now) if now is not None else Job(gpus=total)
    return WaitingUnit(
        unit.key,
        job,
        request.gpu_milli,
        len(unit.pods),
        models,
        min(map(priority_of, unit.pods)),
        waits_for,
        queue_of(pod.metadata.namespace, namespaces),
    )
