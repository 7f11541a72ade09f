"""A wrong clock, a long pause or a mistake in a setting deletes nothing, or little."""

from functools import partial

import pytest

from gpufleet.errors import OperationRefused
from gpufleet.model.reading import TrainingPoint
from gpufleet.runtime.settings import AccountingSettings, StoreSettings
from gpufleet.store import Leadership, Store
from gpufleet.store.partitions import ensure_month
from gpufleet.store.postgres.leadership import leader_state
from gpufleet.store.prune import RetentionSettings, find_expired, prune, time_of
from gpufleet.store.prune_runs import MAX_SHARE, MIN_ROWS, last_runs

DAY = 86_400.0
NOW = 1_800_000_000.0
DEFAULT = RetentionSettings(AccountingSettings(), {})


def set_clock(store: Store, now: float) -> None:
    store.database.clock = f"to_timestamp({now})"


def candidate(store: Store, settings: StoreSettings) -> Leadership:
    clock = store.database.clock
    return Leadership(settings.url, settings, "accounting", retry_interval=0.05, clock=clock)


@pytest.fixture
def store_settings(store_settings: StoreSettings) -> StoreSettings:
    """Settings of a server whose clock is that of the database, however wrong: an embedded one."""
    return StoreSettings(url=store_settings.url, pool_size=4, max_clock_skew=1e10)


@pytest.fixture
async def written(store: Store) -> Store:
    """A database that was written until now, with ended workloads of each of the last 600 days."""
    set_clock(store, NOW)
    await store.accounted.open("prod", NOW - 600 * DAY)
    await store.accounted.set_stored_until("prod", NOW)
    await store.database.execute(
        "INSERT INTO ended_workload SELECT 'prod', day::text, $1 - day * 86400, '[]' FROM generate_series(0, 599) AS day",
        NOW,
    )
    return store


async def ended(store: Store) -> int:
    return int(await store.database.fetchval("SELECT count(*) FROM ended_workload"))


async def test_ages_count_from_the_clock_of_the_database(written: Store) -> None:
    await prune(written, DEFAULT)
    assert await ended(written) == 401
    [run] = await written.database.transaction(lambda connection: last_runs(connection, 10))
    assert (run.origin, run.cluster, run.rows) == ("ended_workload", "prod", 199)
    assert (run.oldest, run.newest) == (NOW - 599 * DAY, NOW - 401 * DAY)


async def test_nothing_newer_than_the_newest_data_less_its_retention_is_deleted(written: Store) -> None:
    await written.accounted.set_stored_until("prod", NOW - 100 * DAY)
    [expired] = await find_expired(written, DEFAULT)
    assert (expired.rows, expired.newest) == (99, NOW - 501 * DAY)
    await prune(written, DEFAULT, confirmed=True)
    assert await ended(written) == 501


async def test_a_clock_that_is_ahead_at_the_start_prunes_nothing_until_an_operator_confirms(
    written: Store, store_settings: StoreSettings
) -> None:
    """Also after the leader has written with that clock, so that its newest data looks recent."""
    set_clock(written, NOW + 450 * DAY)
    async with candidate(written, store_settings):
        await written.accounted.set_stored_until("prod", NOW + 450 * DAY)
        with pytest.raises(
            OperationRefused, match=r"2027-01-15T08:00Z, or the clock was set .* says 2028-04-09"
        ):
            await prune(written, DEFAULT)
    async with candidate(written, store_settings):  # a restart changes nothing
        with pytest.raises(OperationRefused, match="gpufleet db prune --confirm"):
            await prune(written, DEFAULT)
    assert await ended(written) == 600
    await prune(written, DEFAULT, confirmed=True)
    assert await ended(written) == 0
    assert not (await time_of(written)).held
    await prune(written, DEFAULT)


