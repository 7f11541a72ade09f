"""Servers are killed while writing, one after the other, and the hours are still right.

Real `gpufleet serve` processes share a real database. Where a leader is killed is not left to chance: the
test locks a table, waits until the leader's transaction waits for it, kills the process, and only then
releases the lock. The next leader runs into the lock on the next table, in the order in which they are written.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest
from tests.accounting.expected import expected_hour, stored_hour
from tests.accounting.past import PRICE, SETTINGS, Past, openmetrics, past
from tests.prometheus_fixture import running_prometheus
from tests.waiting import wait_until

from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store
from gpufleet.store.partitions import ensure_month
from kubelite import KubeLite

GPU = "nvidia.com/gpu"
HOURS = 16
POINTS = {
    "holding": "INSERT",
    "workload": "INSERT",
    "usage_day": "DELETE",
    "accounted_hour": "INSERT",
}
"""Where leaders are killed, in the order in which one writes, and with which statement it gets there: a period;
an hour whose old rows are deleted; one whose new rows are copied; one that only wants to be called done."""
BY_CHANCE = 2
"""Leaders that are killed at any time after that."""


class Servers:
    """Replicas on one database; the log of each says whether it leads."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        number = len(list(self._folder.glob("log-*")))
        log = self._folder / f"log-{number}"
        arguments = ["serve", "--port", "0", "--data", str(self._folder / "data"), "--log-format", "json"]
        with log.open("wb") as file:
            self._running[log] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gpufleet",
                    *arguments,
                    "--kubeconfig",
                    str(self._folder / "kubeconfig"),
                ],
                cwd=self._folder,
                env=self._environment,
                stdout=file,
                stderr=file,
            )

    def kill_the_leader(self) -> None:
        leading = [log for log in self._running if "leadership_acquired" in log.read_text()]
        assert len(leading) == 1, {log.name: log.read_text()[-2000:] for log in self._running}
        process = self._running.pop(leading[0])
        assert process.poll() is None, leading[0].read_text()[-2000:]
        process.kill()
        process.wait()

    async def ready(self) -> None:
        async def up() -> bool:
            return all("gpufleet serves on" in log.read_text() for log in self._running)

        await wait_until(up, 120)

    async def led(self) -> None:
        async def leads() -> bool:
            return any("leadership_acquired" in log.read_text() for log in self._running)

        await wait_until(leads, 120)

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()


@contextmanager
def servers(folder: Path, database: str, prometheus: str) -> Iterator[Servers]:
    settings = {"DATABASE_URL": database, "PROMETHEUS_URL": prometheus, "HOME": str(folder)}
    running = Servers(folder, {**os.environ, **settings})
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A cluster with a node and a pod that lives on, so that periods are written as well."""
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        amounts = {GPU: "4"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "live"},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await client.write_json("POST", "/api/v1/nodes", node)
        await client.write_json("PUT", "/api/v1/nodes/live/status", node)
        container: dict[str, Any] = {"name": "c", "image": "i", "resources": {"limits": {GPU: "2"}}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "live", "containers": [container]},
        }
        await client.write_json("POST", "/api/v1/namespaces/default/pods", pod)
        server.write_kubeconfig(tmp_path / "kubeconfig")
        yield client


@pytest.mark.long
async def test_hours_are_neither_lost_nor_doubled_wherever_a_leader_is_killed(
    store: Store, store_settings: StoreSettings, api: KubeClient, tmp_path: Path
) -> None:
    true = past(int(time.time()) // 3600 * 3600 - 3600 * (HOURS + 1), HOURS)
    await true.write(store, "default")
    for hour in true.starts:
        await store.database.transaction(partial(ensure_month, hour=hour // 3600))
    (tmp_path / "gpufleet.toml").write_text(SETTINGS)
    database = store_settings.url
    with (
        running_prometheus("global: {}\n", openmetrics([("dcgm", true)])) as url,
        servers(tmp_path, database, url) as running,
    ):
        async with Locks(database) as locks:
            points = list(POINTS)
            await locks.take(points[0])
            running.start()
            for point, following in zip(points, [*points[1:], ""], strict=True):
                running.start()
                await running.ready()
                await locks.somebody_waits(point)
                running.kill_the_leader()
                await running.led()
                if following:
                    await locks.take(following)
                await locks.let_go(point)
        dice = random.Random(7)
        for _ in range(BY_CHANCE):
            running.start()
            before = int(await store.database.fetchval("SELECT count(*) FROM accounted_hour"))
            await wait_until(partial(_more, store, before), 120)
            await asyncio.sleep(dice.random() * 0.05)
            running.kill_the_leader()
        await wait_until(partial(_more, store, HOURS - 1), 120)
        await check(store, true)
    assert await lasting(store, "holding") == await lasting(store, "capacity") == 1


class Locks:
    """Locks on tables that keep writers waiting, each in a transaction of its own."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._held: dict[str, asyncpg.Connection] = {}

    async def __aenter__(self) -> Self:
        self._watch = await asyncpg.connect(self._database)
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in [*self._held.values(), self._watch]:
            await connection.close()

    async def take(self, table: str) -> None:
        connection = self._held[table] = await asyncpg.connect(self._database)
        await connection.execute(f"BEGIN; LOCK TABLE gpufleet.{table} IN EXCLUSIVE MODE")

    async def let_go(self, table: str) -> None:
        await self._held.pop(table).close()

    async def somebody_waits(self, table: str) -> None:
        async def waits() -> bool:
            found = await self._watch.fetch(
                "SELECT query FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE relation = $1::text::regclass AND NOT granted",
                f"gpufleet.{table}",
            )
            return any(row["query"].lstrip().startswith(POINTS[table]) for row in found)

        await wait_until(waits, 120)


async def check(store: Store, true: Past) -> None:
    for hour in true.starts:
        expected = expected_hour(
            hour, true.held, true.capacities, true.samples(hour), PRICE, read=true.scraped()
        )
        assert await stored_hour(store, "default", hour) == expected
    summed = "SELECT sum(allocated) FROM {table} WHERE cluster = 1 AND hour < $1"
    last = true.starts[-1] // 3600 + 1
    for grouping in ("cluster", "namespace", "label", "workload"):
        hours = await store.database.fetchval(summed.format(table=f"{grouping}_hour"), last)
        days = await store.database.fetchval(
            summed.format(table="usage_day") + " AND grouping = $2", last, grouping
        )
        assert hours == days


async def _more(store: Store, before: int) -> bool:
    done = await store.database.fetchval("SELECT count(*) FROM accounted_hour")
    return bool(done > before or done >= HOURS)


async def lasting(store: Store, table: str) -> int:
    query = f"SELECT count(*) FROM {table} WHERE ended_at = 'infinity'"
    return int(await store.database.fetchval(query))
