"""Pages and reports on 20 million rows of workload hours, over the store's own queries.

The rows are made by SQL in partitions that are attached afterwards, since that is quicker; indexes,
counts and sums of days are what the server itself would have left.
"""

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.result import Result
from gpufleet.model.statistics import WorkloadHoursQuery
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.partitions import first_hour, month_of

ROWS = int(os.environ.get("GPUFLEET_BENCH_ROWS", "20000000"))
WORKLOADS, NAMESPACES, KINDS = 10_000, 200, 5
FIRST = first_hour(2026, 7)
HOURS = ROWS // WORKLOADS

_DIMENSIONS = f"""
INSERT INTO accounted_cluster (name, since, seen_at) VALUES ('prod', {FIRST * 3600}, {FIRST * 3600});
INSERT INTO namespace_name (cluster, name) SELECT 1, 'ns-' || n FROM generate_series(1, {NAMESPACES}) AS n;
INSERT INTO kind_name (name) SELECT 'Kind' || n FROM generate_series(1, {KINDS}) AS n;
INSERT INTO workload (cluster, namespace, kind, name, uid, digest, source, labels, annotations)
SELECT 1, 1 + (power(n::float8 / {WORKLOADS}, 3) * ({NAMESPACES} - 1))::int, 1 + n % {KINDS}, 'job-' || n % 4000,
    'uid-' || n, '\\x00', 'k8s', '{{"team": "nlp"}}', '{{}}' FROM generate_series(1, {WORKLOADS}) AS n;
INSERT INTO accounted_hour (cluster, hour, measured)
SELECT 1, h, true FROM generate_series({FIRST}, {FIRST + HOURS - 1}) AS h;
"""
_FACTS = """
INSERT INTO {part} (cluster, hour, workload, namespace, kind, allocated, idle, cost, samples, utilization,
    highest, lowest, p50, p95, requested, mean_replicas, most_replicas, fewest_replicas, mean_memory,
    most_memory, total_memory, status)
SELECT 1, h, w.id, w.namespace, w.kind, 28800000000000, 1000 * (w.id % 7), 28.0, 96,
    CASE WHEN w.id % 50 = 0 THEN NULL ELSE ((w.id::bigint * 7919 + h::bigint * 104729) % 1000003) / 10000.03 END,
    99.0, 1.0, 50.0, 95.0, 8.0, 1.0, 1, 1, 28.5, 31.2, 141.0, 'Running'
FROM generate_series({low}, {high} - 1) AS h CROSS JOIN workload AS w
"""
_COUNTS = """
INSERT INTO workload_count (cluster, hour, namespace, kind, rows)
SELECT 1, h, coalesce(namespace, 0), coalesce(kind, 0), n FROM generate_series({low}, {high} - 1) AS h
CROSS JOIN (SELECT namespace, kind, count(*) AS n FROM workload GROUP BY CUBE (namespace, kind)) AS counts
"""
_DAYS = """
INSERT INTO usage_day (cluster, hour, grouping, member, allocated, idle, cost, measured, used)
SELECT 1, d, 'workload', id, 28800000000000 * 24, 24000 * (id % 7), 672, 28800000000000 * 24, 28800000000000 * 24 * 50
FROM generate_series({low}, {high} - 1, 24) AS d CROSS JOIN workload;
INSERT INTO usage_day (cluster, hour, grouping, member, allocated, idle, cost, measured, used)
SELECT 1, d, 'cluster', 1, 28800000000000 * 24 * {workloads}, 0, 672 * {workloads}, 1, 1
FROM generate_series({low}, {high} - 1, 24) AS d;
INSERT INTO cluster_hour (cluster, hour, capacity, allocated, idle, cost, samples, workloads)
SELECT 1, h, 100000, 28800000000000::bigint * {workloads}, 0, 1, 12, {workloads} FROM generate_series({low}, {high} - 1) AS h
"""


def measure() -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        yield from asyncio.run(_all(Path(folder)))


