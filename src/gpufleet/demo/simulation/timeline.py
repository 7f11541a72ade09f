"""Which run uses which GPUs at any time, without replaying the time before.

The fleet is divided into slots: GPUs that are always allocated together. The time of each slot is
divided into cells of equal length, and one run holds the slot in each cell. Everything about a run
(start, end, name, load) follows from the seed, the slot and the cell number. So any time can be
queried directly, two runs never hold the same GPU, and the same seed always gives the same fleet.

Some runs exist before their cell starts and are queued until the previous run ends. They have a pool of
nodes of their own, so that there is no other place for them. Runs of the backlog request more than is ever
free together and are cancelled in the end. Runs on a faulty node fail when the fault occurs, and no run
starts before the repair.

Additional replicas of a Deployment or StatefulSet have slots of their own, with a cell per day. Their runs
belong to the workload of the base slot.
"""

import hashlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from gpufleet.demo.simulation.hardware import BUILT, DAY, GpuModel, MigPart, Outage, new_uid
from gpufleet.demo.simulation.teams import PROJECTS, Project, Team, team_of

HOUR = 3600.0
STARTUP = 8.0
"""Seconds from binding to running."""

MIG_SLICES = 7
"""Compute slices of a GPU in MIG mode."""

_MAX_SLURM_SLOTS = 1024
"""Upper bound of the number of Slurm slots, which come first."""


@dataclass(frozen=True)
class Role:
    """How a slot is used."""

    name: str
    kinds: tuple[str, ...]
    hours: tuple[float, float]
    """Minimum and maximum length of a cell."""
    queued: float
    """Share of the runs that are queued, in slots where that is possible."""
    finishes: bool
    """Whether it finishes by itself rather than being deleted."""
    load: str
    """The shape of its utilization: training, serving, batch, idle."""
    source: str = "k8s"
    """The system that runs it: k8s, slurm or docker."""


ROLES = {
    role.name: role
    for role in (
        Role("gang", ("PyTorchJob",), (14, 36), 0.6, True, "training"),
        Role("train", ("PyTorchJob", "Job"), (5, 16), 0.6, True, "training"),
        Role("batch", ("Job",), (1.5, 4), 0.7, True, "batch"),
        Role("nightly", ("CronJob",), (6, 6), 0.0, True, "batch"),
        Role("serve", ("Deployment",), (20 * 24, 40 * 24), 0.0, False, "serving"),
        Role("more-serve", ("Deployment",), (24, 24), 0.0, False, "serving"),
        Role("notebook", ("StatefulSet",), (3 * 24, 9 * 24), 0.0, False, "idle"),
        Role("more-notebook", ("StatefulSet",), (24, 24), 0.0, False, "idle"),
        # Removed when they end: without its claim, an ended pod does not tell the share that it held.
        Role("mig-batch", ("Job",), (1.5, 4), 0.0, False, "batch"),
        Role("mig-debug", ("Pod",), (8, 20), 0.0, False, "idle"),
        Role("debug", ("Pod",), (8, 20), 0.0, False, "idle"),
        Role("backlog", ("PyTorchJob",), (7, 11), 0.0, False, "training"),
        Role("everywhere", ("DaemonSet",), (60 * 24, 60 * 24), 0.0, False, "serving"),
        Role("slurm-train", ("SlurmJob",), (3, 11), 0.3, True, "training", "slurm"),
        Role("slurm-batch", ("SlurmJob",), (0.5, 2.5), 0.35, True, "batch", "slurm"),
        Role("slurm-shell", ("SlurmJob",), (2, 9), 0.0, True, "idle", "slurm"),
        Role("container-serve", ("Container",), (6 * 24, 15 * 24), 0.0, False, "serving", "docker"),
        Role("container-batch", ("Container",), (0.4, 2), 0.0, True, "batch", "docker"),
        Role("container-notebook", ("Container",), (24, 4 * 24), 0.0, False, "idle", "docker"),
    )
}


