"""Divide a fleet into slots: gangs over whole nodes, and parts of nodes for other workloads.

Parts are powers of two that start at a multiple of their size, so that they lie on one island, as a
good scheduler would place them. Some GPUs belong to no slot and stay free.
"""

import random
from collections.abc import Iterator

from gpufleet.demo.simulation.hardware import Hardware, Machine, lost_gpu_index
from gpufleet.demo.simulation.timeline import ROLES, Role, Slot, SlotPosition, period

_GANG_MODELS = ("h200", "h100", "mi300x")
_SERVING_MODELS = ("l40s", "a100")


def build_slots(hardware: Hardware, seed: int) -> tuple[Slot, ...]:
    """Return all slots of a fleet."""
    rng = random.Random(f"{seed}/slots")  # noqa: S311  (a simulation, no secret)
    slots: list[Slot] = []

    def add(role: Role, machine: Machine, positions: tuple[SlotPosition, ...]) -> None:
        length, phase = period(role, rng)
        slots.append(Slot(len(slots), role, machine.model, positions, length, phase, seed))

    # Slurm slots come first: job ids contain the slot number and must stay small.
    for role, positions in (*_slurm(hardware, rng), *_containers(hardware, rng)):
        add(role, hardware.machines[positions[0].node], positions)
    for group in _groups(hardware, rng):
        if len(group) > 1:
            add(ROLES["gang"], group[0], tuple(SlotPosition(m.number, tuple(range(m.gpus))) for m in group))
            continue
        for role, positions in _slots_of_node(hardware, group[0], rng):
            add(role, group[0], positions)
    everywhere = tuple(
        SlotPosition(machine.number, (machine.gpus - 1,))
        for machine in hardware.machines
        if machine.model.short == "l40s" and machine.gpus > 1 and machine.source == "k8s"
    )
    if everywhere:
        add(ROLES["everywhere"], hardware.machines[everywhere[0].node], everywhere)
    positions = _backlog(hardware)
    for _ in range(2 if positions else 0):
        add(ROLES["backlog"], hardware.machines[positions[0].node], positions)
    return tuple(slots)


def _slurm(hardware: Hardware, rng: random.Random) -> Iterator[tuple[Role, tuple[SlotPosition, ...]]]:
    """Yield one job over halves of two nodes, and jobs on parts of nodes."""
    machines = [machine for machine in hardware.machines if machine.source == "slurm"]
    wide = machines[:2] if len(machines) > 2 and machines[0].gpus > 1 else []
    if wide:
        yield (
            ROLES["slurm-train"],
            tuple(SlotPosition(machine.number, tuple(range(machine.gpus // 2))) for machine in wide),
        )
    for machine in machines:
        first = machine.gpus // 2 if machine in wide else 0
        while first < machine.gpus:
            size = _size(first, machine.gpus, rng)
            name = rng.choice(
                ("train", "train", "batch") if size > 2 else ("batch", "batch", "train", "shell")
            )
            yield ROLES[f"slurm-{name}"], (SlotPosition(machine.number, tuple(range(first, first + size))),)
            first += size


def _containers(hardware: Hardware, rng: random.Random) -> Iterator[tuple[Role, tuple[SlotPosition, ...]]]:
    """Yield containers with one or two GPUs each, leaving one GPU free."""
    for machine in hardware.machines:
        first = 0
        while machine.source == "docker" and first < max(1, machine.gpus - 1):
            size = min(rng.choice((1, 2)), max(1, machine.gpus - 1 - first))
            name = rng.choice(("serve", "batch", "batch", "notebook"))
            yield (
                ROLES[f"container-{name}"],
                (SlotPosition(machine.number, tuple(range(first, first + size))),),
            )
            first += size


def _backlog(hardware: Hardware) -> tuple[SlotPosition, ...]:
    """Return the positions of the backlog: more whole nodes of a model than are ever free together."""
    if hardware.faulty.broken is None:
        return ()
    machines = [machine for machine in hardware.machines if machine.model.short == "h100"]
    size = min(len(machines), 128, max(4, 3 * len(machines) // 4))
    return tuple(SlotPosition(machine.number, tuple(range(machine.gpus))) for machine in machines[:size])


def _groups(hardware: Hardware, rng: random.Random) -> Iterator[tuple[Machine, ...]]:
    """Yield nodes one by one, or in groups for gangs."""
    faulty = hardware.faulty
    alone = {*(faulty.broken or ()), *(faulty.xid or ()), faulty.cordoned}
    waiting: list[Machine] = []
    for machine in hardware.machines:
        if machine.source != "k8s":
            continue
        if machine.number in alone or machine.model.short not in _GANG_MODELS or rng.random() < 0.5:
            yield (machine,)
            continue
        if waiting and waiting[0].model is not machine.model:
            yield from ((each,) for each in waiting)
            waiting = []
        waiting.append(machine)
        if len(waiting) == rng.choice((2, 2, 4)) or len(waiting) == 4:
            yield tuple(waiting)
            waiting = []
    yield from ((each,) for each in waiting)


def _slots_of_node(
    hardware: Hardware, machine: Machine, rng: random.Random
) -> Iterator[tuple[Role, tuple[SlotPosition, ...]]]:
    """Yield the roles and positions on one node."""
    faulty = hardware.faulty
    if machine.number in (faulty.broken or ()):
        return
    lost = machine.number in (faulty.xid or ())
    gpus = machine.gpus - (1 if machine.model.short == "l40s" and machine.gpus > 1 else 0)
    first = lost_gpu_index(machine) + 1 if lost else 0
    while first < gpus:
        size = _size(first, gpus, rng)
        ids = tuple(range(first, first + size))
        role = _role(machine, size, rng)
        if role is not None:
            yield role, _places(machine, ids, role)
        first += size


def _size(first: int, gpus: int, rng: random.Random) -> int:
    """Return a power of two that fits at `first`."""
    most = 1
    while first % (2 * most) == 0 and first + 2 * most <= gpus:
        most *= 2
    return min(most, rng.choice((1, 2, 2, 4, 4, 8, 8, 16)))


def _role(machine: Machine, size: int, rng: random.Random) -> Role | None:
    if rng.random() < 0.12:
        return None
    if machine.model.short in _SERVING_MODELS and rng.random() < 0.5:
        return ROLES["serve"]
    if size >= 4:
        return ROLES[rng.choice(("train", "train", "train", "serve", "batch"))]
    return ROLES[rng.choice(("batch", "batch", "train", "notebook", "notebook", "debug", "nightly", "serve"))]


def _places(machine: Machine, ids: tuple[int, ...], role: Role) -> tuple[SlotPosition, ...]:
    """One pod with all GPUs, or replicas of up to two for a service."""
    each = min(len(ids), 2) if role.name == "serve" else len(ids)
    return tuple(SlotPosition(machine.number, ids[at : at + each]) for at in range(0, len(ids), each))
