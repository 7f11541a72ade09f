import random

import pytest

from gpufleet.placement import (
    PRIOR,
    Allocation,
    CandidateGpu,
    CandidateNode,
    Demand,
    DemandMemory,
    Exclusivity,
    Inventory,
    Kind,
    Request,
)
from gpufleet.placement.fragmentation import fragmentation

DAY = 86400.0


def weight(demand: Demand, kind: Kind) -> float:
    return dict(demand.kinds).get(kind, 0.0)


def test_claims_count_half_after_a_half_life_and_the_prior_stays() -> None:
    memory = DemandMemory(half_life_s=DAY)
    three = Request(count=3)
    for _ in range(8):
        memory.observe(three, now=1000.0)
    assert weight(memory.demand(1000.0), Kind.of(three)) == pytest.approx(8)
    assert weight(memory.demand(1000.0 + DAY), Kind.of(three)) == pytest.approx(4)
    assert weight(memory.demand(1000.0 + 100 * DAY), Kind.of(three)) == pytest.approx(0, abs=1e-9)
    assert weight(memory.demand(1000.0 + DAY), Kind(8, 1000)) == weight(PRIOR, Kind(8, 1000))


def test_a_memory_stays_small_and_sane_over_years() -> None:
    memory, rng = DemandMemory(half_life_s=DAY), random.Random(1)
    for day in range(2000):
        for _ in range(5):
            memory.observe(Request(cpu_milli=rng.randrange(100_000)), day * DAY)
        memory.observe(Request(count=2), day * DAY)
    demand = memory.demand(2000 * DAY)
    assert len(demand.kinds) <= 256
    assert weight(demand, Kind(2, 1000)) == pytest.approx(weight(PRIOR, Kind(2, 1000)) + 1, rel=0.01)


def test_nothing_seen_means_the_prior() -> None:
    assert DemandMemory().demand(5.0) == PRIOR


def test_a_mig_claim_is_no_demand_for_whole_gpus() -> None:
    assert Kind.of(Request(count=3, exclusivity=Exclusivity.MIG, mig_profile="1g.10gb", cpu_milli=5)) == Kind(
        0, 0, 5
    )


def test_fragmentation_counts_what_the_next_task_cannot_use() -> None:
    nodes = [CandidateNode(f"node-{at}", tuple(CandidateGpu(gpu) for gpu in range(4))) for at in range(2)]
    sick = CandidateNode("node-2", (CandidateGpu(0, health="Unhealthy"), CandidateGpu(1)))
    cluster = Inventory([*nodes, sick])
    cluster.allocate("pod-1", Allocation("pod-1", "node-0", (0,), 1000))
    figures = fragmentation(cluster, Demand.of({Kind(2, 1000): 1.0}), sizes=(1, 2, 4))
    assert (figures.gpus, figures.free, figures.unusable) == (9, 8.0, 1.0)
    assert figures.fits_by_size == {1: 8, 2: 3, 4: 1}
    assert figures.percent == pytest.approx(12.5)
    assert fragmentation(Inventory(), PRIOR).percent == 0.0
