"""Find GPUs and ranks that hold up their job.

The ranks of a training job do the same work at the same time, so one GPU with half the utilization, power or clock of its
siblings holds all of them up, or has stopped. The steps that ranks report tell the same, and also whether the whole job
has stopped (`fleet/hangs.py`). A difference counts when it lasts: data loading and checkpoints are uneven.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gpufleet.fleet.hangs import SILENT, Stall, stalls
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.model.reading import Quantity
from gpufleet.model.training_point import RankProgress
from gpufleet.model.workload import FleetPod, Status

MIN_GPUS = 4
"""Jobs with fewer GPUs have too few siblings to compare."""
BUSY_PERCENT = 50.0
"""Median utilization of a job below which it is not compared."""
SHARES = {Quantity.UTILIZATION: 0.5, Quantity.POWER: 0.6, Quantity.SM_CLOCK: 0.75}
"""Shares of the median below which a GPU is suspect. Clocks differ less than power between healthy GPUs."""
LASTING = 120.0
"""Seconds for which a GPU must be suspect."""
_WORKLOADS_PER_STEP = 200
_UNITS = {Quantity.UTILIZATION: (1.0, "%"), Quantity.POWER: (1.0, " W"), Quantity.SM_CLOCK: (1e-6, " MHz")}


class Straggler(NamedTuple):
    """A GPU or rank that is slower than its siblings, or a job that has stopped.

    Ranks are numbered as torchrun does: one per GPU, pods in the order of their names. Pod, node, GPU and rank are empty
    or None if they are not known.
    """

    workload_uid: str
    workload: str
    namespace: str
    pod: str
    rank: int | None
    node: str
    gpu: int | None
    quantity: str
    """utilization, power, sm_clock, steps (far behind), reports (the rank stopped reporting) or hang (all ranks did)."""
    value: float
    median: float
    """Of the job."""
    since: float
    message: str

    @property
    def signal(self) -> str:
        """The health rule: straggler or hang."""
        return "hang" if self.quantity in ("hang", "reports") else "straggler"


class _Place(NamedTuple):
    """Where a rank runs."""

    rank: int
    pod: FleetPod
    gpu: int


class StragglerWatch:
    """Remember since when GPUs are suspect."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._since: dict[tuple[object, ...], float] = {}
        self._suspects: list[Straggler] = []
        self._checked_at = 0.0
        self._started: float | None = None

    def stragglers(self) -> list[Straggler]:
        """Return what has been suspect for long enough."""
        return [each for each in self._suspects if self._checked_at - each.since >= LASTING]

    def jobs(self) -> list[str]:
        """Return the uids of the running jobs whose steps are worth reading."""
        return [
            each.uid
            for each in self._fleet.workloads().values()
            if each.gpus > 1 and each.status is Status.RUNNING
        ]

    def check_steps(
        self, now: float, progress: Mapping[str, Sequence[RankProgress]] | None = None
    ) -> Iterator[None]:
        """Compare all jobs, in steps; to be called once per reading. `progress` has the reported steps by job."""
        suspects: list[Straggler] = []
        self._started = now if self._started is None else self._started
        if now - self._started < SILENT:
            progress = None  # reporters that could not reach this server send later
        for number, workload in enumerate(list(self._fleet.workloads().values())):
            if number % _WORKLOADS_PER_STEP == 0:
                yield
            if workload.status is not Status.RUNNING or workload.gpus < 2:
                continue
            places = self._places(workload)
            if workload.gpus >= MIN_GPUS:
                suspects += self._slow_gpus(workload, places, now)
            if reported := (progress or {}).get(workload.uid):
                suspects += self._stalled_ranks(workload, places, reported, now)
        self._since = {_key(each): each.since for each in suspects}
        self._suspects, self._checked_at = suspects, now

    def _places(self, workload: Workload) -> list[_Place]:
        """Return where the ranks of a job run: one per GPU, pods in the natural order of their names."""
        pods = sorted(workload.counted, key=lambda pod: _natural(pod.name))
        held = [(pod, gpu) for pod in pods for gpu in sorted(self._fleet.gpus_of(pod))]
        return [_Place(rank, pod, gpu) for rank, (pod, gpu) in enumerate(held)]

    def _slow_gpus(self, workload: Workload, places: list[_Place], now: float) -> list[Straggler]:
        columns = self._fleet.gpu_columns
        slots = [(place, slot) for place in places for slot in columns.slots_of(place.pod.node, [place.gpu])]
        busy = columns.column(Quantity.UTILIZATION)
        used = [float(busy[slot]) for _, slot in slots if busy[slot] == busy[slot]]
        if len(used) < MIN_GPUS or median(used) < BUSY_PERCENT:
            return []
        found = []
        for quantity, share in SHARES.items():
            column = columns.column(quantity)
            known = [(place, float(column[slot])) for place, slot in slots if column[slot] == column[slot]]
            if len(known) < MIN_GPUS:
                continue
            middle = median(value for _, value in known)
            scale, unit = _UNITS[quantity]
            for place, value in known:
                if value < share * middle:
                    message = (
                        f"{quantity.value.replace('_', ' ')} {value * scale:.0f}{unit}, "
                        f"the median of its job is {middle * scale:.0f}{unit}"
                    )
                    found.append(
                        self._straggler(workload, place, quantity.value, value, middle, now, message)
                    )
        return found

    def _stalled_ranks(
        self, workload: Workload, places: list[_Place], reported: Sequence[RankProgress], now: float
    ) -> list[Straggler]:
        started = max((pod.started for pod in workload.counted), default=0.0)
        return [
            self._straggler(
                workload,
                _place_of(stall, places, reported),
                stall.kind,
                stall.value,
                stall.median,
                # The steps themselves tell how long it lasts.
                now - LASTING,
                stall.message,
                stall.rank,
            )
            for stall in stalls(reported, started, workload.gpus, now)
        ]

    def _straggler(
        self,
        workload: Workload,
        place: _Place | None,
        quantity: str,
        value: float,
        middle: float,
        now: float,
        message: str,
        rank: int | None = None,
    ) -> Straggler:
        made = Straggler(
            workload.uid,
            workload.name,
            workload.namespace,
            place.pod.name if place else "",
            place.rank if place and rank is None else rank,
            place.pod.node if place else "",
            place.gpu if place else None,
            quantity,
            value,
            middle,
            now,
            message,
        )
        return made._replace(since=self._since.get(_key(made), now))


def _place_of(stall: Stall, places: list[_Place], reported: Sequence[RankProgress]) -> _Place | None:
    """Return where a rank runs; None if it is not known."""
    if stall.rank is None:
        return None
    pods = list(dict.fromkeys(place.pod.name for place in places))
    ranks = {each.rank for each in reported if each.rank is not None}
    if len(pods) > 1 and ranks == set(range(len(pods))):  # one process per pod, as with JAX
        return next(place for place in places if place.pod.name == pods[stall.rank])
    return places[stall.rank] if stall.rank < len(places) else None


def _key(each: Straggler) -> tuple[object, ...]:
    return (each.workload_uid, each.node, each.gpu, each.rank, each.quantity)


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts worker-10 after worker-2."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
