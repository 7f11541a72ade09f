"""Storing a period again: from a source that knows less or more about it, or while another is open."""

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.period_timeline import put_periods
from gpufleet.store.postgres.jsonb import jsonb
from gpufleet.store.postgres.migrate import migrations, upgrade

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
    model="NVIDIA_A100",
    held=(4, 5),
    models=("NVIDIA_A100", "NVIDIA_H100"),
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


async def test_stored_periods_with_the_spelling_of_their_source_are_read_under_one_name(store: Store) -> None:
    spelt = msgspec.structs.replace(
        SEEN, model="a100", models=("NVIDIA A100-SXM4-80GB", "NVIDIA_A100-SXM4-80GB")
    )
    exact = "NVIDIA_A100_SXM4_80GB"
    assert await save(store, spelt) == [msgspec.structs.replace(SEEN, models=(exact, exact))]
    stored = await store.allocation_periods.newest("prod", [])
    assert stored[SEEN.pod_uid].models == (exact, exact)


NODE = CapacityPeriod(node="n1", gpus=8, model="NVIDIA_A100", start=1000.0)
replace = msgspec.structs.replace


async def capacity(store: Store, *periods: CapacityPeriod) -> list[CapacityPeriod]:
    await store.accounted.open("prod", 0.0)
    for period in periods:
        await store.capacity_periods.save("prod", [period])
    return sorted(await store.capacity_periods.overlapping("prod", 0.0, 10_000.0), key=lambda p: p.start)


async def test_a_period_that_is_open_continues_when_it_is_opened_again(store: Store) -> None:
    assert await capacity(store, NODE, replace(NODE, start=2000.0)) == [NODE]


async def test_an_open_period_ends_where_another_one_of_the_same_node_begins(store: Store) -> None:
    larger = replace(NODE, gpus=16, start=2000.0)
    assert await capacity(store, NODE, larger) == [replace(NODE, end=2000.0), larger]


async def test_an_open_period_that_is_written_from_an_earlier_start_is_one_period(store: Store) -> None:
    assert await capacity(store, NODE, replace(NODE, start=500.0)) == [replace(NODE, start=500.0)]


async def test_a_period_written_while_the_clock_was_ahead_is_replaced(store: Store) -> None:
    ahead = replace(NODE, gpus=16, start=5000.0)
    assert await capacity(store, ahead, NODE) == [NODE]


async def test_the_end_of_a_continued_period_ends_the_stored_one(store: Store) -> None:
    ended = replace(NODE, start=2000.0, end=3000.0)
    assert await capacity(store, NODE, replace(NODE, start=2000.0), ended) == [replace(NODE, end=3000.0)]


@pytest.mark.parametrize(("table", "holder"), [("capacity", "node"), ("holding", "pod_uid")])
async def test_the_database_rejects_a_second_open_period(store: Store, table: str, holder: str) -> None:
    await store.accounted.open("prod", 0.0)
    put = f"INSERT INTO {table} VALUES (1, 'x', $1, $2, '{{}}')"
    await store.database.execute(put, 1000.0, 2000.0)
    await store.database.execute(put, 2000.0, float("inf"))
    with pytest.raises(asyncpg.UniqueViolationError, match=f"{table}_open"):
        await store.database.execute(put, 3000.0, float("inf"))


times = st.integers(0, 20).map(float)


@st.composite
def written(draw: st.DrawFn) -> CapacityPeriod:
    start = draw(times)
    end = draw(st.just(0.0) | st.integers(1, 9).map(lambda length: start + length))
    return replace(NODE, gpus=draw(st.integers(1, 2)), start=start, end=end)


@given(st.lists(written(), max_size=8))
def test_periods_never_overlap_and_the_last_writer_decides_its_time(periods: list[CapacityPeriod]) -> None:
    timeline: dict[float, CapacityPeriod] = {}
    for period in periods:
        timeline = put_periods(timeline.values(), [period])
        for half in range(0, 60):
            at = half / 2
            found = [p for p in timeline.values() if p.start <= at < (p.end or 1e9)]
            assert len(found) <= 1
            if period.start <= at < (period.end or 1e9):
                assert [p.gpus for p in found] == [period.gpus]
        assert sum(not p.end for p in timeline.values()) <= 1
        assert all(start == p.start for start, p in timeline.items())


async def test_upgrading_repairs_a_database_with_periods_that_count_twice(empty_postgres_url: str) -> None:
    settings = StoreSettings(url=empty_postgres_url, start_timeout=5.0)
    await upgrade(empty_postgres_url, settings, migrations()[:5])
    connection = await asyncpg.connect(empty_postgres_url)
    await connection.execute("SET search_path = gpufleet")
    await connection.execute("INSERT INTO accounted_cluster (name, since, seen_at) VALUES ('prod', 0, 20000)")
    for start in (1000.0, 8000.0):
        put = "INSERT INTO capacity VALUES (1, 'n1', $1, 'infinity', $2)"
        await connection.execute(put, start, jsonb(replace(NODE, start=start)))
    await connection.execute(
        "INSERT INTO accounted_hour (cluster, hour, measured) SELECT 1, n, true FROM generate_series(0, 4) AS n"
    )
    await connection.close()
    async with open_store(settings) as store:
        assert await capacity(store) == [replace(NODE, end=8000.0), replace(NODE, start=8000.0)]
        states = await store.hours.states("prod", 0)
        assert [hour for hour, state in states.items() if state.stale] == [2, 3, 4]


async def test_the_latest_periods_are_the_open_ones_and_those_that_ended_last(store: Store) -> None:
    for number, end in enumerate((1100.0, 1300.0, 0.0, 1200.0)):
        await save(store, replace(SEEN, pod_uid=f"pod-{number}", end=end))
    found = await store.allocation_periods.latest("prod", 0.0, 10_000.0, 3)
    assert [period.end for period in found] == [0.0, 1300.0, 1200.0]
    assert await store.allocation_periods.latest("prod", 2000.0, 3000.0, 3) == [
        replace(SEEN, pod_uid="pod-2")
    ]


async def test_the_periods_of_a_node_are_those_that_overlap(store: Store) -> None:
    await save(store, replace(SEEN, end=1500.0))
    await save(store, replace(SEEN, pod_uid="elsewhere", node="n2"))
    periods = store.allocation_periods
    assert await periods.of_node("prod", "n1", 1400.0, 2000.0, 5) == [replace(SEEN, end=1500.0)]
    assert await periods.of_node("prod", "n1", 1500.0, 2000.0, 5) == []
    assert await periods.of_node("unknown", "n1", 0.0, 2000.0, 5) == []
