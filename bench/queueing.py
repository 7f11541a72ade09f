"""Measure the queueing core: decisions, one end while gangs wait, and forward runs.

Each figure is a ratio to a fixed loop over integers and dictionaries in the same run, so that machines compare. The
budgets are three times what was measured when the core was written.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator

from bench.result import Result
from gpufleet.placement import CandidateGpu, Request
from gpufleet.queueing.core import Core, Eviction, Rules, Start
from gpufleet.queueing.forward import Forward
from gpufleet.queueing.needs import Need
from gpufleet.queueing.snapshot import NodeSpec, Snapshot
from gpufleet.queueing.tables import Tables
from gpufleet.queueing.units import Group, Holder, Place, Unit

GPUS = tuple(CandidateGpu(at, island=f"i{at // 4}", bandwidth_gbps=900) for at in range(8))
POOLS = 4


def measure() -> Iterable[Result]:
    base = _fixed_loop()
    yield Result("fixed loop over integers and dictionaries", 1000 * base, "ms")
    for nodes in (1_000, 5_000):
        yield from _burst(base, nodes, 2_000, 1, 1)
        yield from _burst(base, nodes, 250, 8, 8)
        yield from _one_end(base, nodes, distinct=False)
        yield from _one_end(base, nodes, distinct=True)
    for nodes, waiting, gangs, members in ((1_500, 31, 2, 128), (5_000, 500, 8, 64)):
        for preempting in (False, True):
            yield from _forward(base, nodes, waiting, gangs, members, preempting=preempting)


def _fixed_loop() -> float:
    """Return the CPU seconds of a loop that never changes: the best of five."""

    def run() -> None:
        counts: dict[int, int] = {}
        for at in range(200_000):
            key = at * 2_654_435_761 % 4_093
            counts[key] = counts.get(key, 0) + (at & 7)

    return min(_timed(run) for _ in range(5))


def _timed(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


def _ratio(base: float, name: str, seconds: float, most: float, note: str = "") -> Result:
    text = f"{1000 * seconds:.3g} ms{'; ' if note else ''}{note}"
    return Result(name, seconds / base, "× the fixed loop", at_most=most, note=text)


def _need(gpus: int, pool: int | None = None, extra: int = 0) -> Need:
    labels = frozenset[tuple[str, str]]() if pool is None else frozenset({("pool", str(pool))})
    return Need(Request(count=gpus), labels, amounts=(4_000 * gpus + extra, 16_384 * gpus, 1))


def _fleet(nodes: int) -> Snapshot:
    classes = [frozenset({("pool", str(pool))}) for pool in range(POOLS)]
    specs = (NodeSpec(GPUS, classes[node % POOLS], (128_000, 1 << 21, 110)) for node in range(nodes))
    return Snapshot(Tables(("cpu", "memory", "pods")), specs)


def _unit(
    key: str, need: Need, members: int, at: float, priority: int = 0, declared: float | None = None
) -> Unit:
    group = Group(need, members, members)
    return Unit(key, (group,), (-priority, at, key), priority=priority, declared=declared)


def _budget(nodes: int, small: float, large: float) -> float:
    return small if nodes <= 1_500 else large


def _burst(base: float, nodes: int, count: int, gpus: int, members: int) -> Iterator[Result]:
    rng = random.Random(2)
    snapshot = _fleet(nodes)
    need = _need(gpus)
    for node in range(int(nodes * 0.4)):
        place = Place(node, (rng.randrange(8),), 1000, amounts=(4_000, 16_384, 1))
        snapshot.take(Holder(f"r{node}", (place,), -9.0))
    snapshot.tables.need(need)
    snapshot.sync()
    first = Core(snapshot, Rules())
    started = 0

    def run() -> None:
        nonlocal started
        core, started = first.copy(), 0
        for at in range(count):
            core.put(_unit(f"u{at:05d}", need, members, at * 1e-6))
            started += len(core.decide(0.0))

    seconds = min(_timed(run) for _ in range(3)) / count
    name = f"decide for {members} × {gpus} GPU{'s' if gpus > 1 else ''}, {nodes:,} nodes"
    yield _ratio(base, name, seconds, 0.01 if members == 1 else 0.02, f"{started} of {count} units started")


def _one_end(base: float, nodes: int, *, distinct: bool) -> Iterator[Result]:
    """All GPUs are taken by pods of one GPU, 250 gangs of 8 × 8 GPUs wait, and one pod ends."""
    snapshot = _fleet(nodes)
    for node in range(nodes):
        for gpu in range(8):
            snapshot.take(
                Holder(f"r{node}-{gpu}", (Place(node, (gpu,), 1000, amounts=(4_000, 16_384, 1)),), -9.0)
            )
    core = Core(snapshot, Rules(preempt=False))
    for at in range(250):
        core.put(_unit(f"g{at:04d}", _need(8, extra=at if distinct else 0), 8, float(at), declared=None))
    core.decide(0.0)
    taken = []
    for step in range(6):
        key = f"r{nodes - 1 - step}-0"

        def end(key: str = key, now: float = 1.0 + 70 * step) -> None:
            core.release(key)
            core.decide(now)

        taken.append(_timed(end))
    kind = "different" if distinct else "equal"
    name = f"one pod ends, 250 {kind} gangs wait, {nodes:,} nodes"
    yield _ratio(base, name, sorted(taken)[len(taken) // 2], _budget(nodes, 0.15, 0.2))


def _forward(
    base: float, nodes: int, waiting: int, gangs: int, members: int, *, preempting: bool
) -> Iterator[Result]:
    """The fleet is full, half of the units declare their run times, and a few large gangs wait with others."""
    rng, snapshot = random.Random(3), _fleet(nodes)
    run_times: dict[str, float] = {}
    ends = []
    for node in range(nodes):
        left, gpu = 8, 0
        while left:
            gpus = rng.choice([each for each in (1, 1, 4, 8) if each <= left])
            key, elapsed = f"r{node}-{gpu}", rng.uniform(0, 20_000)
            total = elapsed + rng.lognormvariate(8.5, 1)
            place = Place(node, tuple(range(gpu, gpu + gpus)), 1000, amounts=(4_000 * gpus, 16_384 * gpus, 1))
            declared = total * 1.5 - elapsed if rng.random() < 0.5 else None
            unit = _unit(key, _need(gpus), 1, -elapsed)
            snapshot.take(Holder(key, (place,), -elapsed, declared_end=declared, unit=unit))
            run_times[key] = total
            ends.append((total - elapsed, key))
            left, gpu = left - gpus, gpu + gpus
    core = Core(snapshot, Rules())
    for at in range(waiting):
        key = f"w{at:04d}"
        run_times[key] = rng.lognormvariate(8.5, 1)
        if at < gangs:
            unit = _unit(
                key, _need(8), members, float(at), priority=10 if preempting else 0, declared=3_600.0
            )
        else:
            declared = run_times[key] * 1.5 if rng.random() < 0.5 else None
            unit = _unit(
                key, _need(rng.choice((1, 1, 4, 8)), rng.choice((None, 1))), 1, float(at), declared=declared
            )
        core.put(unit)
    core.copy().decide(0.0)  # learns the states
    copied = _timed(core.copy)
    events = evicted = 0

    def run() -> None:
        nonlocal events, evicted
        open_units = {f"w{at:04d}" for at in range(waiting)}

        def observe(now: float, decisions: list[Start | Eviction]) -> None:
            open_units.difference_update(each.unit.key for each in decisions if isinstance(each, Start))

        forward = Forward(core.copy(), 0.0, ends, lambda unit: run_times[unit.key])
        forward.run(14 * 86_400.0, lambda: not open_units, observe=observe)
        events, evicted = forward.events, len(forward.evictions)

    seconds = min(_timed(run) for _ in range(2))
    kind = "preempting" if preempting else "waiting"
    name = f"forward run, {nodes:,} nodes, {waiting} units, {gangs} {kind} gangs of {members} × 8"
    note = f"{events:,} events, {evicted} evictions, copy {1000 * copied:.1f} ms"
    yield _ratio(base, name, seconds, _budget(nodes, 50.0, 150.0), note)