async def _all(folder: Path) -> list[Result]:
    async with open_store(StoreSettings(data=folder / "data", query_timeout=900.0)) as store:
        started = time.perf_counter()
        await _make(store)
        made = time.perf_counter() - started
        return [
            Result(f"{ROWS:,} rows of workload hours made", made, "s"),
            *await _pages(store),
            *await _reports(store),
        ]


async def _make(store: Store) -> None:
    database = store.database
    await database.execute(_DIMENSIONS)
    low, end = FIRST, FIRST + HOURS
    while low < end:
        year, month = month_of(low)
        after = first_hour(year, month + 1)
        high = min(end, after)
        for table in ("workload_count", "usage_day", "cluster_hour"):
            part = f"{table}_{year}_{month:02d}"
            await database.execute(
                f"CREATE TABLE {part} PARTITION OF {table} FOR VALUES FROM ({low}) TO ({after})"
            )
        part = f"workload_hour_{year}_{month:02d}"
        await database.execute(f"CREATE UNLOGGED TABLE {part} (LIKE workload_hour INCLUDING DEFAULTS)")
        await database.execute(_FACTS.format(part=part, low=low, high=high))
        await database.execute(
            f"SET maintenance_work_mem = '512MB'; ALTER TABLE workload_hour ATTACH PARTITION {part}"
            f" FOR VALUES FROM ({low}) TO ({after})"
        )
        await database.execute(_COUNTS.format(low=low, high=high))
        await database.execute(_DAYS.format(low=low, high=high, workloads=WORKLOADS))
        low = high
    await database.execute("VACUUM ANALYZE")


def _questions() -> Iterator[tuple[str, WorkloadHoursQuery]]:
    spans = {"an hour": 1, "a day": 24, "a week": 168, "a month": 720, "all": HOURS}
    filters = [
        {},
        {"namespace": "ns-1"},
        {"namespace": "ns-120"},
        {"kind": "Kind2"},
        {"namespace": "ns-1", "kind": "Kind3"},
        {"namespace": "ns-120", "kind": "Kind3"},
        {"name": "job-77"},
        {"name": "job-77", "namespace": "ns-1"},
    ]
    choices = itertools.product(spans.items(), filters, (False, True), (False, True), (1, 10, 100))
    for (words, span), narrowed, by_utilization, descending, page in choices:
        start = FIRST + (HOURS - span) // 2
        wanted = WorkloadHoursQuery(
            cluster="prod",
            first=start,
            last=start + span - 1,
            limit=20,
            offset=(page - 1) * 20,
            descending=descending,
            by_utilization=by_utilization,
            **narrowed,
        )
        order = "utilization" if by_utilization else "time"
        yield (
            f"{words}, {narrowed or 'no filter'}, by {order}{' desc' if descending else ''}, page {page}",
            wanted,
        )


async def _pages(store: Store) -> list[Result]:
    taken: list[tuple[float, str]] = []
    for name, wanted in _questions():
        await store.workload_pages.page(wanted)
        started = time.perf_counter()
        await store.workload_pages.page(wanted)
        taken.append((1000 * (time.perf_counter() - started), name))
    ordered = sorted(taken)
    if os.environ.get("GPUFLEET_BENCH_VERBOSE"):
        for ms, name in ordered[-25:]:
            print(f"{ms:8.1f} ms  {name}")
    times = [ms for ms, _ in ordered]
    note = f"{len(times)} questions over {ROWS:,} rows; the slowest: {ordered[-1][1]}"
    return [
        Result("page of workload hours, median", statistics.median(times), "ms"),
        Result("page of workload hours, p95", times[int(len(times) * 0.95)], "ms", at_most=50, note=note),
        Result("page of workload hours, slowest", times[-1], "ms"),
    ]


async def _reports(store: Store) -> list[Result]:
    first, after = first_hour(2026, 7), first_hour(2026, 8)
    started = time.perf_counter()
    rows = await store.usage.by_workload("prod", first, after)
    await store.usage.totals("prod", first, after)
    seconds = time.perf_counter() - started
    assert len(rows) == WORKLOADS
    return [Result("a month's report by workload", seconds, "s", at_most=2)]
