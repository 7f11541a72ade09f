"""Generate a synthetic fleet and its load, for benchmarks and tests.

Arrivals follow the hour of the day and the weekday. The run times of one workload are alike: each workload has
a typical run time, and its runs vary around it. Some units declare their run time, rounded up generously.
"""

import math
import random
from dataclasses import dataclass, replace
from functools import cache

from gpufleet.placement import CandidateGpu, CandidateNode, Request
from gpufleet.placement.request import WHOLE
from gpufleet.simulation.scenario import DAY, HOUR
from gpufleet.simulation.unit import Unit

SIZES = ((1, 1, 40), (2, 1, 12), (4, 1, 12), (8, 1, 24), (8, 2, 6), (8, 4, 4), (8, 8, 2))
"""GPUs of one pod, pods, and how frequent this is."""


@dataclass(frozen=True)
class Load:
    """What to generate; `load` is the requested share of all GPU hours."""

    days: float = 30.0
    load: float = 0.95
    mean_hours: float = 6.0
    """Mean run time."""
    spread: float = 1.0
    """Standard deviation of the logarithm of the typical run times of workloads."""
    own_spread: float = 0.35
    """The same for the runs of one workload."""
    declaring: float = 0.5
    """The share of workloads that declare a run time."""
    queues: tuple[tuple[str, float], ...] = (("research", 3.0), ("production", 1.0), ("students", 2.0))
    """Queues and how frequent their units are."""
    workloads: int = 400
    high_priority: float = 0.1


def nodes(number: int, gpus: int = 8, models: tuple[str, ...] = ("H100",)) -> list[CandidateNode]:
    """Return equal nodes, the models in turns of a hundred nodes."""
    found = []
    for at in range(number):
        model = models[at // 100 % len(models)]
        devices = tuple(CandidateGpu(gpu, model=model) for gpu in range(gpus))
        found.append(CandidateNode(f"node-{at:05}", devices, {"model": model}))
    return found


def units(gpus: int, load: Load, seed: int) -> list[Unit]:
    """Return the arrivals of some days on a fleet with so many GPUs."""
    rng = random.Random(seed)  # noqa: S311 (a simulation, no secret)
    kinds = [_workload(rng, load, at) for at in range(load.workloads)]
    mean_gpus = sum(count * pods * weight for count, pods, weight in SIZES) / sum(w for *_, w in SIZES)
    rate = load.load * gpus / (mean_gpus * load.mean_hours * HOUR)
    weights, total = [_weight(hour) for hour in range(math.ceil(load.days * 24))], 0.0
    mean_weight = sum(weights) / len(weights)
    found: list[Unit] = []
    for hour, weight in enumerate(weights):
        total += rate * HOUR * weight / mean_weight
        while len(found) < total:
            found.append(rng.choice(kinds).unit(rng, hour * HOUR + rng.random() * HOUR))
    found.sort(key=lambda unit: unit.arrives)
    requested = sum(unit.runtime * unit.gpu_milli for unit in found) / WHOLE
    scale = load.load * gpus * load.days * DAY / requested if requested else 1.0
    return [_scaled(unit, at, scale) for at, unit in enumerate(found)]


@dataclass(frozen=True)
class _Workload:
    name: str
    owner: str
    queue: str
    priority: int
    request: Request
    members: int
    typical_s: float
    spread: float
    declares: bool

    def unit(self, rng: random.Random, arrives: float) -> Unit:
        """Return one run."""
        runtime = max(30.0, round(self.typical_s * rng.lognormvariate(0.0, self.spread)))
        declared = None
        if self.declares:
            declared = math.ceil(runtime * rng.choice((1.0, 1.2, 2.0, 4.0)) / 900) * 900.0
        return Unit(
            0,
            self.request,
            round(arrives, 3),
            runtime,
            self.members,
            self.priority,
            self.queue,
            self.owner,
            self.name,
            declared,
        )


def _workload(rng: random.Random, load: Load, at: int) -> _Workload:
    names, weights = zip(*load.queues, strict=True)
    queue = rng.choices(names, weights)[0]
    count, members, _ = rng.choices(SIZES, [weight for *_, weight in SIZES])[0]
    variance = load.spread**2 + load.own_spread**2
    typical = load.mean_hours * HOUR * rng.lognormvariate(-variance / 2, load.spread)
    return _Workload(
        f"job-{at:03}",
        f"{queue}-{rng.randrange(20):02}",
        queue,
        100 if rng.random() < load.high_priority else 0,
        _request(count),
        members,
        min(typical, 5 * DAY),
        load.own_spread,
        rng.random() < load.declaring,
    )


@cache
def _request(count: int) -> Request:
    """Return one object for equal requests: they are compared often."""
    return Request(count=count)


def _weight(hour: int) -> float:
    """Return how busy an hour is: less at night and at weekends."""
    day, of_day = divmod(hour, 24)
    busy = 1.0 + 0.6 * math.sin((of_day - 8) / 24 * 2 * math.pi)
    return busy * (0.5 if day % 7 >= 5 else 1.0)


def _scaled(unit: Unit, number: int, scale: float) -> Unit:
    declared = None if unit.declared is None else unit.declared * scale
    return replace(unit, number=number, runtime=unit.runtime * scale, declared=declared)
