"""Test that two servers create the same partition at the same time."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from tests.waiting import wait_until

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.partitions import ensure_month
from gpufleet.store.postgres.database import connection_options
from gpufleet.store.readings.readings import _ensure_partition, _lock

HOUR = 24 * 365 * 100


async def ensure_chunks(connection: asyncpg.Connection, hour: int) -> None:
    await _lock(connection)
    await _ensure_partition(connection, 3600.0 * hour)


@pytest.mark.parametrize("ensure", [ensure_month, ensure_chunks])
async def test_a_transaction_that_waited_for_another_finds_its_partitions(
    store_settings: StoreSettings,
    postgres_url: str,
    ensure: Callable[[asyncpg.Connection, int], Awaitable[None]],
) -> None:
    options = connection_options(store_settings, statement_seconds=10)
    first, second = [await asyncpg.connect(postgres_url, **options) for _ in range(2)]
    try:
        async with second.transaction():
            await ensure(second, 0)  # its statements are prepared
        async with first.transaction(), second.transaction():
            await ensure(first, HOUR)
            waiting = asyncio.ensure_future(ensure(second, HOUR))
            await wait_until(lambda: first.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            await first.execute("COMMIT; BEGIN")
            await waiting
    finally:
        for connection in (first, second):
            await connection.close()