@dataclass(frozen=True)
class SlotPosition:
    """The GPUs of one node that one pod of a run gets."""

    node: int
    gpus: tuple[int, ...]
    part: MigPart | None = None
    """The MIG instance of its only GPU, if it gets just that."""

    @property
    def share(self) -> float:
        """The share of each GPU."""
        return 1.0 if self.part is None else int(self.part.profile.partition("g")[0]) / MIG_SLICES


@dataclass(frozen=True)
class Slot:
    """GPUs that are allocated together, and how they are used."""

    number: int
    role: Role
    model: GpuModel
    positions: tuple[SlotPosition, ...]
    period: float
    phase: float
    seed: int
    outage: Outage | None = None
    """When its node is faulty."""
    pool: str = ""
    """The nodes that only this slot uses; empty if other slots use them too."""
    base: Self | None = None
    """The slot of the workload that its runs are additional replicas of."""
    ordinal: int = 0
    """The number of its first replica in its workload."""

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(len(position.gpus) for position in self.positions)

    def cell(self, at: float) -> int:
        """Return the number of the cell at a time."""
        return math.floor((at - BUILT - self.phase) / self.period)

    def cell_start(self, cell: int) -> float:
        """Return the start of a cell."""
        return BUILT + self.phase + cell * self.period


@dataclass(frozen=True)
class Run:
    """One use of a slot. Times are Unix seconds."""

    slot: Slot
    number: int
    kind: str
    team: Team
    project: Project
    name: str
    uid: str
    created: float
    bound: float
    """When it gets its GPUs; infinity if never."""
    ended: float
    fails: bool
    memory_share: float
    level: float
    """Its typical utilization, 0–1."""
    base: Self | None = None
    """The run whose workload it is an additional replica of."""

    @property
    def started(self) -> float:
        """When its pods start to run."""
        return self.bound + STARTUP

    @property
    def job_id(self) -> int:
        """The Slurm job id."""
        return _job_id(self.slot, self.number)

    @property
    def user(self) -> str:
        """The user who runs it."""
        return self.team.users[(self.base or self).number % len(self.team.users)]

    @property
    def trains(self) -> bool:
        """Whether it reports training metrics."""
        return self.slot.role.load == "training"


def runs_between(slot: Slot, start: float, end: float) -> Iterator[Run]:
    """Yield the runs of a slot, queued or holding GPUs, that exist between `start` and `end`."""
    for cell in range(slot.cell(start), slot.cell(end) + 2):
        run = run_of_cell(slot, cell)
        if run is not None and run.created <= end and run.ended > start:
            yield run


@lru_cache(maxsize=400_000)
def run_of_cell(slot: Slot, cell: int) -> Run | None:
    """Return the run of a cell; None if its node is faulty or the workload to add a replica to is not there."""
    run = _whole_run(slot, cell) if slot.base is None else _replica(slot.base, slot, cell)
    if run is None or slot.outage is None or run.bound == math.inf:
        return run
    if slot.outage.covers(run.bound):
        return None
    fault = slot.outage.next_start(run.bound)
    return run if run.ended <= fault else replace(run, ended=fault, fails=slot.role.finishes)


def _replica(base_slot: Slot, slot: Slot, cell: int) -> Run | None:
    """Return an additional replica, which runs for a part of the day."""
    rng = _rng(slot, cell)
    begin = slot.cell_start(cell) + 0.1 * slot.period * rng.random()
    end = begin + slot.period * rng.uniform(0.3, 0.6)
    base = run_of_cell(base_slot, base_slot.cell(begin))
    if base is None or not base.started <= begin < end <= base.ended:
        return None
    started = float(math.floor(begin))
    return replace(
        base,
        slot=slot,
        number=cell,
        uid=new_uid(rng),
        created=started,
        bound=started + 2.0,
        ended=float(math.floor(end)),
        base=base,
    )


