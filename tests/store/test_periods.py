"""What is kept of a period when it is told of again by somebody who knows less, or more."""

import msgspec

from gpufleet.model.periods import AllocationPeriod
from gpufleet.store import Store

SEEN = AllocationPeriod(
    pod_uid="slurm-7-100-0",
    pod="7-n1",
    namespace="nlp",
    node="n1",
    workload_uid="slurm-7-100",
    workload_kind="SlurmJob",
    workload_name="train",
    source="slurm",
    gpus=2,
    share=1.0,
    model="a100",
    held=(4, 5),
    models=("a100", "h100"),
    labels={},
    annotations={},
    start=1000.0,
)


async def told(store: Store, period: AllocationPeriod) -> list[AllocationPeriod]:
    await store.accounted.open("prod", 0.0)
    await store.allocation_periods.save("prod", [period])
    return await store.allocation_periods.overlapping("prod", 0.0, 10_000.0)


async def test_gpus_that_were_seen_stay_when_a_database_that_only_counts_tells_the_end(store: Store) -> None:
    await told(store, SEEN)
    counted = msgspec.structs.replace(SEEN, held=(), models=(), end=1500.0)
    assert await told(store, counted) == [msgspec.structs.replace(SEEN, end=1500.0)]


async def test_other_gpus_replace_those_that_were_seen(store: Store) -> None:
    await told(store, SEEN)
    other = msgspec.structs.replace(SEEN, held=(0, 1))
    assert await told(store, other) == [other]


async def test_another_number_of_gpus_leaves_open_which_they_were(store: Store) -> None:
    await told(store, SEEN)
    other = msgspec.structs.replace(SEEN, held=(), models=(), gpus=3)
    assert await told(store, other) == [other]
