"""Storing a period again, from a source that knows less or more about it."""

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


async def save(store: Store, period: AllocationPeriod) -> list[AllocationPeriod]:
    await store.accounted.open("prod", 0.0)
    await store.allocation_periods.save("prod", [period])
    return await store.allocation_periods.overlapping("prod", 0.0, 10_000.0)


async def test_a_period_keeps_its_gpus_when_a_later_version_only_counts_them(store: Store) -> None:
    await save(store, SEEN)
    counted = msgspec.structs.replace(SEEN, held=(), models=(), end=1500.0)
    assert await save(store, counted) == [msgspec.structs.replace(SEEN, end=1500.0)]


async def test_other_gpus_replace_the_stored_ones(store: Store) -> None:
    await save(store, SEEN)
    other = msgspec.structs.replace(SEEN, held=(0, 1))
    assert await save(store, other) == [other]


async def test_another_gpu_count_discards_the_stored_gpus(store: Store) -> None:
    await save(store, SEEN)
    other = msgspec.structs.replace(SEEN, held=(), models=(), gpus=3)
    assert await save(store, other) == [other]
