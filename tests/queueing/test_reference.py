"""With counts, views and memories the core decides as without them."""

import random
from dataclasses import dataclass, field

import pytest
from tests.queueing.reference import ReferenceCore, ReferenceReservations

from gpufleet.placement import CandidateGpu, CandidateMigInstance, Exclusivity, Request, Topology
from gpufleet.queueing.core import Core, Eviction, Rules, Start
from gpufleet.queueing.forward import Forward
from gpufleet.queueing.needs import Need
from gpufleet.queueing.queues import Queues
from gpufleet.queueing.shares.quota import Quota, Quotas
from gpufleet.queueing.snapshot import NodeSpec, Snapshot
from gpufleet.queueing.tables import Tables
from gpufleet.queueing.units import Group, Holder, Level, Place, Unit

QUOTAS = (Quota("a", guaranteed=8000), Quota("b", guaranteed=4000, limit=20_000), Quota("c", weight=2))


@dataclass
class Case:
    """A fleet, what runs on it, and what arrives."""

    specs: list[NodeSpec]
    holders: list[Holder]
    arrivals: list[tuple[float, Unit]]
    run_times: dict[str, float] = field(default_factory=dict)
    rules: Rules = Rules()  # noqa: RUF009  (immutable)
    queues: bool = False


def case(seed: int) -> Case:
    """Return a random case: pools, racks, islands, MIG, shares, priorities, gangs, foreign holders, CPU."""
    rng = random.Random(seed)
    specs = [_node(rng, node) for node in range(rng.randint(3, 7))]
    queues = rng.random() < 0.5
    found = Case(
        specs, [], [], rules=Rules(rng.choice((0, 1, 4)), grace=rng.choice((0.0, 30.0))), queues=queues
    )
    for node, spec in enumerate(specs):
        for gpu in spec.gpus:
            if not gpu.mig and rng.random() < 0.4:
                key = f"foreign {node}-{gpu.id}"
                place = Place(node, (gpu.id,), 1000, amounts=(rng.choice((0, 2)),))
                end = rng.uniform(10, 400)
                declared = end + rng.uniform(0, 100) if rng.random() < 0.5 else None
                stays = declared is None and rng.random() < 0.2
                found.holders.append(
                    Holder(key, (place,), -100.0, declared_end=declared, stays=stays, protected=True)
                )
                found.run_times[key] = 1e6 if stays else end
    at = 0.0
    for number in range(rng.randint(5, 25)):
        at += rng.choice((0.0, 1.0, 7.0, 31.0, 90.0))
        key = f"u{number:03d}"
        found.run_times[key] = rng.uniform(20, 300)
        found.arrivals.append((at, _unit(rng, key, at, found.run_times[key], queues=queues)))
    return found


def _node(rng: random.Random, node: int) -> NodeSpec:
    mig = rng.random() < 0.2
    gpus = tuple(
        CandidateGpu(
            at,
            health="Healthy" if rng.random() < 0.95 else "Unhealthy",
            island=f"i{at // 2}",
            bandwidth_gbps=rng.choice((100, 900)),
            model="H100" if node % 2 else "A100",
            mig=tuple(CandidateMigInstance(f"{at}-{each}", "1g.10gb") for each in range(3))
            if mig and at < 2
            else (),
        )
        for at in range(4)
    )
    labels = frozenset({("pool", rng.choice("xy"))})
    return NodeSpec(gpus, labels, (rng.choice((8, 16)),), (node // 2,), cordoned=rng.random() < 0.05)


def _unit(rng: random.Random, key: str, at: float, run_time: float, *, queues: bool) -> Unit:
    kind = rng.random()
    if kind < 0.15:
        request = Request(count=1, exclusivity=Exclusivity.SHARED, share_milli=rng.choice((250, 500)))
    elif kind < 0.25:
        request = Request(count=1, exclusivity=Exclusivity.MIG, mig_profile="1g.10gb")
    else:
        topology = rng.choice((Topology.IGNORE, Topology.IGNORE, Topology.PREFERRED, Topology.REQUIRED))
        models = frozenset({"H100"}) if rng.random() < 0.2 else frozenset[str]()
        bandwidth = 500 if rng.random() < 0.1 else 0
        request = Request(
            count=rng.choice((1, 1, 2, 4)), topology=topology, min_bandwidth_gbps=bandwidth, models=models
        )
    selector = frozenset({("pool", "x")}) if rng.random() < 0.3 else frozenset[tuple[str, str]]()
    nodes = 0b11 if rng.random() < 0.05 else None
    most = rng.choice((1, 1, 1, 2, 3))
    least = rng.randint(1, most)
    level = Level((0,), required=True) if most > 1 and rng.random() < 0.4 else None
    # Victims of several members depend on the order of the search, so only single members evict here.
    priority = rng.choice((0, 0, 10)) if most == 1 else 0
    milli = request.gpu_milli or 143
    declared = run_time * rng.choice((1.0, 1.5)) if rng.random() < 0.5 else None
    return Unit(
        key, (Group(Need(request, selector, nodes, (rng.choice((0, 1, 3)),)), least, most),),
        (-priority, at, key), milli * most, milli * least, priority, rng.choice("abc") if queues else None,
        declared, level, preempts=most == 1,
    )  # fmt: skip


def run(what: Case, *, slowly: bool) -> tuple[list[object], int]:
    """Return all starts with their places and all evictions."""
    snapshot = Snapshot(Tables(("cpu",)), what.specs)
    quotas = Queues(Quotas(QUOTAS), {}, 86_400.0) if what.queues else None
    if slowly:
        core: Core = ReferenceCore(
            snapshot,
            what.rules,
            quotas,
            reservations=ReferenceReservations(snapshot, what.rules.reservations),
        )
    else:
        core = Core(snapshot, what.rules, quotas)
    for holder in what.holders:
        core.take(holder)
    coming = list(reversed(what.arrivals))
    events: list[object] = []

    def observe(now: float, decisions: list[Start | Eviction]) -> None:
        for each in decisions:
            if isinstance(each, Start):
                events.append((now, each.unit.key, each.holder.places))
            else:
                events.append((now, each.unit.key, tuple(holder.key for holder in each.victims)))

    ends = [(what.run_times[holder.key], holder.key) for holder in what.holders]
    forward = Forward(
        core, 0.0, ends, lambda unit: what.run_times[unit.key],
        next_arrival=lambda now: coming.pop() if coming else None,
    )  # fmt: skip
    forward.run(5_000.0, most_events=400, observe=observe)
    return events, len(forward.evictions)


def compare(seeds: range) -> tuple[int, int]:
    """Compare random cases; return how many units started and were evicted in all."""
    starts = evictions = 0
    for seed in seeds:
        (expected, _), (found, evicted) = run(case(seed), slowly=True), run(case(seed), slowly=False)
        assert found == expected, f"seed {seed}"
        starts += len(found)
        evictions += evicted
    return starts, evictions


def test_random_cases_are_decided_as_by_the_reference() -> None:
    starts, evictions = compare(range(40))
    assert starts > 400
    assert evictions > 20


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 2_000, 250))
def test_many_random_cases_are_decided_as_by_the_reference(first: int) -> None:
    compare(range(first, first + 250))
