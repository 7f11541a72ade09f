"""`/api/v1/gpu-aggregation/*`: snapshots and hourly statistics, from the books."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from gpufleet.errors import InvalidRequest, NotFound
from gpufleet.model.statistics import (
    ClusterStatistics,
    HoursQuery,
    LabelStatistics,
    NamespaceStatistics,
    Snapshot,
    WorkloadHoursQuery,
    WorkloadStatistics,
)
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.aggregation_examples import CLUSTER, LABEL, NAMESPACE, SNAPSHOT, WORKLOAD
from gpufleet.server.routes.aggregation_params import (
    DEFAULT_PAGE_SIZE,
    MOST_ROWS,
    ClusterAsked,
    DimensionKeysAsked,
    DimensionValuesAsked,
    HoursAsked,
    LabelHoursAsked,
    MaybeSpan,
    NamespaceHoursAsked,
    Page,
    SnapshotsAsked,
    WorkloadHoursAsked,
)
from gpufleet.server.routes.aggregation_ports import Books

T = TypeVar("T")
PREFIX = "/api/v1/gpu-aggregation"
DAY = 86_400.0
MOST_DETAILED = 50
"""Snapshots with details in one answer: each may have thousands of workloads."""


async def cluster_name(books: Books, asked: str) -> str:
    """The cluster that is meant; NotFound if there is none of that name."""
    if not asked:
        return books.default
    names = await books.names()
    if asked not in names:
        raise NotFound(f"no cluster {asked!r}; there are: {', '.join(sorted(names))}")
    return asked


def aggregation_routes(books: Books, now: Callable[[], float] = time.time) -> list[Route]:
    """The routes that list names, hours and snapshots."""
    return [*_name_routes(books), *_hour_routes(books), *_snapshot_routes(books, now)]


def _name_routes(books: Books) -> list[Route]:
    @get(f"{PREFIX}/clusters", example=["prod"])
    async def clusters() -> list[str]:
        """The clusters that are accounted for."""
        return sorted(await books.names())

    @get(f"{PREFIX}/namespaces", example=["inference", "ml-training"])
    async def namespaces(query: MaybeSpan) -> list[str]:
        """The namespaces that have statistics."""
        cluster = await cluster_name(books, query.cluster)
        return await books.statistics.namespaces(cluster, *query.hours)

    @get(f"{PREFIX}/dimension-keys", example=["project", "team"])
    async def dimension_keys(query: DimensionKeysAsked) -> list[str]:
        """The keys of labels or annotations that have statistics."""
        cluster = await cluster_name(books, query.cluster)
        return await books.statistics.dimension_keys(cluster, *query.hours, query.dimension_type)

    @get(f"{PREFIX}/dimension-values", example=["ai-research", "cv-team"])
    async def dimension_values(query: DimensionValuesAsked) -> list[str]:
        """The values of one key that have statistics."""
        cluster = await cluster_name(books, query.cluster)
        return await books.statistics.dimension_values(
            cluster, *query.hours, query.dimension_type, query.dimension_key
        )

    return [clusters, namespaces, dimension_keys, dimension_values]


def _hour_routes(books: Books) -> list[Route]:
    @get(f"{PREFIX}/cluster/hourly-stats", example=[CLUSTER])
    async def cluster_hours(query: HoursAsked) -> list[ClusterStatistics] | Page[ClusterStatistics]:
        """Hours of a cluster; a page of them if one is asked for."""
        wanted = await _wanted(books, query)
        read = books.statistics
        return await _answer(
            query, await read.cluster_hours(wanted), lambda: read.count_cluster_hours(wanted)
        )

    @get(f"{PREFIX}/namespaces/hourly-stats", example=[NAMESPACE])
    async def namespace_hours(
        query: NamespaceHoursAsked,
    ) -> list[NamespaceStatistics] | Page[NamespaceStatistics]:
        """Hours of namespaces; a page of them if one is asked for."""
        wanted = await _wanted(books, query)
        read = books.statistics
        rows = await read.namespace_hours(wanted, query.namespace)
        return await _answer(query, rows, lambda: read.count_namespace_hours(wanted, query.namespace))

    @get(f"{PREFIX}/labels/hourly-stats", example=[LABEL])
    async def label_hours(query: LabelHoursAsked) -> list[LabelStatistics] | Page[LabelStatistics]:
        """Hours of the values of a label or annotation; a page of them if one is asked for."""
        wanted = await _wanted(books, query)
        label = (query.dimension_type, query.dimension_key, query.dimension_value)
        read = books.statistics
        rows = await read.label_hours(wanted, *label)
        return await _answer(query, rows, lambda: read.count_label_hours(wanted, *label))

    @get(f"{PREFIX}/workloads/hourly-stats", example=Page(1, 1, 20, 1, [WORKLOAD]))
    async def workload_hours(query: WorkloadHoursAsked) -> Page[WorkloadStatistics]:
        """Hours of workloads, always in pages."""
        hours = await _wanted(books, query, always_paged=True)
        wanted = WorkloadHoursQuery(
            **msgspec.structs.asdict(hours),
            namespace=query.namespace,
            name=query.workload_name,
            kind=query.workload_type,
            by_utilization=query.order_by == "utilization",
        )
        total, rows = await books.workloads.page(wanted)
        return _page(query, total, rows)

    return [cluster_hours, namespace_hours, label_hours, workload_hours]


def _snapshot_routes(books: Books, now: Callable[[], float]) -> list[Route]:
    @get(f"{PREFIX}/snapshots/latest", example=SNAPSHOT)
    async def latest_snapshot(query: ClusterAsked) -> Snapshot:
        """The newest snapshot, with all workloads."""
        return await books.snapshots.latest(await cluster_name(books, query.cluster), now())

    @get(f"{PREFIX}/snapshots", example=[SNAPSHOT])
    async def snapshots(query: SnapshotsAsked) -> list[Snapshot] | Page[Snapshot]:
        """Snapshots of a span of time, the last 24 hours if none is given."""
        cluster = await cluster_name(books, query.cluster)
        end = query.end_time.timestamp() if query.end_time else now()
        start = query.start_time.timestamp() if query.start_time else end - DAY
        if start > end:
            raise InvalidRequest("start_time must not be after end_time, which is now if not given")
        paged = query.page is not None or query.page_size is not None
        size = query.page_size or DEFAULT_PAGE_SIZE
        most = MOST_DETAILED if query.details else MOST_ROWS
        if paged and query.details and size > MOST_DETAILED:
            raise InvalidRequest(f"parameter page_size: with details it takes at most {MOST_DETAILED}")
        limit, offset = (size, ((query.page or 1) - 1) * size) if paged else (most + 1, 0)
        rows = list(await books.snapshots.between(cluster, start, end, limit, offset, details=query.details))
        if not paged:
            return _bounded(rows, most)
        total = await books.snapshots.count(cluster, start, end)
        return Page(total, query.page or 1, size, -(-total // size), rows)

    return [latest_snapshot, snapshots]


async def _wanted(books: Books, query: HoursAsked, *, always_paged: bool = False) -> HoursQuery:
    size = query.page_size or DEFAULT_PAGE_SIZE
    paged = query.paged or always_paged
    return HoursQuery(
        cluster=await cluster_name(books, query.cluster),
        first=-int(-query.start_time.timestamp() // 3600),
        last=int(query.end_time.timestamp() // 3600),
        limit=size if paged else MOST_ROWS + 1,
        offset=((query.page or 1) - 1) * size if paged else 0,
        descending=query.order_direction == "desc",
    )


async def _answer(
    query: HoursAsked, rows: list[T], count: Callable[[], Awaitable[int]]
) -> "list[T] | Page[T]":
    if not query.paged:
        return _bounded(rows, MOST_ROWS)
    return _page(query, await count(), rows)


def _bounded(rows: list[T], most: int) -> list[T]:
    if len(rows) > most:
        raise InvalidRequest(f"more than {most:,} rows; give page and page_size, or a shorter span of time")
    return rows


def _page(query: HoursAsked, total: int, rows: list[T]) -> "Page[T]":
    size = query.page_size or DEFAULT_PAGE_SIZE
    return Page(total, query.page or 1, size, -(-total // size), rows)
