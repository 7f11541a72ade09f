import asyncio
import dataclasses
from itertools import pairwise

import pytest

from gpufleet.errors import LimitExceeded, StoreUnavailable
from gpufleet.model.training_point import RankProgress, TrainingPoint
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.postgres.database import open_database
from gpufleet.store.postgres.migrate import migrations, upgrade
from gpufleet.store.training import MAX_READ_POINTS

_SERIES = """
INSERT INTO training_series (cluster, workload_uid, oldest, metric, rank)
SELECT 'here', 'job', 0, 'metric' || m, r FROM generate_series(1, $1::int) m, generate_series(0, $2::int - 1) r
"""
_POINTS = """
INSERT INTO training_point SELECT id, at, at FROM training_series, generate_series(1, $1::int) at
"""


async def _fill(store: Store, metrics: int, ranks: int, points: int) -> None:
    await store.database.execute(_SERIES, metrics, ranks)
    await store.database.execute(_POINTS, points)


async def _counted(store: Store) -> tuple[int, int]:
    """Return the points that the series count, and those that there are."""
    row = await store.database.fetchrow(
        "SELECT (SELECT sum(points) FROM training_series), (SELECT count(*) FROM training_point)"
    )
    assert row is not None
    return int(row[0] or 0), row[1]


async def test_a_series_of_up_to_the_limit_is_returned_whole(store: Store) -> None:
    await _fill(store, 2, 1, MAX_READ_POINTS // 2)
    assert len(await store.training.read("job", 0.0, 1e11)) == MAX_READ_POINTS


async def test_a_longer_series_is_downsampled_to_its_own_points(store: Store) -> None:
    await _fill(store, 2, 2, 10_000)
    points = await store.training.read("job", 0.0, 1e11)
    assert MAX_READ_POINTS * 0.99 < len(points) <= MAX_READ_POINTS
    assert all(point.value == point.time for point in points)
    assert points == sorted(points, key=lambda point: (point.time, point.metric, point.rank))
    lines: dict[tuple[str, int | None], list[float]] = {}
    for point in points:
        lines.setdefault((point.metric, point.rank), []).append(point.time)
    assert len(lines) == 4
    for times in lines.values():
        assert times == next(iter(lines.values()))  # what was logged together stays together
        assert times[-1] == 10_000
        assert max(after - before for before, after in pairwise(times)) <= 3


async def test_a_part_of_a_long_series_is_returned_whole(store: Store) -> None:
    await _fill(store, 3, 1, 10_000)
    points = await store.training.read("job", 1_000.0, 1_999.0)
    assert len(points) == 3_000
    assert {point.time for point in points} == set(range(1_000, 2_000))


async def test_of_too_many_series_the_lower_ranks_are_read_and_any_rank_when_requested(store: Store) -> None:
    await _fill(store, 2, 1_000, 15)
    points = await store.training.read("job", 0.0, 1e11)
    assert {point.rank for point in points} == set(range(100))
    assert len(await store.training.read("job", 0.0, 1e11, rank=999)) == 30


async def test_a_job_has_at_most_the_points_that_it_may_have(store: Store) -> None:
    points = [TrainingPoint("loss", 1.0, float(step)) for step in range(10)]
    await store.training.append("here", "job", points, 10)
    with pytest.raises(LimitExceeded, match=r"training\.max_points"):
        await store.training.append("here", "job", [TrainingPoint("loss", 1.0, 10.0)], 10)
    await store.training.append("here", "other", [TrainingPoint("loss", 1.0, 10.0)], 10)
    assert await _counted(store) == (11, 11)


async def test_series_count_each_point_once_and_forget_pruned_ones(store: Store) -> None:
    batches = [
        [TrainingPoint(metric, value, float(step), 0) for metric in ("loss", "mfu") for step in range(50)]
        for value in (1.0, 2.0)
    ]
    await asyncio.gather(*(store.training.append("here", "job", batch) for batch in batches * 4))
    assert await _counted(store) == (100, 100)
    await store.training.prune({"here": 10.0}, 30.0, "here", 1_000)
    assert await _counted(store) == (60, 60)


async def test_upgrading_counts_the_points_that_are_there(empty_postgres_url: str) -> None:
    settings = StoreSettings(url=empty_postgres_url, pool_size=2)
    names = [step.name for step in migrations()]
    before = migrations()[: names.index("training_points")]
    await upgrade(empty_postgres_url, settings, before)
    async with open_database(empty_postgres_url, settings) as database:
        await _fill(Store(database, empty_postgres_url, settings), 2, 1, 7)
    async with open_store(settings) as store:
        assert await _counted(store) == (14, 14)


async def test_long_reads_have_their_own_connections_and_time_limit(store_settings: StoreSettings) -> None:
    settings = dataclasses.replace(store_settings, pool_size=2, query_timeout=0.6)
    async with open_store(settings, retry_timeout=0.0) as store:
        await _fill(store, 1, 1, 10)
        async with store.database._pool.acquire() as connection, connection.transaction():
            await connection.execute("LOCK TABLE training_point")
            reads = [asyncio.create_task(store.training.read("job", 0.0, 1e11)) for _ in range(12)]
            await asyncio.sleep(0)
            assert await store.database.fetchval("SELECT 1") == 1  # does not wait for them
            results = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results)
        assert any("store.query_timeout" in str(result) for result in results)
        assert any("graphs and reports have 3" in str(result) for result in results)
        assert len(await store.training.read("job", 0.0, 1e11)) == 10


async def test_batches_that_wait_for_each_other_leave_connections_for_others(
    store_settings: StoreSettings,
) -> None:
    async with open_store(dataclasses.replace(store_settings, pool_size=4)) as store:
        await _fill(store, 1, 1, 1)
        async with store.database._pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT FROM training_series FOR UPDATE")
            point = TrainingPoint("metric1", 1.0, 5.0, 0)
            batches = [asyncio.create_task(store.training.append("here", "job", [point])) for _ in range(12)]
            await asyncio.sleep(0)
            async with asyncio.timeout(5):
                assert await store.database.fetchval("SELECT 1") == 1
            assert not any(batch.done() for batch in batches)
        await asyncio.gather(*batches)
        assert len(await store.training.read("job", 0.0, 10.0)) == 2


async def test_the_last_steps_of_ranks_are_read_with_their_pace(store: Store) -> None:
    points = [TrainingPoint("step", 10.0 * n, 1000.0 + 20 * n, rank) for rank in (0, 1) for n in range(10)]
    points += [TrainingPoint("loss", 1.0, 5000.0, 0), TrainingPoint("step", 1.0, 900.0, None)]
    await store.training.append("test", "job", points)
    assert await store.training.progress(["job", "other"], 950.0) == {
        "job": [RankProgress(rank, 90.0, 1180.0, 20.0, 0.5) for rank in (0, 1)]
    }
