"""Describe the fleet and its queue for estimates of start times, from the scheduler's state.

The order is that of the queue: by priority, then by age. Members of a gang are one unit.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gpufleet.errors import InvalidRequest
from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.request import WHOLE, Request
from gpufleet.scheduler.planning.queue import foreign_gates, gang_key, priority_of
from gpufleet.scheduler.state import Ledger, request_of
from gpufleet.scheduler.state.holders import uid_of
from gpufleet.scheduler.state.run_times import expected_end, max_runtime, started

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
    namespace_of: dict[str, str] = field(default_factory=dict)
    name_of: dict[str, str] = field(default_factory=dict)


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


def start_state(ledger: Ledger, now: datetime) -> StartState:
    """Return the state of now."""
    names = {name: at for at, name in enumerate(sorted(ledger.cluster.nodes))}
    capacity, free, models = [], [], []
    for name in names:
        node = ledger.cluster.nodes[name]
        usable = {gpu.id for gpu in node.gpus if gpu.usable and not gpu.taken and not gpu.mig}
        open_ = usable if node.ready and not node.cordoned else set[int]()
        capacity.append(WHOLE * len(open_))
        left = ledger.cluster.free_milli(name)
        free.append(sum(max(milli, 0) for gpu, milli in left.items() if gpu in open_))
        models.append(node.gpus[0].model if node.gpus else "")
    units = sorted(_units(ledger), key=lambda unit: unit.order)
    waiting = [_waiting(unit) for unit in units]
    state = StartState(FleetState(capacity, free, models, list(_running(ledger, names, now)), waiting))
    for unit in units:
        state.namespace_of[unit.key] = unit.pods[0].metadata.namespace
        state.name_of[unit.key] = unit.name
        for pod in unit.pods:
            state.unit_of_pod[pod.metadata.uid] = unit.key
            claim = (pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
            state.unit_of_claim.setdefault(claim, unit.key)
    return state


def seen_runs(ledger: Ledger, now: datetime) -> Iterable[tuple[Job, float]]:
    """Return the run times of finished pods that still exist: the only history where no server has recorded more."""
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
            yield job_of(pod, gpus, now), (last - pod.status.start_time).total_seconds()


def job_of(pod: Pod, gpus: float, now: datetime) -> Job:
    """Return what is known about the run time of a pod."""
    meta = pod.metadata
    name = meta.controller.name if meta.controller is not None else meta.name
    service = expected_end(pod, now) is None
    return Job(workload_stem(name), meta.namespace, gpus, max_runtime(pod), service)


def _running(ledger: Ledger, names: dict[str, int], now: datetime) -> Iterable[RunningUnit]:
    for holder, allocation in ledger.cluster.allocations.items():
        pod = ledger.pods.get(uid_of(holder))
        if pod is None or pod.finished or allocation.node not in names or not allocation.milli:
            continue
        milli = len(allocation.gpus) * allocation.milli
        elapsed = max((now - started(pod, now)).total_seconds(), 0.0)
        job = job_of(pod, milli / WHOLE, now)
        yield RunningUnit(job, elapsed, ((names[allocation.node], milli),), priority_of(pod))


def _units(ledger: Ledger) -> Iterable[_Unit]:
    found: dict[str, _Unit] = {}
    for pod in ledger.pods.values():
        claim = ledger.claim_of(pod)
        if claim is None or pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            continue
        try:
            request = request_of(claim)
        except InvalidRequest:
            continue
        gang = ledger.gangs.of(pod)
        key = pod.metadata.uid if gang is None else gang_key(gang)
        name = f"{pod.metadata.namespace}/{pod.metadata.name}" if gang is None else f"gang {gang}"
        unit = found.get(key)
        if unit is None:
            found[key] = _Unit(key, name, [pod], request)
        else:
            unit.pods.append(pod)
    return found.values()


def _waiting(unit: _Unit) -> WaitingUnit:
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
        request.models,
        min(map(priority_of, unit.pods)),
        waits_for,
    )
