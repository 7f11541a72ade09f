"""Put the rows of the running hour between stored ones, at the place where they belong."""

import heapq
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from gpufleet.model.statistics import (
    ClusterStatistics,
    HoursQuery,
    LabelStatistics,
    NamespaceStatistics,
    WorkloadHoursQuery,
    WorkloadStatistics,
)

Statistics = ClusterStatistics | NamespaceStatistics | LabelStatistics | WorkloadStatistics
Row = TypeVar("Row", ClusterStatistics, NamespaceStatistics, LabelStatistics, WorkloadStatistics)
Query = TypeVar("Query", HoursQuery, WorkloadHoursQuery)


async def with_current(
    query: Query, fetch: Callable[[Query], Awaitable[list[Row]]], current: Sequence[Row]
) -> list[Row]:
    """Return the rows of the query's page out of the stored and the `current` rows together.

    `current` is in ascending order of its keys. A row of the page has at most all current rows before it,
    so that many more stored rows are read.
    """
    skipped = max(0, query.offset - len(current))
    wider = msgspec.structs.replace(query, offset=skipped, limit=query.offset + query.limit - skipped)
    key = _utilization_key(query.descending) if _by_utilization(query) else _time_key
    ordered = sorted(reversed(current) if query.descending else current, key=key, reverse=query.descending)
    rows = list(heapq.merge(await fetch(wider), ordered, key=key, reverse=query.descending))
    return rows[query.offset - skipped :][: query.limit]


def _by_utilization(query: HoursQuery) -> bool:
    return isinstance(query, WorkloadHoursQuery) and query.by_utilization


def _time_key(row: Statistics) -> tuple[object, ...]:
    return (row.stat_hour,)


def _utilization_key(descending: bool) -> Callable[[Statistics], tuple[object, ...]]:
    """Return the sort key by utilization, with which rows without one come last in either direction."""

    def key(row: Statistics) -> tuple[object, ...]:
        measured = row.avg_utilization is not None
        return (measured if descending else not measured, row.avg_utilization or 0.0, row.stat_hour)

    return key
