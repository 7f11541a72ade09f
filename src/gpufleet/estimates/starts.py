"""Estimate when each waiting unit starts, and when a hypothetical one would.

`refresh` samples the ends of running units and simulates the queue forward some times, with hypothetical units of common
sizes at the end of each GpuQueue; it is called now and then in the background. `of` and `hypothetical` only look up its
result, so they take well under a millisecond.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpufleet.estimates.arrivals import Arrivals
from gpufleet.estimates.calibration import Calibration, Errors, Raw
from gpufleet.estimates.fleet_state import FleetState, Grouping, Used, WaitingUnit
from gpufleet.estimates.forward import ForwardRuns, Sampled
from gpufleet.estimates.node_gpus import WHOLE
from gpufleet.estimates.run_times import Floats, Job, RunTimes

SAMPLES = 12
_GANGS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of whole nodes for which hypothetical units are simulated."""
_HYPOTHETICAL = "hypothetical"
_TOGETHER: dict[Grouping, str] = {
    "any": "",
    "contiguous": " with adjacent indexes",
    "island": " of one island",
}
HORIZON_S = 14 * 86400.0
"""How far the queue is simulated; a unit that does not start by then has no estimate."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a unit is expected to start, in seconds from now, with a 90% interval.

    `position` is its place in the queue, from 1. The times are None if that is unknown; `waits_for` says what for.
    """

    position: int
    waits_for: str
    expected: float | None = None
    earliest: float | None = None
    latest: float | None = None


@dataclass(frozen=True)
class _Result:
    """What the last refresh found."""

    state: FleetState
    now: float
    raw: dict[str, Raw | None]
    positions: dict[str, int]
    probes: list[tuple[WaitingUnit, Raw | None]]
    errors: Errors
    used: Used

    def estimate(self, position: int, unit: WaitingUnit, raw: Raw | None, now: float) -> Estimate:
        """Return the estimate with its interval, from `now` on."""
        if not self.state.could_hold(unit):
            return Estimate(position, unit.waits_for or _impossible(unit, self.state))
        reason = unit.waits_for or self._refusal(unit) or _waits_for(position, unit)
        if raw is None or unit.waits_for:
            return Estimate(position, reason)
        since = now - self.now
        earliest, expected, latest = (max(raw.at(error) - since, 0.0) for error in self.errors)
        return Estimate(position, reason, expected, earliest, latest)

    def position(self, unit: WaitingUnit) -> int:
        """Return the place that a unit would have in the queue if it came now."""
        state, unit = self.state, replace(unit, key=_HYPOTHETICAL)
        if state.order is None or not unit.queue:
            return 1 + sum(other.priority >= unit.priority for other in state.waiting)
        by_priority = sorted([*state.waiting, unit], key=lambda other: -other.priority)
        return 1 + replace(state, waiting=by_priority).in_order(self.used).index(unit)

    def _refusal(self, unit: WaitingUnit) -> str:
        if self.state.order is None or not unit.queue:
            return ""
        return self.state.order.refusal(unit.queue, self.used, unit.milli * unit.members)


