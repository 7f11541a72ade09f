"""Monthly partitions: created on the first write, dropped when they expire.

The tables are partitioned by `hour`, the number of hours since 1970. Dropping a partition frees its
space immediately, whereas deleting millions of rows would leave that to vacuum.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg

from gpufleet.store.postgres.locks import advisory_lock

MONTHLY = (
    "cluster_hour",
    "namespace_hour",
    "label_hour",
    "workload_hour",
    "workload_count",
    "usage_day",
    "snapshot",
)
_PARTITION = re.compile(r"^(?P<table>\w+)_(?P<year>\d{4})_(?P<month>\d{2})$")
# to_regclass could answer from a cache that is older than a lock for which the transaction waited.
_EXISTING = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1)
"""
_PARTITIONS = """
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = $1::text::regclass ORDER BY relname
"""


def month_of(hour: int) -> tuple[int, int]:
    """Return year and month of an hour."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return moment.year, moment.month


def first_hour(year: int, month: int) -> int:
    """Return the first hour of a month; month 13 is the next January."""
    return int(datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=UTC).timestamp()) // 3600


async def ensure_month(connection: asyncpg.Connection, hour: int) -> None:
    """Create the partitions that contain `hour`. Call it in a transaction."""
    year, month = month_of(hour)
    suffix = f"{year:04d}_{month:02d}"
    names = [f"{table}_{suffix}" for table in MONTHLY]
    if len(await existing_tables(connection, names)) == len(names):
        return
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", *advisory_lock("months"))
    existing = await existing_tables(connection, names)  # some may have been dropped before others
    for table, name in zip(MONTHLY, names, strict=True):
        if name not in existing:
            # create, then attach: this does not block readers
            await connection.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
            await connection.execute(
                f"ALTER TABLE {table} ATTACH PARTITION {name} "
                f"FOR VALUES FROM ({first_hour(year, month)}) TO ({first_hour(year, month + 1)})"
            )


async def existing_tables(connection: asyncpg.Connection, names: Sequence[str]) -> set[str]:
    """Return those of the names that tables have now, in the eyes of a transaction that has waited for a lock."""
    return {row["relname"] for row in await connection.fetch(_EXISTING, names)}


async def months_before(connection: asyncpg.Connection, table: str, hour: int) -> list[str]:
    """Return the partitions of `table` in which all rows are older than `hour`."""
    found = []
    for row in await connection.fetch(_PARTITIONS, table):
        match = _PARTITION.match(row["relname"])
        if match and first_hour(int(match["year"]), int(match["month"]) + 1) <= hour:
            found.append(row["relname"])
    return found


def span_of(partition: str) -> tuple[float, float]:
    """Return the first and the last second of a partition's month, as times."""
    match = _PARTITION.match(partition)
    assert match is not None
    year, month = int(match["year"]), int(match["month"])
    return first_hour(year, month) * 3600.0, first_hour(year, month + 1) * 3600.0
