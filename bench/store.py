"""Measure the store: bulk writes, reads of a page, and a day of readings.

The embedded PostgreSQL runs with fsync on, as in production. A day of readings is written with the same `append` and
`compact_and_prune` as live readings. The values are a random walk with the resolution of drivers (whole percent and
degrees, milliwatts, millijoules, MiB), so that they compress like real ones.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import asyncpg
import numpy as np

from bench.result import Result
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.runtime.settings import MetricsSettings, StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.postgres.bulk import bulk_upsert

T0 = 1_800_000_000.0
STEP, DAY = 15.0, 86_400.0


def measure() -> Iterable[Result]:
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        return asyncio.run(_all(Path(folder)))


async def _all(folder: Path) -> list[Result]:
    started = time.perf_counter()
    async with open_store(StoreSettings(data=folder / "data")) as store:
        first = time.perf_counter() - started
        results = [
            Result("embedded PostgreSQL created and started", first, "s"),
            *[result async for result in _rows(store)],
            *[result async for result in _readings(store, "day", 256, DAY)],
            *[result async for result in _large(store)],
        ]
    started = time.perf_counter()
    async with open_store(StoreSettings(data=folder / "data")):
        results.append(Result("embedded PostgreSQL started again", time.perf_counter() - started, "s"))
    return results


async def _rows(store: Store) -> AsyncIterator[Result]:
    database = store.database
    await database.execute(
        "CREATE TABLE fact (id int, hour int, a real, b real, c real, PRIMARY KEY (hour, id))"
    )
    columns = ("id", "hour", "a", "b", "c")
    rows = [(number % 2000, number // 2000, 1.5, 2.5, 3.5) for number in range(200_000)]

    async def copy(connection: asyncpg.Connection) -> None:
        await connection.copy_records_to_table("fact", records=rows, columns=columns)

    async def insert(connection: asyncpg.Connection) -> None:
        await connection.executemany("INSERT INTO fact VALUES ($1, $2, $3, $4, $5)", rows)

    seconds = {}
    for name, work in (("insert", insert), ("copy", copy)):
        await database.execute("TRUNCATE fact")
        started = time.perf_counter()
        await database.transaction(work)
        seconds[name] = time.perf_counter() - started
    yield Result("COPY", len(rows) / seconds["copy"], "rows/s")
    yield Result("COPY versus INSERT", seconds["insert"] / seconds["copy"], "times", at_least=2)
    started = time.perf_counter()
    await database.transaction(
        lambda connection: bulk_upsert(connection, "fact", columns, ("hour", "id"), rows)
    )
    yield Result("upsert of existing rows", len(rows) / (time.perf_counter() - started), "rows/s")
    page = "SELECT * FROM fact WHERE hour = $1 ORDER BY id LIMIT 1000"
    yield Result(
        "read of 1,000 rows", 1000 * await _median(lambda: database.fetch(page, 7)), "ms", at_most=10
    )


async def _readings(store: Store, cluster: str, gpus: int, span: float) -> AsyncIterator[Result]:
    store.database.clock = "to_timestamp(4e9)"  # readings are pruned by their own time
    moments = iter(_moments(gpus, T0, span))
    while quarter := list(itertools.islice(moments, round(900 / STEP))):
        await asyncio.gather(*(store.readings.append(cluster, readings) for readings in quarter))
        await store.readings.compact_and_prune(cluster, quarter[-1].taken_at + STEP, DAY)
    await store.database.execute("CHECKPOINT")
    size = await store.database.fetchval(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'reading%' AND relkind = 'r'"
    )
    name = f"{span / 3600:g} h of {gpus:,} GPUs at {STEP:g} s"
    yield Result(f"{name}, 8 quantities", float(size) / 1e6, "MB", at_most=200)
    yield Result(f"{name}, bytes per value", float(size) / (gpus * 8 * span / STEP), "bytes")
    metrics = EmbeddedMetrics(cluster, store.readings, store.training, MetricsSettings(), lambda: T0 + span)
    node = [GpuRef("node-0003", index) for index in range(8)]

    async def chart() -> None:
        found = await metrics.series(Quantity.UTILIZATION, node, T0, T0 + span - STEP, 60)
        assert sum(len(one.times) for one in found) == 8 * len(np.arange(0, span - STEP + 1, 60))

    async def hour() -> None:
        start = T0 + span - 3600
        async for block in metrics.samples(Quantity.UTILIZATION, start, start + 3600, STEP):
            assert block.values.shape == (gpus, 240)

    yield Result(
        f"chart of a node's 8 GPUs over {span / 3600:g} h", 1000 * await _median(chart), "ms", at_most=150
    )
    yield Result(f"an hour of all {gpus:,} GPUs", 1000 * await _median(hour), "ms", at_most=1000)


async def _large(store: Store) -> AsyncIterator[Result]:
    gpus = 5000
    moments = list(_moments(gpus, T0, 1800))
    started = time.perf_counter()
    for readings in moments:
        await store.readings.append("large", readings)
    yield Result(
        f"one refresh of {gpus:,} GPUs stored", 1000 * (time.perf_counter() - started) / len(moments), "ms"
    )
    started = time.perf_counter()
    await store.readings.compact_and_prune("large", T0 + 1800, DAY)
    yield Result(f"a quarter of an hour of {gpus:,} GPUs compacted", (time.perf_counter() - started) / 2, "s")


async def _median(action: object, times: int = 7) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        await action()  # type: ignore[operator]
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _moments(gpus: int, start: float, span: float) -> Iterable[Readings]:
    """Yield a random walk of a fleet."""
    rng = np.random.default_rng(7)
    refs = tuple(
        GpuIdentity(
            GpuRef(f"node-{number // 8:04d}", number % 8), f"GPU-{number:032x}", "NVIDIA H100 80GB HBM3"
        )
        for number in range(gpus)
    )
    busy = rng.random(gpus) < 0.8
    load = np.where(busy, 90.0, 0.0)
    energy = rng.uniform(1e6, 1e9, gpus)
    memory = np.where(busy, rng.uniform(20e3, 78e3, gpus), 4.0)
    total = np.full(gpus, 81_559.0 * 2**20)
    for at in np.arange(start, start + span, STEP):
        load = np.clip(np.where(busy, load + rng.normal(0, 6, gpus), 0), 0, 100)
        memory = np.where(rng.random(gpus) < 0.2, memory + rng.normal(0, 64, gpus).round() * busy, memory)
        power = np.round(70 + 6.2 * load + rng.normal(0, 4, gpus), 3)
        energy = np.round(energy + power * STEP, 3)
        used = np.clip(memory.round(), 0, 81_000) * 2**20
        values = {
            Quantity.UTILIZATION: load.round(),
            Quantity.MEMORY_USED: used,
            Quantity.MEMORY_TOTAL: total,
            Quantity.TEMPERATURE: (30 + 0.4 * load + rng.normal(0, 0.5, gpus)).round(),
            Quantity.POWER: power,
            Quantity.ENERGY: energy,
            Quantity.TENSOR_ACTIVITY: np.round(load / 250 + rng.uniform(0, 0.01, gpus), 6) * busy,
            Quantity.SM_ACTIVITY: np.round(load / 120 + rng.uniform(0, 0.01, gpus), 6) * busy,
        }
        # each node's exporter is scraped at another time
        times = np.round(at - (np.arange(gpus) // 8 * 0.37) % STEP, 3)
        yield Readings(float(at), refs, values, dict.fromkeys(values, times))