class StartEstimates:
    """Estimates for the queue of one fleet; keeps run times and errors of earlier estimates."""

    def __init__(self, samples: int = SAMPLES, seed: int = 0) -> None:
        self.run_times = RunTimes()
        self.arrivals = Arrivals()
        self.calibration = Calibration()
        self._samples = samples
        self._rng = np.random.default_rng(seed)
        self._chance = random.Random(seed)  # noqa: S311 (a simulation, no secret)
        self._result: _Result | None = None

    def refresh(self, state: FleetState, now: float, *, probing: bool = True) -> None:
        """Simulate the queue forward; `now` is the time of the state. Hypothetical units need `probing`."""
        if not state.arrivals:
            state = replace(state, arrivals=self.arrivals.latest(), arrival_rates=self.arrivals.rates(now))
        probes = _probes(state) if probing else []
        ends = self._ends(state)
        waiting = self._runtimes(state.waiting)
        arriving = self._runtimes(state.arrivals)
        prepared = ForwardRuns(state, probes, HORIZON_S)
        runs = [
            prepared.run(
                Sampled(ends[:, at], waiting[:, at].tolist(), arriving[:, at].tolist()), self._chance
            )
            for at in range(self._samples)
        ]
        until = [run.until for run in runs]
        raw = {unit.key: _raw([run.starts.get(unit.key) for run in runs], until) for unit in state.waiting}
        for key, found in raw.items():
            if found is not None:
                self.calibration.estimated(key, found, now)
        # `of` may be called by another thread meanwhile: replace everything at once.
        self._result = _Result(
            state,
            now,
            raw,
            {unit.key: at for at, unit in enumerate(state.waiting, 1)},
            [(probe, _raw([run.probes.get(probe.key) for run in runs], until)) for probe in probes],
            self.calibration.quantiles(now),
            state.used() if state.order is not None else {},
        )

    def of(self, key: str, now: float) -> Estimate | None:
        """Return the estimate of a waiting unit; None if it was not in the queue at the last refresh."""
        result = self._result
        position = result.positions.get(key) if result is not None else None
        if position is None or result is None:
            return None
        return result.estimate(position, result.state.waiting[position - 1], result.raw[key], now)

    def hypothetical(self, unit: WaitingUnit, now: float) -> Estimate:
        """Return the estimate of a unit that would arrive now, at the end of its GpuQueue if it names one.

        It is that of the smallest simulated unit that is at least as large. Adjacent GPUs, or those of one island, are
        expected when so many GPUs of a node are free that they must be among them.
        """
        result = self._result
        if result is None:
            return Estimate(1, "not known yet")
        position = result.position(unit)
        if not result.state.could_hold(unit):
            return Estimate(position, _impossible(unit, result.state))
        models = frozenset(result.state.models)
        unit = replace(unit, models=unit.models & models)  # one at least, as they could hold it
        milli = WHOLE * least_free(unit.milli // WHOLE, max(result.state.capacity) // WHOLE, unit.grouping)
        milli = max(milli, unit.milli)
        fitting = [
            (probe, raw)
            for probe, raw in result.probes
            if probe.queue == unit.queue
            and probe.milli >= milli
            and probe.members * probe.milli >= unit.members * milli
            and (probe.models or models) <= (unit.models or models)
            and probe.priority <= unit.priority
        ]
        raw = min(fitting, key=_closest)[1] if fitting else None
        return result.estimate(position, unit, raw, now)

    def _ends(self, state: FleetState) -> Floats:
        jobs = [unit.job for unit in state.running]
        return self.run_times.sample(jobs, [unit.elapsed for unit in state.running], self._samples, self._rng)

    def _runtimes(self, units: Sequence[WaitingUnit]) -> Floats:
        return self.run_times.sample(
            [unit.job for unit in units], [0.0] * len(units), self._samples, self._rng
        )


def _raw(starts: Sequence[float | None], until: Sequence[float]) -> Raw | None:
    """Return what the runs say; a unit that started in less than half of them has no estimate."""
    if sum(start is None for start in starts) * 2 > len(starts):
        return None
    return Raw.of(
        np.array([end if start is None else start for start, end in zip(starts, until, strict=True)])
    )


def _waits_for(position: int, unit: WaitingUnit) -> str:
    gpus = unit.milli * unit.members / WHOLE
    what = f"{gpus:g} free {_models(unit)}GPU{'s' if gpus != 1 else ''}"
    what += _TOGETHER[unit.grouping]
    if unit.members > 1:
        what += f" for its {unit.members} pods together"
    return f"{what}; {position - 1} ahead of it in the queue" if position > 1 else what


_NOT_COUNTED = "not counting GPUs that are faulty, cordoned, split by MIG or held by pods without a claim"
"""What the capacity of a fleet leaves out: it is not known when these GPUs become free."""


def _models(unit: WaitingUnit) -> str:
    return " or ".join(sorted(unit.models)) + " " if unit.models else ""


def _impossible(unit: WaitingUnit, state: FleetState) -> str:
    size = unit.milli / WHOLE
    gpus = f"{size:g} {_models(unit)}GPU{'s' if size != 1 else ''}"
    if unit.members == 1:
        return f"a node with {gpus}; there is none, {_NOT_COUNTED}"
    room = f"there is room for {state.room(unit)} of its {unit.members} pods"
    return f"more nodes with {gpus}; {room}, {_NOT_COUNTED}"


def least_free(gpus: int, size: int, grouping: Grouping) -> int:
    """Return how many GPUs of a node with `size` GPUs must be free so that a group of `gpus` is free in any case.

    Contiguous: `used` GPUs leave at most used + 1 gaps. Nodes are taken to have at most two islands.
    """
    if grouping == "contiguous":
        return min((size + 1) * (gpus - 1) // gpus + 1, size) if gpus > 1 else gpus
    if grouping == "island" and 2 * gpus <= size:
        return 2 * gpus - 1
    return gpus


def _closest(pair: tuple[WaitingUnit, Raw | None]) -> tuple[float, ...]:
    """Return a sort key of the probes at least as large as a unit: the smallest, then the one that starts first."""
    probe, raw = pair
    first = raw.median if raw is not None else float("inf")
    return probe.members * probe.milli, probe.milli, -probe.priority, first


def _probes(state: FleetState) -> list[WaitingUnit]:
    """Return units of common sizes for each model and for any, behind all others and at the end of each GpuQueue."""
    queues = ["", *(state.order.queues() if state.order is not None else ())]
    found = []
    each = sorted(set(state.models))
    for models in (frozenset[str](), *(frozenset({model}) for model in each if model and len(each) > 1)):
        nodes = [
            size
            for size, model in zip(state.capacity, state.models, strict=True)
            if not models or model in models
        ]
        largest = max(nodes, default=0)
        sizes = [size * WHOLE for size in (*range(1, 9), 16) if size * WHOLE < largest] + [largest]
        shapes = [(size, 1) for size in sizes] + [(largest, members) for members in _GANGS]
        for milli, members in shapes:
            if milli and sum(size // milli for size in nodes) >= members:
                key, job = f"probe {sorted(models)} {milli} {members}", Job(gpus=milli * members / WHOLE)
                found += [
                    WaitingUnit(f"{key} {queue}", job, milli, members, models, queue=queue)
                    for queue in queues
                    if not (queue and state.order and state.order.limited(queue, {}, milli * members))
                ]
    return found
