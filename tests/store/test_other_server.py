"""The store on an external server: the distribution's PostgreSQL, over TCP."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from gpufleet.errors import OperationRefused
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import open_store
from gpufleet.store.postgres.data_directory import DATABASE, prepare
from gpufleet.store.postgres.database import connect


def _installed() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[0].parent if found and int(found[0].parts[-3]) >= 14 else None


@pytest.fixture
async def url(empty_data: Path) -> AsyncIterator[str]:
    folder = _installed()
    if folder is None:
        pytest.skip("no PostgreSQL 14 or newer is installed in /usr/lib/postgresql")
    cluster = prepare(
        empty_data / "postgres", empty_data / "run", empty_data / "log", durable=False, folder=folder
    )
    (empty_data / "postgres" / "pg_hba.conf").write_text(
        "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = cluster.spawn({"listen_addresses": "127.0.0.1", "port": str(port), "fsync": "off"})
    try:
        local = f"{cluster.dsn_of('postgres')}&port={port}"
        connection = await connect(local, StoreSettings(start_timeout=60.0), statement_seconds=20)
        try:
            await connection.execute(f"ALTER ROLE {DATABASE} PASSWORD 'right'")
            await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()
        yield f"postgresql://{DATABASE}:right@127.0.0.1:{port}/{DATABASE}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.to_thread(process.wait, 30)


async def test_two_servers_share_a_database(url: str) -> None:
    settings = StoreSettings(url=url, pool_size=2)
    gpus = tuple(GpuIdentity(GpuRef("a", index)) for index in range(3))
    column = np.array([1.0, 2.0, np.nan])
    async with open_store(settings) as one, open_store(settings) as two:
        for moment in range(120):
            at = 1_800_000_000.0 + 15 * moment
            await one.readings.append(
                "here", Readings(at, gpus, {Quantity.POWER: column}, {Quantity.POWER: column * 0 + at})
            )
        await asyncio.gather(
            *(store.readings.compact_and_prune("here", at + 15, 86400) for store in (one, two))
        )
        found = await two.readings.samples("here", Quantity.POWER, at - 3600, at)
        assert [np.count_nonzero(~np.isnan(series.values)) for series in found] == [120, 120, 0]
        async with one.leadership("aggregator") as leader:
            assert leader.held


async def test_a_wrong_password_is_refused_immediately_and_never_shown(url: str) -> None:
    with pytest.raises(OperationRefused, match="refuses the user name or password") as refused:
        async with open_store(StoreSettings(url=url.replace("right", "wrong"))):
            pass
    assert "wrong" not in str(refused.value)