def _whole_run(slot: Slot, cell: int) -> Run:
    rng = _rng(slot, cell)
    role, begin = slot.role, slot.cell_start(cell)
    # A CronJob always runs the same project.
    project_rng = _rng(slot, 0, "project") if role.name == "nightly" else rng
    project = project_rng.choice([p for p in PROJECTS if p.load == role.load])
    team = team_of(project, slot.number)
    fails = role.finishes and rng.random() < 0.08
    length = slot.period * (rng.uniform(0.1, 0.6) if fails else 1.0)
    end = min(begin + length, slot.cell_start(cell + 1) - _idle_before(slot, cell + 1))
    bound = begin if _is_queued(slot, cell) else begin + 0.04 * slot.period * rng.random()
    # Kubernetes keeps whole seconds.
    created = float(math.floor(bound - _wait_seconds(slot, cell)))
    kind = role.kinds[rng.randrange(len(role.kinds))]
    return Run(
        slot=slot,
        number=cell,
        kind=kind,
        team=team,
        project=project,
        name=_name(slot, cell, project),
        uid=_uid(slot, cell, created, rng),
        created=created,
        bound=math.inf if role.name == "backlog" else float(math.floor(bound)),
        ended=float(math.floor(end)),
        fails=fails,
        memory_share=rng.uniform(0.03, 0.3) if role.load == "idle" else rng.uniform(0.5, 0.93),
        level=_level(role.load, rng),
    )


def _name(slot: Slot, cell: int, project: Project) -> str:
    if slot.role.source == "slurm":
        return project.name
    return f"{project.name}-{slot.number}-{cell}" if slot.role.finishes else f"{project.name}-{slot.number}"


def _uid(slot: Slot, cell: int, created: float, rng: random.Random) -> str:
    """Return the uid of a workload in the form of its source."""
    uid = new_uid(rng)
    if slot.role.source == "slurm":
        return f"slurm-{_job_id(slot, cell)}-{created:.0f}"
    return hashlib.sha256(uid.encode()).hexdigest() if slot.role.source == "docker" else uid


def _job_id(slot: Slot, cell: int) -> int:
    return 1 + cell * _MAX_SLURM_SLOTS + slot.number


def _rng(slot: Slot, cell: int, purpose: str = "run") -> random.Random:
    return random.Random(f"{slot.seed}/{purpose}/{slot.number}/{cell}")  # noqa: S311  (a simulation, no secret)


def _is_queued(slot: Slot, cell: int) -> bool:
    """Return whether the run waits for the previous one; Kubernetes would place it elsewhere without a pool."""
    possible = bool(slot.pool) or slot.role.source != "k8s"
    return possible and _rng(slot, cell, "wait").random() < slot.role.queued


def _wait_seconds(slot: Slot, cell: int) -> float:
    """Return the seconds from creation to binding."""
    rng = _rng(slot, cell, "wait")
    rng.random()
    if _is_queued(slot, cell):
        return min(0.3 * slot.period, rng.uniform(600, 5400))
    return rng.uniform(2, 4)


def _idle_before(slot: Slot, cell: int) -> float:
    """Return the seconds that a slot is free before a cell; few if the next run is queued."""
    if _is_queued(slot, cell):
        return 5.0
    return 5.0 + _rng(slot, cell, "idle").random() * min(0.12 * slot.period, 6 * HOUR)


def _level(load: str, rng: random.Random) -> float:
    low, high = {"training": (0.78, 0.97), "serving": (0.2, 0.75), "batch": (0.35, 0.9), "idle": (0.0, 0.02)}[
        load
    ]
    return rng.uniform(low, high)


def period(role: Role, rng: random.Random) -> tuple[float, float]:
    """Return the length of a slot's cells, and the start of the first one after the fleet was built."""
    length = rng.uniform(*role.hours) * HOUR
    return length, rng.random() * min(length, 20 * DAY)
