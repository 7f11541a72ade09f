"""Divide a fleet into slots: gangs over whole nodes, and parts of nodes for other workloads.

Parts are powers of two that start at a multiple of their size, so that they lie on one island, as a
good scheduler would place them. Some GPUs belong to no slot and stay free. Each MIG instance is a slot.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from gpufleet.demo.simulation.hardware import Hardware, Machine
from gpufleet.demo.simulation.timeline import HOUR, ROLES, Role, Slot, SlotPosition, period

_GANG_MODELS = ("h200", "h100", "mi300x")
_SERVING_MODELS = ("l40s", "a100")
_POOLED = ("gang", "train", "batch")
_DAY = 24 * HOUR
_MAX_SPANNED_ISLANDS = 2
"""Nodes with at most this many islands have runs over several of them."""


def build_slots(hardware: Hardware, seed: int) -> tuple[Slot, ...]:
    """Return all slots of a fleet."""
    rng = random.Random(f"{seed}/slots")  # noqa: S311  (a simulation, no secret)
    slots: list[Slot] = []

    def add(role: Role, machine: Machine, positions: tuple[SlotPosition, ...]) -> None:
        length, phase = period(role, rng)
        slot = Slot(len(slots), role, machine.model, positions, length, phase, seed)
        if role.source == "k8s" and len({position.node for position in positions}) == 1:
            slot = replace(slot, outage=hardware.outage(machine))
        if role.name in _POOLED and slot.outage is None and all(_is_whole(hardware, p) for p in positions):
            slot = replace(slot, pool=f"{machine.model.short}-{slot.number}")
        slots.append(slot)

    def add_replicated(role: Role, machine: Machine, positions: tuple[SlotPosition, ...]) -> None:
        """Add a workload whose first replicas always run, and the others during a part of the day."""
        permanent = (len(positions) + 1) // 2
        add(role, machine, positions[:permanent])
        base, more = slots[-1], ROLES[f"more-{role.name}"]
        for ordinal in range(permanent, len(positions)):
            phase = rng.uniform(5, 9) * HOUR
            own = (positions[ordinal],)
            slots.append(
                Slot(len(slots), more, machine.model, own, _DAY, phase, seed, base.outage, "", base, ordinal)
            )

    # Slurm slots come first: job ids contain the slot number and must stay small.
    for role, positions in (*_slurm(hardware, rng), *_containers(hardware, rng)):
        add(role, hardware.machines[positions[0].node], positions)
    for group in _groups(hardware, rng):
        if len(group) > 1:
            add(ROLES["gang"], group[0], tuple(SlotPosition(m.number, tuple(range(m.gpus))) for m in group))
            continue
        for role, positions in _slots_of_node(hardware, group[0], rng):
            (add_replicated if len(positions) > 1 else add)(role, group[0], positions)
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
    alone |= {machine.number for machine in hardware.machines if machine.mig_gpus}
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
    for gpu in range(machine.mig_gpus):
        for part in machine.mig_parts(gpu):
            if rng.random() < 0.8:
                name = rng.choice(("mig-batch", "mig-debug"))
                yield ROLES[name], (SlotPosition(machine.number, (gpu,), part),)
    # Runs that last for weeks would rarely fit between two faults.
    short = hardware.outage(machine) is not None
    gpus = machine.gpus - (1 if machine.model.short == "l40s" and machine.gpus > 1 else 0)
    first = machine.mig_gpus
    while first < gpus:
        # A part lies on one island, except on GPUs without links.
        size = _size(first, gpus, rng)
        if machine.model.bandwidth_gbps and machine.model.islands > _MAX_SPANNED_ISLANDS:
            size = min(size, machine.island_size)
        role = _role(machine, size, rng, short=short)
        if role is not None:
            yield role, _places(machine, tuple(range(first, first + size)), role)
        first += size


def _is_whole(hardware: Hardware, position: SlotPosition) -> bool:
    return len(position.gpus) == hardware.machines[position.node].gpus


def _size(first: int, gpus: int, rng: random.Random) -> int:
    """Return a power of two that fits at `first`."""
    most = 1
    while first % (2 * most) == 0 and first + 2 * most <= gpus:
        most *= 2
    return min(most, rng.choice((1, 2, 2, 4, 4, 8, 8, 16)))


def _role(machine: Machine, size: int, rng: random.Random, *, short: bool) -> Role | None:
    if rng.random() < 0.12:
        return None
    if short:
        return ROLES[rng.choice(("train", "batch", "batch", "debug") if size < 4 else ("train", "batch"))]
    if machine.model.short in _SERVING_MODELS and rng.random() < 0.5:
        return ROLES["serve"]
    if size == machine.gpus > 1:
        return ROLES[rng.choice(("train", "train", "batch", "batch", "serve"))]
    if size >= 4:
        return ROLES[rng.choice(("train", "train", "train", "serve", "batch"))]
    return ROLES[rng.choice(("batch", "batch", "train", "notebook", "notebook", "debug", "nightly", "serve"))]


def _places(machine: Machine, ids: tuple[int, ...], role: Role) -> tuple[SlotPosition, ...]:
    """One pod with all GPUs, replicas of up to two for a service, replicas of one for notebooks."""
    each = min(len(ids), {"serve": 2, "notebook": 1}.get(role.name, len(ids)))
    return tuple(SlotPosition(machine.number, ids[at : at + each]) for at in range(0, len(ids), each))
