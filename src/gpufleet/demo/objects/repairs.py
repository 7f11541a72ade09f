"""GpuRepairs of a simulated fleet: the node that has lost a GPU waits for a human, and earlier faults are in the history.

Earlier faults of other nodes lie between two runs, when the GPU was free, so that they agree with what was allocated.
Everything follows from the simulation. Steps read as `gpufleet repair` writes them.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from gpufleet.demo.objects.identities import Json, timestamp
from gpufleet.demo.simulation.hardware import DAY, XID, Machine, new_uid
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Slot, run_of_cell
from gpufleet.gpus.rules import RULES
from gpufleet.kubernetes.crds.gpu_repair import Episode, RepairStatus
from gpufleet.model.gpu_models import canonical_model
from gpufleet.repair.decide import job_name, whole_second

_REBOOT = 1800.0
"""Seconds after which a reboot counts as failed (`repair.repair_timeout`)."""
_DRAIN, _ATTEMPTS = 60.0, 3
_WINDOW = 30 * DAY
_SLOTS = 64
"""Slots whose gaps may have had a fault; enough for a life-like history of any fleet."""
_SHARE_OF_GAPS = 0.004
_SHORTEST_GAP = 900.0
_CAUSES = {
    "nvidia": (
        ("xid-48", "XID 48: uncorrectable ECC error"),
        ("remap-pending", "row remapping is pending, reset required"),
        ("xid-119", "XID 119: the GPU's system processor timed out"),
    ),
    "amd": (("bad-pages-pending", "2 bad memory pages are retired after a reset"),),
}
_LOST = f"XID {XID}: the GPU fell off the bus"


def past_repairs(simulation: Simulation, at: float) -> list[Json]:
    """Return the repairs of nodes whose faults of the last month are over."""
    machines = simulation.hardware.machines
    histories: dict[int, list[Episode]] = {}
    for number, episode in _short_faults(simulation, at):
        histories.setdefault(number, []).append(episode)
    return [
        _object(machines[number], _healthy(tuple(sorted(history, key=lambda each: each.opened))))
        for number, history in sorted(histories.items())
    ]


def open_repairs(simulation: Simulation, at: float) -> list[Json]:
    """Return the repairs of the two nodes that lose a GPU in turn."""
    hardware = simulation.hardware
    pair = [hardware.machines[number] for number in hardware.faulty.xid or ()]
    return [_object(machine, _lost_gpu_status(simulation, machine, at)) for machine in pair]


def _lost_gpu_status(simulation: Simulation, machine: Machine, at: float) -> RepairStatus:
    """Return the status of a node that loses a GPU in every other period."""
    outage = simulation.hardware.outage(machine)
    assert outage is not None
    opened = outage.since(at)
    starts = []
    start = opened - outage.period
    while start >= machine.created:
        if outage.covers(start):
            starts.append(start)
        start -= outage.period
    past = tuple(_long_episode(machine, each, each + outage.period) for each in reversed(starts))
    if not outage.covers(at):
        return _healthy(past)
    phase, since, message, attempts, steps = _progress(machine, opened, at, len(past))
    return RepairStatus(
        phase=phase,  # type: ignore[arg-type]
        since=whole_second(since),
        message=message,
        episode=len(past) + 1,
        cause=f"xid-{XID}",
        cause_message=_LOST,
        opened=whole_second(opened),
        gpus=tuple(range(machine.gpus)),
        whole_node=True,
        action="reboot",
        attempts=attempts,
        drain_started=whole_second(opened),
        steps=steps,
        history=past,
    )


def _progress(
    machine: Machine, opened: float, at: float, earlier: int
) -> tuple[str, float, str, int, tuple[str, ...]]:
    """Return phase, its begin, message, attempts and steps of the open fault."""
    lines = [(opened, f"Cordoned: {_LOST}"), (opened, "Draining: the pods of the node must leave")]
    if at < opened + _DRAIN:
        return "Draining", opened, "the pods of the node must leave", 0, _steps(lines)
    lines.append((opened + _DRAIN, "Drained: all affected pods have left"))
    for attempt in range(_ATTEMPTS):
        begun = opened + _DRAIN + attempt * _REBOOT
        job = f"Job {job_name(machine.name, earlier * _ATTEMPTS + attempt + 1, 'reboot')}"
        lines.append((begun, f"Repairing: {job}"))
        if at < begun + _REBOOT:
            return "Repairing", begun, job, attempt + 1, _steps(lines)
        lines.append((begun + _REBOOT, "reboot did not help"))
    ended, message = opened + _DRAIN + _ATTEMPTS * _REBOOT, f"{_ATTEMPTS} repairs did not help"
    lines.append((ended, f"Manual: {message}"))
    return "Manual", ended, message, _ATTEMPTS, _steps(lines)


def _long_episode(machine: Machine, opened: float, closed: float) -> Episode:
    *_, steps = _progress(machine, opened, closed, 0)
    proved = [
        (closed - 150, "resumed by an operator"),
        (closed - 60, "test 1 passed"),
        (closed, "test 2 passed"),
        (closed, "all tests passed"),
    ]
    return _episode(f"xid-{XID}", _LOST, machine, machine.gpus, opened, closed, (*steps, *_steps(proved)))


def _short_faults(simulation: Simulation, at: float) -> Iterator[tuple[int, Episode]]:
    """Yield faults that a reset repaired while the GPU was free, with the number of their node."""
    machines = simulation.hardware.machines
    slots = [slot for slot in simulation.slots if _may_fail(slot)][:_SLOTS]
    for slot in slots:
        machine, gpus = machines[slot.positions[0].node], slot.positions[0].gpus
        for cell in range(slot.cell(at - _WINDOW), slot.cell(at)):
            rng = random.Random(f"{slot.seed}/fault/{slot.number}/{cell}")  # noqa: S311  (a simulation, no secret)
            before, after = run_of_cell(slot, cell), run_of_cell(slot, cell + 1)
            if before is None or after is None or rng.random() > _SHARE_OF_GAPS:
                continue
            gap = after.bound - before.ended
            if gap < _SHORTEST_GAP or after.bound > at or before.ended < at - _WINDOW:
                continue
            opened = before.ended + 20.0
            closed = opened + rng.uniform(360.0, min(2400.0, gap - 60.0))
            cause, message = rng.choice(_CAUSES[machine.model.vendor])
            gpu = rng.choice(gpus)
            yield machine.number, _reset_episode(machine, gpu, cause, message, opened, closed)


def _may_fail(slot: Slot) -> bool:
    """Return whether a slot has whole GPUs of one healthy Kubernetes node for itself."""
    alone = len(slot.positions) == 1 and slot.positions[0].part is None and slot.base is None
    return (
        alone and slot.role.source == "k8s" and slot.outage is None and slot.role.name in ("train", "batch")
    )


def _reset_episode(
    machine: Machine, gpu: int, cause: str, message: str, opened: float, closed: float
) -> Episode:
    assert cause in RULES
    job = job_name(machine.name, 1, "reset")
    lines = [
        (opened, f"Cordoned: {message}"),
        (opened, "Draining: 0 pods must leave, in 0 s"),
        (opened + 1, "Drained: all affected pods have left"),
        (opened + 1, f"Repairing: Job {job}"),
        (closed - 100, "reset done"),
        (closed - 100, f"Proving: Job {job_name(machine.name, 2, 'prove')}"),
        (closed - 50, "test 1 passed"),
        (closed, "test 2 passed"),
        (closed, "all tests passed"),
    ]
    return _episode(cause, f"GPU {gpu}: {message}", machine, 1, opened, closed, _steps(lines))


def _episode(
    cause: str,
    message: str,
    machine: Machine,
    gpus: int,
    opened: float,
    closed: float,
    steps: tuple[str, ...],
) -> Episode:
    return Episode(
        cause=cause,
        opened=whole_second(opened),
        closed=whole_second(closed),
        message=message,
        gpus=gpus,
        model=canonical_model(machine.model.name),
        steps=steps,
        drain_started=whole_second(opened),
    )


def _healthy(history: tuple[Episode, ...]) -> RepairStatus:
    since = history[-1].closed if history else None
    return RepairStatus(since=since, message="all tests passed", episode=len(history), history=history)


def _steps(lines: Sequence[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(f"{datetime.fromtimestamp(int(at), UTC).isoformat()} {text}" for at, text in lines)


def _object(machine: Machine, status: RepairStatus) -> Json:
    rng = random.Random(f"{machine.uid}/repair")  # noqa: S311  (a simulation, no secret)
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuRepair",
        "metadata": {
            "name": machine.name,
            "uid": new_uid(rng),
            "creationTimestamp": timestamp(machine.created),
        },
        "spec": {"nodeName": machine.name},
        "status": msgspec.to_builtins(status),
    }
