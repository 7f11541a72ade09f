"""Servers and their database are frozen, and clocks are wrong: one server writes, and each ends on SIGTERM.

Real `gpufleet serve` processes share a PostgreSQL of their own, which may be stopped with all its workers.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.fake_clock import clock_ahead
from tests.store.processes import frozen
from tests.waiting import block_until, wait_until

from gpufleet.store.postgres.data_directory import DataDirectory, prepare

pytestmark = pytest.mark.long
FROZEN_SECONDS = 16.0
"""The time after which a leader used to go on without its lock; also longer than a lease."""
STOP_SECONDS = 40.0
"""The grace period of the settings and that of the watchdog."""


class Server:
    """A running `gpufleet serve`."""

    def __init__(self, folder: Path, url: str, environment: dict[str, str]) -> None:
        folder.mkdir()
        self._log = folder / "log"
        command = [sys.executable, "-m", "gpufleet", "serve", "--port", "0", "--data", str(folder / "data")]
        own = {"DATABASE_URL": url, "HOME": str(folder), **environment}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--log-format", "json"],
                cwd=folder,
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
            )
        start = "gpufleet serves on "
        block_until(lambda: start in self.log or self.process.poll() is not None, 60)
        [line] = [line for line in self.log.splitlines() if line.startswith(start)]
        self.address = line.removeprefix(start).strip()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.address}/api/healthz").json()["data"]["dependencies"]
        return found

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.address}/metrics").text.splitlines()
        [line] = [line for line in lines if line.startswith(f"{name} ")]
        return float(line.split()[1])

    def ends_on_sigterm(self) -> None:
        self.process.terminate()
        assert self.process.wait(STOP_SECONDS) == 0, self.log[-3000:]
        assert "stop_timed_out" not in self.log


@pytest.fixture
def database(data: Path) -> Iterator[DataDirectory]:
    """A PostgreSQL of this test."""
    cluster = prepare(data / "postgres", data / "run", data / "log", durable=False)
    process = cluster.spawn({"fsync": "off", "max_connections": "80"})

    def create() -> bool:
        async def work() -> None:
            connection = await asyncpg.connect(cluster.dsn_of("postgres"), timeout=10)
            await connection.execute("CREATE DATABASE gpufleet")
            await connection.close()

        try:
            asyncio.run(work())
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    block_until(create, 60)
    yield cluster
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)


@contextmanager
def servers(
    data: Path, database: DataDirectory, count: int, environment: dict[str, str] | None = None
) -> Iterator[list[Server]]:
    with ExitStack() as closing:
        running = []
        for number in range(count):
            server = Server(data / f"server-{number}", database.dsn, environment or {})
            closing.callback(server.process.wait)
            closing.callback(server.process.kill)
            running.append(server)
        yield running


async def value(database: DataDirectory, query: str) -> Any:
    connection = await asyncpg.connect(database.dsn, timeout=10, server_settings={"search_path": "gpufleet"})
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def leader(database: DataDirectory, running: list[Server], epoch: int = 0) -> Server:
    """Wait for a leader of a later epoch that stores something, and return it."""
    first = await value(database, "SELECT max(seen_at) FROM accounted_cluster")

    async def stores() -> bool:
        query = "SELECT epoch > {} AND expires_at > clock_timestamp() FROM leader WHERE job = 'accounting'"
        return bool(
            await value(database, query.format(epoch))
            and await value(database, "SELECT max(seen_at) FROM accounted_cluster") > first
        )

    await wait_until(stores, 60, 0.1)
    pid = (await value(database, "SELECT holder FROM leader WHERE job = 'accounting'")).rpartition("/")[2]
    return next(each for each in running if each.process.pid == int(pid))


async def epoch_of(database: DataDirectory) -> int:
    return int(await value(database, "SELECT epoch FROM leader WHERE job = 'accounting'"))


async def test_after_the_database_was_frozen_one_leader_writes_and_all_servers_end(
    data: Path, database: DataDirectory
) -> None:
    with servers(data, database, 2) as running:
        first = await leader(database, running)
        with frozen(data):
            await asyncio.sleep(FROZEN_SECONDS)
        now = await leader(database, running)
        for server in running:
            assert server.metric("gpufleet_accounting_leader") == (server is now)
        first.ends_on_sigterm()
        for server in running:
            if server is not first:
                assert await leader(database, running) is server
                server.ends_on_sigterm()


async def test_sigterm_ends_a_leader_while_its_database_is_frozen(
    data: Path, database: DataDirectory
) -> None:
    with servers(data, database, 1) as running:
        await leader(database, running)
        with frozen(data):
            running[0].ends_on_sigterm()


async def test_a_frozen_leader_is_replaced_within_15_seconds_and_ends_when_it_wakes_up(
    data: Path, database: DataDirectory
) -> None:
    with servers(data, database, 2) as running:
        old, epoch = await leader(database, running), await epoch_of(database)
        old.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()

        async def replaced() -> bool:
            return await epoch_of(database) > epoch

        try:
            await wait_until(replaced, 15, 0.1)
            assert time.monotonic() - began < 15
            new = await leader(database, running, epoch)
        finally:
            old.process.send_signal(signal.SIGCONT)
        assert new is not old
        await wait_until(lambda: "leadership_lost" in old.log, 20, 0.05)
        assert await leader(database, running) is new
        assert old.health["accounting"]["message"].startswith(
            await value(
                database, "SELECT holder || ' leads (epoch ' || epoch FROM leader WHERE job = 'accounting'"
            )
        )
        for server in running:
            server.ends_on_sigterm()


@pytest.mark.parametrize("ahead", [3600, 450 * 86_400])
async def test_a_server_whose_clock_is_ahead_leads_nothing_and_says_so(
    data: Path, database: DataDirectory, ahead: int
) -> None:
    environment = {**clock_ahead(ahead), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with servers(data, database, 1) as running:
        await leader(database, running)
        running[0].ends_on_sigterm()
    stored = await value(database, "SELECT max(seen_at) FROM accounted_cluster")
    epoch = await epoch_of(database)
    connection = await asyncpg.connect(database.dsn, server_settings={"search_path": "gpufleet"})
    ended = time.time() - 95 * 86_400
    await connection.execute("INSERT INTO queue_rules VALUES (1, $1, $2, '{}')", ended - 1, ended)
    await connection.close()
    wrong = data / "wrong"
    wrong.mkdir()
    with servers(wrong, database, 1, environment) as running:
        [server] = running
        await wait_until(lambda: "clock_wrong" in server.log, 30, 0.05)
        health = server.health["clock"]
        assert health["state"] == "down"
        assert "ahead of the database's clock" in health["message"]
        assert abs(server.metric("gpufleet_clock_ahead_seconds") - ahead) < 60
        assert await epoch_of(database) == epoch
        assert await value(database, "SELECT max(seen_at) FROM accounted_cluster") == stored
        assert await value(database, "SELECT count(*) FROM queue_rules") == 1
        server.ends_on_sigterm()
