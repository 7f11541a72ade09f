"""Forget what is older than its retention: whole months are dropped, the rest is deleted.

`find` says what would go without touching it; `apply` does it.
"""

from typing import NamedTuple

import asyncpg

from gpufleet.logs import get_logger
from gpufleet.settings import AccountingSettings
from gpufleet.store.months import months_before
from gpufleet.store.store import Store

_log = get_logger("store")


class Old(NamedTuple):
    """Something that is too old."""

    table: str
    part: str
    """The partition that goes as a whole; empty where rows are deleted."""
    rows: int
    """About how many rows; exact where they are deleted."""


def _retention(settings: AccountingSettings) -> dict[str, float]:
    return {
        "snapshot": settings.snapshot_retention,
        "workload_hour": settings.workload_retention,
        "workload_count": settings.workload_retention,
        "cluster_hour": settings.hour_retention,
        "namespace_hour": settings.hour_retention,
        "label_hour": settings.hour_retention,
        "usage_day": settings.hour_retention,
    }


async def find(store: Store, settings: AccountingSettings, now: float) -> list[Old]:
    """What is too old."""

    async def months(connection: asyncpg.Connection) -> list[Old]:
        found = []
        for table, keep in _retention(settings).items():
            for part in await months_before(connection, table, int((now - keep) // 3600)):
                rows = await connection.fetchval(
                    "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = $1::text::regclass", part
                )
                found.append(Old(table, part, rows))
        return found

    found = await store.database.transaction(months)
    held = now - settings.holding_retention
    counts = {
        "holding": await store.holdings.older(held),
        "capacity": await store.capacities.older(held),
        "ended_workload": await store.ended.older(now - settings.ended_retention),
    }
    return found + [Old(table, "", rows) for table, rows in counts.items() if rows]


async def apply(store: Store, settings: AccountingSettings, now: float) -> list[Old]:
    """Let go what is too old, and say what that was."""
    found = await find(store, settings, now)

    async def drop(connection: asyncpg.Connection) -> None:
        for old in found:
            if old.part:
                await connection.execute(f"DROP TABLE IF EXISTS {old.part}")

    await store.database.transaction(drop)
    await store.holdings.prune(now - settings.holding_retention)
    await store.capacities.prune(now - settings.holding_retention)
    await store.ended.prune(now - settings.ended_retention)
    await store.hours.forget_done(int((now - settings.hour_retention) // 3600) - 24 * 31)
    for old in found:
        _log.info("old books dropped", table=old.table, part=old.part, rows=old.rows)
    return found
