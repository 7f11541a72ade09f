import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog
from tests.store.processes import frozen
from tests.waiting import wait_until

from gpufleet.errors import OperationRefused, SettingsError, StoreUnavailable
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.postgres.bulk import bulk_upsert
from gpufleet.store.postgres.database import Database, check_server_version, open_database


@pytest.fixture
async def database(store: Store) -> Database:
    await store.database.execute("CREATE TABLE item (id int PRIMARY KEY, text text)")
    return store.database


async def _drop_connections(settings: StoreSettings) -> None:
    """Terminate all other sessions, as a restart or a firewall does."""
    connection = await asyncpg.connect(settings.url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


async def test_a_transaction_commits_and_returns_its_result(database: Database) -> None:
    async def work(connection: asyncpg.Connection) -> str:
        await connection.execute("INSERT INTO item VALUES (1, 'one')")
        return "done"

    assert await database.transaction(work) == "done"
    assert await database.fetchval("SELECT text FROM item WHERE id = 1") == "one"


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        await connection.execute("INSERT INTO item VALUES (1, 'one')")
        raise LookupError("changed my mind")

    with pytest.raises(LookupError):
        await database.transaction(work)
    assert await database.fetch("SELECT * FROM item") == []


async def test_lost_idle_connections_are_replaced(database: Database, store_settings: StoreSettings) -> None:
    await asyncio.gather(*(database.fetchval("SELECT pg_sleep(0.05)") for _ in range(4)))
    await _drop_connections(store_settings)
    assert await asyncio.gather(*(database.fetchval("SELECT 1") for _ in range(8))) == [1] * 8


async def test_a_connection_lost_in_a_transaction_repeats_the_whole_transaction(
    database: Database, store_settings: StoreSettings
) -> None:
    runs = 0

    async def work(connection: asyncpg.Connection) -> None:
        nonlocal runs
        runs += 1
        await connection.execute("INSERT INTO item VALUES ($1, 'x')", runs)
        if runs == 1:
            await _drop_connections(store_settings)
        await connection.execute("INSERT INTO item VALUES ($1, 'y')", runs + 100)

    await database.transaction(work)
    assert [row["id"] for row in await database.fetch("SELECT id FROM item ORDER BY id")] == [2, 102]
    assert database.counts.repeats == 1


async def test_two_transactions_that_deadlock_both_succeed(database: Database) -> None:
    await database.execute("INSERT INTO item VALUES (1, ''), (2, '')")
    met = asyncio.Barrier(2)
    first_round = {1, 2}

    async def cross(connection: asyncpg.Connection, first: int, second: int) -> None:
        await connection.execute("UPDATE item SET text = text || 'a' WHERE id = $1", first)
        if first in first_round:
            first_round.discard(first)
            await met.wait()
        await connection.execute("UPDATE item SET text = text || 'b' WHERE id = $1", second)

    await asyncio.gather(
        database.transaction(lambda connection: cross(connection, 1, 2)),
        database.transaction(lambda connection: cross(connection, 2, 1)),
    )
    rows = await database.fetch("SELECT text FROM item")
    assert [sorted(row["text"]) for row in rows] == [["a", "b"], ["a", "b"]]


async def test_a_slow_query_is_canceled_and_the_message_names_the_setting(
    store_settings: StoreSettings,
) -> None:
    settings = dataclasses.replace(store_settings, query_timeout=0.2)
    async with open_database(settings.url, settings) as database:
        with pytest.raises(StoreUnavailable, match=r"longer than store\.query_timeout"):
            await database.fetchval("SELECT pg_sleep(30)")
        assert await database.fetchval("SELECT 1") == 1


async def test_an_exhausted_pool_is_reported(store_settings: StoreSettings) -> None:
    settings = dataclasses.replace(store_settings, pool_size=2, query_timeout=0.3)
    async with open_database(settings.url, settings) as database:
        hold, occupied = asyncio.Event(), 0

        async def occupy(_connection: asyncpg.Connection) -> None:
            nonlocal occupied
            occupied += 1
            await hold.wait()

        busy = [asyncio.create_task(database.transaction(occupy)) for _ in range(2)]
        await wait_until(lambda: occupied == 2)
        with pytest.raises(StoreUnavailable, match=r"no database connection became free .*pool_size is 2"):
            await database.fetchval("SELECT 1")
        hold.set()
        await asyncio.gather(*busy)


@pytest.mark.parametrize("call", ["fetchval", "execute", "transaction", "check_writes"])
async def test_a_task_that_is_cancelled_while_the_database_is_frozen_ends_as_cancelled(
    data: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It would go on for ever if another error took the place of the cancellation."""
    monkeypatch.setattr("gpufleet.store.postgres.database._GRACE", 0.2)

    async def work(connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT 1")

    async with open_store(StoreSettings(data=data)) as store:
        database = store.database
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "fetchval": lambda: database.fetchval("SELECT 1"),
            "execute": lambda: database.execute("SELECT 1"),
            "transaction": lambda: database.transaction(work),
            "check_writes": database.check_writes,
        }
        await calls[call]()
        with frozen(data):
            task = asyncio.create_task(calls[call]())
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait_for(asyncio.wait([task]), 10)
            assert task.cancelled()
        assert await database.fetchval("SELECT 1") == 1


async def test_an_unreachable_server_is_reported_after_the_start_timeout(
    store_settings: StoreSettings,
) -> None:
    settings = dataclasses.replace(store_settings, start_timeout=1.2)
    with structlog.testing.capture_logs() as lines, pytest.raises(StoreUnavailable) as raised:
        async with open_database("postgresql://nobody:hunter2@127.0.0.1:1/none", settings):
            pass
    assert "does not answer" in str(raised.value)
    assert "127.0.0.1" in str(raised.value)
    assert "(store.start_timeout); is DATABASE_URL right?" in str(raised.value)
    assert [line["event"] for line in lines] == ["waiting_for_database"], "one line, not one per attempt"
    assert "hunter2" not in f"{raised.value} {lines}"


async def test_a_missing_database_is_refused_immediately(store_settings: StoreSettings) -> None:
    url = store_settings.url.replace("/test_", "/not_there_")
    with pytest.raises(OperationRefused, match="create it with createdb"):
        async with open_database(url, store_settings):
            pass


async def test_an_invalid_url_is_a_settings_error(store_settings: StoreSettings) -> None:
    with pytest.raises(SettingsError, match=r"store\.url"):
        async with open_database("mysql://secret:word@host/db", store_settings):
            pass


async def test_writes_to_a_read_only_database_wait_until_it_is_writable(
    database: Database, store_settings: StoreSettings
) -> None:
    name = await database.fetchval("SELECT current_database()")
    await database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await _drop_connections(store_settings)
    writing = asyncio.create_task(database.execute("INSERT INTO item VALUES (1, 'at last')"))
    await wait_until(lambda: database.counts.repeats >= 2)
    assert not writing.done()
    connection = await asyncpg.connect(
        store_settings.url, server_settings={"default_transaction_read_only": "off"}
    )
    try:
        await connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    finally:
        await connection.close()
    await writing
    assert await database.fetchval("SELECT text FROM item") == "at last"


async def test_a_repeated_bulk_upsert_stores_each_row_once_with_the_newest_values(database: Database) -> None:
    async def send(text: str) -> None:
        rows = [(number, text) for number in range(1000)]
        await database.transaction(
            lambda connection: bulk_upsert(connection, "item", ("id", "text"), ("id",), rows)
        )

    await send("old")
    await send("new")
    row = await database.fetchrow("SELECT count(*) AS rows, min(text) AS least FROM item")
    assert row is not None
    assert (row["rows"], row["least"]) == (1000, "new")


async def test_an_invalid_table_name_never_reaches_the_database(database: Database) -> None:
    with pytest.raises(ValueError, match="not a table or column name"):
        await database.transaction(
            lambda connection: bulk_upsert(connection, "item; DROP", ("id",), ("id",), [])
        )


async def test_a_closed_store_is_reported(store_settings: StoreSettings) -> None:
    async with open_database(store_settings.url, store_settings) as database:
        pass
    with pytest.raises(StoreUnavailable, match="server is stopping"):
        await database.fetchval("SELECT 1")


def test_a_postgresql_that_is_too_old_is_refused() -> None:
    check_server_version(14)
    with pytest.raises(OperationRefused, match="PostgreSQL 13; gpufleet needs 14 or newer"):
        check_server_version(13)
