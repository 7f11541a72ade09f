"""Who uses the GPUs of a simulated fleet, at any time, without playing the time before.

The fleet is cut into slots: GPUs that are always given out together. Each slot's time is cut
into cells of equal length, and in each cell one run holds the slot. All of a run (when it begins
and ends, what it is called, how it fares) follows from the seed, the slot and the number of the
cell. So any moment of past and future can be asked for at once, two runs never hold one GPU, and
the same seed and the same clock always show the same fleet.

In some cells the run is there before its turn: it queued, pending, for the one before to end. Runs
of the backlog ask for more than is ever free at once, and are withdrawn in the end.
"""

import hashlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gpufleet.demo.simulation.hardware import BUILT, DAY, GpuModel, new_uid
from gpufleet.demo.simulation.teams import PROJECTS, Project, Team, team_of

HOUR = 3600.0
STARTUP = 8.0
"""Seconds from binding to running."""

_MAX_SLURM_SLOTS = 1024
"""More than there are slots in Slurm, which come first."""


@dataclass(frozen=True)
class Role:
    """How a slot is used."""

    name: str
    kinds: tuple[str, ...]
    hours: tuple[float, float]
    """Shortest and longest cell."""
    queued: float
    """Part of the runs that must wait for their turn."""
    finishes: bool
    """Whether it ends by itself; what doesn't is deleted at its end."""
    load: str
    """The shape of its utilization: training, serving, batch, idle."""
    source: str = "k8s"
    """Who runs it: k8s, slurm or docker."""


ROLES = {
    role.name: role
    for role in (
        Role("gang", ("PyTorchJob",), (14, 36), 0.3, True, "training"),
        Role("train", ("PyTorchJob", "Job"), (5, 16), 0.3, True, "training"),
        Role("batch", ("Job",), (1.5, 4), 0.35, True, "batch"),
        Role("nightly", ("CronJob",), (6, 6), 0.0, True, "batch"),
        Role("serve", ("Deployment",), (20 * 24, 40 * 24), 0.0, False, "serving"),
        Role("notebook", ("StatefulSet",), (3 * 24, 9 * 24), 0.0, False, "idle"),
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


@dataclass(frozen=True)
class Slot:
    """GPUs that are given out together, and how."""

    number: int
    role: Role
    model: GpuModel
    positions: tuple[SlotPosition, ...]
    period: float
    phase: float
    seed: int

    @property
    def gpus(self) -> int:
        """How many."""
        return sum(len(position.gpus) for position in self.positions)

    def cell(self, at: float) -> int:
        """The number of the cell that a moment lies in."""
        return math.floor((at - BUILT - self.phase) / self.period)

    def cell_start(self, cell: int) -> float:
        """When a cell begins."""
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
    """Its usual utilization, 0–1."""

    @property
    def started(self) -> float:
        """When its pods run."""
        return self.bound + STARTUP

    @property
    def job_id(self) -> int:
        """The number by which Slurm knows it."""
        return _job_id(self.slot, self.number)

    @property
    def user(self) -> str:
        """Who runs it."""
        return self.team.users[self.number % len(self.team.users)]

    @property
    def trains(self) -> bool:
        """Whether it reports a loss."""
        return self.slot.role.load == "training"


def runs_between(slot: Slot, start: float, end: float) -> Iterator[Run]:
    """The runs of a slot that exist, waiting or holding, at some moment from `start` to `end`."""
    for cell in range(slot.cell(start), slot.cell(end) + 2):
        run = run_of_cell(slot, cell)
        if run.created <= end and run.ended > start:
            yield run


@lru_cache(maxsize=400_000)
def run_of_cell(slot: Slot, cell: int) -> Run:
    """The run of one cell."""
    rng = _rng(slot, cell)
    role, begin = slot.role, slot.cell_start(cell)
    # A CronJob makes the same thing every time; other slots serve whoever comes.
    project_rng = _rng(slot, 0, "project") if role.name == "nightly" else rng
    project = project_rng.choice([p for p in PROJECTS if p.load == role.load])
    team = team_of(project, slot.number)
    fails = role.finishes and rng.random() < 0.08
    length = slot.period * (rng.uniform(0.1, 0.6) if fails else 1.0)
    end = min(begin + length, slot.cell_start(cell + 1) - _idle_before(slot, cell + 1))
    bound = begin if _is_queued(slot, cell) else begin + 0.04 * slot.period * rng.random()
    # Whole seconds, as Kubernetes keeps them.
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
    """The uid of the workload, in the form that its source gives it."""
    uid = new_uid(rng)
    if slot.role.source == "slurm":
        return f"slurm-{_job_id(slot, cell)}-{created:.0f}"
    return hashlib.sha256(uid.encode()).hexdigest() if slot.role.source == "docker" else uid


def _job_id(slot: Slot, cell: int) -> int:
    return 1 + cell * _MAX_SLURM_SLOTS + slot.number


def _rng(slot: Slot, cell: int, purpose: str = "run") -> random.Random:
    return random.Random(f"{slot.seed}/{purpose}/{slot.number}/{cell}")  # noqa: S311  (a simulation, no secret)


def _is_queued(slot: Slot, cell: int) -> bool:
    return _rng(slot, cell, "wait").random() < slot.role.queued


def _wait_seconds(slot: Slot, cell: int) -> float:
    """Seconds from creation to binding."""
    rng = _rng(slot, cell, "wait")
    if rng.random() < slot.role.queued:
        return min(0.3 * slot.period, rng.uniform(600, 5400))
    return rng.uniform(2, 4)


def _idle_before(slot: Slot, cell: int) -> float:
    """Seconds that the slot is free before a cell: none to speak of if somebody queued for it."""
    if _is_queued(slot, cell):
        return 5.0
    return 5.0 + _rng(slot, cell, "idle").random() * min(0.12 * slot.period, 6 * HOUR)


def _level(load: str, rng: random.Random) -> float:
    low, high = {"training": (0.78, 0.97), "serving": (0.2, 0.75), "batch": (0.35, 0.9), "idle": (0.0, 0.02)}[
        load
    ]
    return rng.uniform(low, high)


def period(role: Role, rng: random.Random) -> tuple[float, float]:
    """The length of a slot's cells, and when the first begins after the fleet was built."""
    length = rng.uniform(*role.hours) * HOUR
    return length, rng.random() * min(length, 20 * DAY)