async def test_a_clock_that_is_set_while_the_leader_runs_prunes_nothing(
    written: Store, store_settings: StoreSettings
) -> None:
    async with candidate(written, store_settings) as leader:
        await prune(written, DEFAULT)
        assert await ended(written) == 401
        set_clock(written, NOW + 450 * DAY)
        leader._clock = written.database.clock
        assert await leader._renew()
        await written.accounted.set_stored_until("prod", NOW + 450 * DAY)
        with pytest.raises(OperationRefused, match="clock was set"):
            await prune(written, DEFAULT)
    assert await ended(written) == 401


async def test_a_pause_of_hours_holds_nothing(written: Store, store_settings: StoreSettings) -> None:
    async with candidate(written, store_settings):
        pass
    set_clock(written, NOW + 23 * 3600)
    async with candidate(written, store_settings):
        await prune(written, DEFAULT)
        state = await leader_state(written.database, "accounting")
    assert state is not None
    assert state.gap_since is None


async def test_a_new_database_holds_nothing(store: Store, store_settings: StoreSettings) -> None:
    async with candidate(store, store_settings):
        assert await prune(store, DEFAULT) == []


async def test_a_run_deletes_a_share_of_a_table_oldest_rows_first(written: Store) -> None:
    """As with a retention that was set to minutes instead of days."""
    await written.database.execute(
        "INSERT INTO ended_workload SELECT 'prod', 'more ' || n, $1, '[]' FROM generate_series(1, 40000) AS n",
        NOW - 200 * DAY,
    )
    await written.database.execute("ANALYZE ended_workload")
    brief = RetentionSettings(AccountingSettings(ended_retention=DAY), {})
    first = int(40_600 * MAX_SHARE)
    assert first > MIN_ROWS
    await prune(written, brief)
    assert await ended(written) == 40_600 - first
    oldest = await written.database.fetchval("SELECT min(ended_at) FROM ended_workload")
    assert oldest == NOW - 200 * DAY
    await prune(written, brief, confirmed=True)
    assert await ended(written) == 2


async def test_a_run_deletes_one_month_of_a_partitioned_table(written: Store) -> None:
    for month in range(4):
        hour = int(NOW // 3600) - (500 + 31 * month) * 24
        await written.database.transaction(partial(ensure_month, hour=hour))
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'workload_hour'::regclass"
    assert await written.database.fetchval(partitions) == 4
    await prune(written, DEFAULT)
    assert await written.database.fetchval(partitions) == 3
    await prune(written, DEFAULT, confirmed=True)
    assert await written.database.fetchval(partitions) == 0


async def test_training_points_are_bounded_and_held_in_the_same_way(written: Store) -> None:
    points = [TrainingPoint("loss", 1.0, NOW - 20 * DAY + number) for number in range(3 * MIN_ROWS)]
    await written.training.append("prod", "job", points)
    retention = RetentionSettings(AccountingSettings(), {}, {"prod": 10 * DAY})

    async def left() -> int:
        return int(await written.database.fetchval("SELECT count(*) FROM training_point"))

    await prune(written, retention)
    assert await left() == 2 * MIN_ROWS
    set_clock(written, NOW + 450 * DAY)
    with pytest.raises(OperationRefused):
        await prune(written, retention)
    assert await left() == 2 * MIN_ROWS


async def test_readings_are_held_too(written: Store) -> None:
    await written.database.execute("INSERT INTO reading_state VALUES ('prod', 'x', $1, '')", NOW - 60.0)
    set_clock(written, NOW + 450 * DAY)
    await written.readings.compact_and_prune("prod", NOW + 450 * DAY, DAY)
    assert await written.database.fetchval("SELECT count(*) FROM reading_state") == 1


async def test_readings_do_not_expire_by_the_clock_of_a_server(written: Store) -> None:
    await written.database.execute("INSERT INTO reading_state VALUES ('prod', 'x', $1, '')", NOW - 60.0)
    await written.readings.compact_and_prune("prod", NOW + 450 * DAY, DAY)
    assert await written.database.fetchval("SELECT count(*) FROM reading_state") == 1
    set_clock(written, NOW + DAY - 61.0)
    await written.readings.compact_and_prune("prod", NOW + DAY - 61.0, DAY)
    assert await written.database.fetchval("SELECT count(*) FROM reading_state") == 1
