import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.store.processes import servers_of
from tests.waiting import wait_until

from gpufleet.errors import OperationRefused, StoreUnavailable
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import open_store
from gpufleet.store.postgres.embedded import embedded_server, running_server

pytestmark = pytest.mark.long


def settings_for(data: Path) -> StoreSettings:
    return StoreSettings(data=data, pool_size=2, start_timeout=30.0)


async def test_data_survives_a_clean_stop(data: Path) -> None:
    settings = settings_for(data)
    async with open_store(settings) as store:
        assert await store.database.fetchval("SHOW fsync") == "on"
        assert await store.database.fetchval("SHOW synchronous_commit") == "on"
        assert await store.database.fetchval("SHOW listen_addresses") == ""
        await store.database.execute("CREATE TABLE item AS SELECT 42 AS x")
        assert running_server(settings) is not None
    assert servers_of(data) == []
    assert running_server(settings) is None
    async with open_store(settings) as store:
        assert await store.database.fetchval("SELECT x FROM item") == 42
    assert "was not properly shut down" not in (data / "postgres.log").read_text()


async def test_of_two_simultaneous_starts_one_is_refused_with_the_pid_of_the_other(data: Path) -> None:
    ready, done = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        async with embedded_server(settings_for(data)):
            ready.set()
            await done.wait()

    tasks = [asyncio.create_task(start()) for _ in range(2)]
    await asyncio.wait_for(ready.wait(), 60)
    done.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refusals = [result for result in results if isinstance(result, OperationRefused)]
    assert len(refusals) == 1
    assert f"another gpufleet (pid {os.getpid()}) uses the data directory" in str(refusals[0])


async def test_a_stale_pid_file_of_another_process_does_not_prevent_the_start(data: Path) -> None:
    async with embedded_server(settings_for(data)):
        lines = (data / "postgres" / "postmaster.pid").read_text().splitlines()
    with subprocess.Popen(["sleep", "60"]) as other:  # noqa: ASYNC220
        try:
            stale = "\n".join([str(other.pid), *lines[1:]]) + "\n"
            (data / "postgres" / "postmaster.pid").write_text(stale)
            async with embedded_server(settings_for(data)):
                assert other.poll() is None
        finally:
            other.kill()


async def test_an_orphaned_server_is_replaced(data: Path) -> None:
    async with embedded_server(settings_for(data)) as server:
        cluster = server.cluster
    orphan = cluster.spawn({})  # as if the wrapper had been killed too
    try:
        left = await wait_until(cluster.postmaster)
        async with embedded_server(settings_for(data)):
            assert cluster.postmaster() not in (None, left)
    finally:
        assert orphan.stdin is not None
        orphan.stdin.close()
        orphan.wait(30)


async def test_a_data_directory_with_a_long_path_works(empty_data: Path) -> None:
    async with open_store(settings_for(empty_data / ("long-" * 20))) as store:
        assert await store.database.fetchval("SELECT 1") == 1
        where = await store.database.fetchval("SHOW unix_socket_directories")
    assert not os.path.exists(where)  # noqa: ASYNC240


async def test_the_error_for_a_corrupt_database_contains_the_server_log(data: Path) -> None:
    async with embedded_server(settings_for(data)):
        pass
    control = data / "postgres" / "global" / "pg_control"
    control.write_bytes(b"\0" * control.stat().st_size)
    with pytest.raises(StoreUnavailable, match=r"does not start; its log .*postgres\.log ends with:\n.*"):
        async with embedded_server(settings_for(data)):
            pass
    assert servers_of(data) == []


def test_a_data_directory_that_cannot_be_created_is_reported(data: Path) -> None:
    (data / "file").write_text("")
    with pytest.raises(OperationRefused, match="can't use the data directory"):
        asyncio.run(_start(data / "file" / "data"))


async def _start(data: Path) -> None:
    async with embedded_server(settings_for(data)):
        pass


async def test_an_interrupted_initdb_is_repeated(empty_data: Path) -> None:
    (empty_data / "postgres.unfinished").mkdir()
    (empty_data / "postgres.unfinished" / "PG_VERSION").write_text("half")
    async with embedded_server(settings_for(empty_data)) as server:
        assert server.cluster.postmaster() is not None
    assert not (empty_data / "postgres.unfinished").exists()
