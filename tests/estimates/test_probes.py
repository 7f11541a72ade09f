"""Hypothetical units start when a real one of their size would, and change nothing for others."""

import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.forward import Forward, ForwardRuns, Sampled
from gpufleet.estimates.run_times import Job
from gpufleet.queueing.shares.quota import Quota, Quotas
from gpufleet.scheduler.queues.expected_order import ExpectedOrder

HOUR = 3600.0
QUEUES = ("a", "b", "c")


def fleet(rng: random.Random, *, queues: bool = False, reservations: bool = False) -> FleetState:
    """Return a full fleet of random units, more of which wait and arrive."""
    nodes, running = rng.randint(2, 12), []
    free = [8000] * nodes
    for node in range(nodes):
        while free[node] and rng.random() < 0.95:
            gpus = rng.randint(1, free[node] // 1000)
            free[node] -= 1000 * gpus
            job = Job(gpus=float(gpus))
            queue = rng.choice(QUEUES) if queues else ""
            running.append(RunningUnit(job, rng.uniform(0, HOUR), ((node, 1000 * gpus),), queue=queue))
    units = []
    for at in range(rng.randint(0, 12)):
        gpus, members = rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2))
        queue = rng.choice(QUEUES) if queues else ""
        units.append(WaitingUnit(f"w{at}", Job(gpus=float(gpus)), 1000 * gpus, members, queue=queue))
    order = None
    if queues:
        use = {queue: rng.uniform(0, 100 * HOUR) for queue in QUEUES}
        quotas = Quotas([Quota("a", weight=2), Quota("b", guaranteed=8000), Quota("c", limit=8000 * nodes)])
        order = ExpectedOrder(quotas, use, frozenset())
    models = ["H100"] * nodes
    arrivals = [replace(unit, key=f"x{unit.key}") for unit in units]
    state = FleetState([8000] * nodes, free, models, running, units, arrivals, [nodes / HOUR], order=order)
    return replace(state, waiting=state.in_order(), reservations=reservations)


def run(state: FleetState, probes: list[WaitingUnit], seed: int) -> Forward:
    """Run once; the same seed gives the same ends, run times and arrivals."""
    rng = np.random.default_rng(seed)
    ends = rng.lognormal(7.5, 1.0, len(state.running))
    arriving = rng.lognormal(7.5, 1.0, len(state.arrivals)).tolist()
    waiting = [1800.0 for _ in state.waiting]
    return ForwardRuns(state, probes, 14 * 24 * HOUR).run(
        Sampled(ends, waiting, arriving), random.Random(seed)
    )


def hypothetical(rng: random.Random, state: FleetState) -> WaitingUnit:
    gpus, members = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2))
    queue = rng.choice(QUEUES) if state.order is not None else ""
    return WaitingUnit("probe", Job(gpus=float(gpus)), 1000 * gpus, members, queue=queue)


@pytest.mark.parametrize("seed", range(30))
def test_a_hypothetical_unit_starts_when_a_real_one_at_the_end_of_the_queue_would(seed: int) -> None:
    rng = random.Random(seed)
    state = fleet(rng)
    unit = hypothetical(rng, state)
    alone, probed = run(state, [], seed), run(state, [unit], seed)
    assert alone.starts == probed.starts, "it takes nothing from others"
    real = run(replace(state, waiting=[*state.waiting, unit]), [], seed)
    assert probed.probes.get("probe") == real.starts.get("probe")


@pytest.mark.parametrize("queues", [False, True])
def test_with_reservations_and_queues_it_starts_at_nearly_the_same_time(queues: bool) -> None:
    ratios = []
    for seed in range(100):
        rng = random.Random(seed)
        state = fleet(rng, queues=queues, reservations=True)
        unit = hypothetical(rng, state)
        probed = run(state, [unit], seed).probes["probe"]
        joined = replace(state, waiting=[*state.waiting, unit])
        real = run(replace(joined, waiting=joined.in_order()), [], seed).starts["probe"]
        ratios.append((probed + 60) / (real + 60))
    assert statistics.fmean(0.9 <= ratio <= 1.1 for ratio in ratios) >= 0.9
    assert statistics.geometric_mean(ratios) == pytest.approx(1.0, rel=0.05)


def test_a_hypothetical_unit_of_no_queue_is_behind_all_queues() -> None:
    quotas = Quotas([Quota("a"), Quota("b")])
    running = [RunningUnit(Job(gpus=8.0), HOUR, ((0, 8000),), queue="a")]
    waiting = [WaitingUnit(f"w{at}", Job(gpus=8.0), 8000, queue="a") for at in range(3)]
    order = ExpectedOrder(quotas, {"a": 100 * HOUR}, frozenset())
    state = FleetState([8000], [0], ["H100"], running, waiting, order=order)
    probes = [WaitingUnit(queue, Job(gpus=8.0), 8000, queue=queue) for queue in ("", "a", "b")]
    sampled = Sampled(np.array([100.0]), [1000.0] * 3, [])
    found = ForwardRuns(state, probes, HOUR).run(sampled, random.Random(1))
    assert found.probes == {"b": 100.0, "a": 3100.0, "": 3100.0}


def test_a_hypothetical_unit_beyond_the_limit_of_its_queue_does_not_start() -> None:
    order = ExpectedOrder(Quotas([Quota("a", limit=4000)]), {}, frozenset())
    state = FleetState([8000], [8000], ["H100"], [], [], order=order)
    probes = [WaitingUnit(str(gpus), Job(), 1000 * gpus, queue="a") for gpus in (4, 8)]
    found = ForwardRuns(state, probes, HOUR).run(Sampled(np.array([]), [], []), random.Random(1))
    assert found.probes == {"4": 0.0}
