"""`/api/v1/gpu-aggregation/*`: snapshots and hourly statistics, from the store."""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

import msgspec

from gpufleet.accounting.current_hour import CurrentHour
from gpufleet.errors import InvalidRequest, NotFound
from gpufleet.model.namespaces import Namespaces, is_visible
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
from gpufleet.server.routes.accounting.aggregation_examples import (
    CLUSTER,
    LABEL,
    NAMESPACE,
    SNAPSHOT,
    WORKLOAD,
)
from gpufleet.server.routes.accounting.current_rows import Query, with_current
from gpufleet.server.routes.accounting.limited_rows import limited_rows
from gpufleet.server.routes.params import (
    ClusterParams,
    DimensionKeyParams,
    DimensionValueParams,
    HourParams,
    LabelHourParams,
    NamespaceHourParams,
    SnapshotParams,
    TimeRangeParams,
    WorkloadHourParams,
    first_hour,
    last_hour,
)
from gpufleet.store import Store
from gpufleet.store.hours.current_rows import NO_ROWS, CurrentRows

T = TypeVar("T")
CurrencyOf = Callable[[str], str]
"""Returns the unit of a cluster's costs; empty if none is configured."""
PREFIX = "/api/v1/gpu-aggregation"
DAY = 86_400.0
DEFAULT_PAGE_SIZE = 20
MAX_ROWS = 100_000
"""Rows of an answer without pages."""
MAX_DETAILED = 50
"""Snapshots with details in one answer: each may have thousands of workloads."""


class Page(msgspec.Struct, Generic[T]):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list[T]


def page_of(rows: list[T], total: int, page: int, size: int) -> Page[T]:
    """Return one page of `total` rows."""
    return Page(total, page, size, -(-total // size), rows)


async def cluster_name(store: Store, default: str, name: str) -> str:
    """Return the cluster of that name, the default one for an empty name; raise NotFound if unknown."""
    if not name:
        return default
    names = await store.accounted.names()
    if name not in names:
        raise NotFound(f"no cluster {name!r}; there are: {', '.join(sorted(names))}")
    return name


def no_currency(cluster: str) -> str:
    """Return no unit for the costs of any cluster."""
    return ""


def aggregation_routes(
    store: Store,
    default_cluster: str,
    now: Callable[[], float] = time.time,
    currency_of: CurrencyOf = no_currency,
    current: Mapping[str, CurrentHour] | None = None,
) -> list[Route]:
    """Return the routes for names, hours and snapshots; `current` has the clusters that this server follows."""
    return [
        *_name_routes(store, default_cluster),
        *_hour_routes(store, default_cluster, currency_of, current or {}, now),
        *_snapshot_routes(store, default_cluster, now),
    ]


def _name_routes(store: Store, default: str) -> list[Route]:
    @get(f"{PREFIX}/clusters", scope="public", example=["prod"])
    async def clusters() -> list[str]:
        """Clusters with statistics."""
        return sorted(await store.accounted.names())

    @get(f"{PREFIX}/namespaces", scope="filtered", example=["inference", "ml-training"])
    async def namespaces(query: TimeRangeParams, namespaces: Namespaces) -> list[str]:
        """Namespaces with statistics."""
        cluster = await cluster_name(store, default, query.cluster)
        found = await store.statistics.namespaces(cluster, *query.hours)
        return [name for name in found if is_visible(namespaces, name)]

    @get(f"{PREFIX}/dimension-keys", scope="public", example=["project", "team"])
    async def dimension_keys(query: DimensionKeyParams) -> list[str]:
        """Keys of labels or annotations with statistics: those in the settings."""
        cluster = await cluster_name(store, default, query.cluster)
        return await store.statistics.dimension_keys(cluster, *query.hours, query.dimension_type)

    @get(f"{PREFIX}/dimension-values", scope="filtered", example=["ai-research", "cv-team"])
    async def dimension_values(query: DimensionValueParams, namespaces: Namespaces) -> list[str]:
        """Values of one key with statistics."""
        cluster = await cluster_name(store, default, query.cluster)
        return await store.statistics.dimension_values(
            cluster, *query.hours, query.dimension_type, query.dimension_key, namespaces
        )

    return [clusters, namespaces, dimension_keys, dimension_values]


def _hour_routes(
    store: Store,
    default: str,
    currency_of: CurrencyOf,
    current: Mapping[str, CurrentHour],
    now: Callable[[], float],
) -> list[Route]:
    statistics = store.statistics

    async def running(query: HourParams, hours: Query) -> tuple[Query, CurrentRows]:
        """Return the query for finished hours, and the rows of the running hour if they are wanted."""
        number = int(now() // 3600)
        followed = current.get(hours.cluster)
        if not query.include_current or followed is None or not hours.first <= number <= hours.last:
            return hours, NO_ROWS
        rows = limited_rows(await followed.rows(hours), hours.namespaces)
        return msgspec.structs.replace(hours, last=number - 1), rows

    @get(f"{PREFIX}/cluster/hourly-stats", scope="filtered", example=[CLUSTER])
    async def cluster_hours(
        query: HourParams, namespaces: Namespaces
    ) -> list[ClusterStatistics] | Page[ClusterStatistics]:
        """Hours of a cluster; one page of them if `page` or `page_size` is given.

        For a caller who is limited to namespaces, they count the GPUs that those namespaces held.
        """
        hours, new = await running(query, await _hours(store, default, currency_of, query, namespaces))
        rows = await with_current(hours, statistics.cluster_hours, new.cluster)
        return await _answer(query, rows, lambda: statistics.count_cluster_hours(hours), len(new.cluster))

    @get(f"{PREFIX}/namespaces/hourly-stats", scope="filtered", example=[NAMESPACE])
    async def namespace_hours(
        query: NamespaceHourParams, namespaces: Namespaces
    ) -> list[NamespaceStatistics] | Page[NamespaceStatistics]:
        """Hours of namespaces; one page of them if `page` or `page_size` is given."""
        hours, new = await running(query, await _hours(store, default, currency_of, query, namespaces))
        added = [row for row in new.namespaces if query.namespace in ("", row.namespace)]
        rows = await with_current(hours, lambda h: statistics.namespace_hours(h, query.namespace), added)
        count = partial(statistics.count_namespace_hours, hours, query.namespace)
        return await _answer(query, rows, count, len(added))

    @get(f"{PREFIX}/labels/hourly-stats", scope="filtered", example=[LABEL])
    async def label_hours(
        query: LabelHourParams, namespaces: Namespaces
    ) -> list[LabelStatistics] | Page[LabelStatistics]:
        """Hours of the values of a label or annotation; one page of them if `page` or `page_size` is given."""
        hours, new = await running(query, await _hours(store, default, currency_of, query, namespaces))
        label = (query.dimension_type, query.dimension_key, query.dimension_value)
        added = [
            row
            for row in new.labels
            if (row.dimension_type, row.dimension_key) == label[:2] and label[2] in ("", row.dimension_value)
        ]
        rows = await with_current(hours, lambda h: statistics.label_hours(h, *label), added)
        return await _answer(query, rows, partial(statistics.count_label_hours, hours, *label), len(added))

    @get(f"{PREFIX}/workloads/hourly-stats", scope="filtered", example=Page(1, 1, 20, 1, [WORKLOAD]))
    async def workload_hours(query: WorkloadHourParams, namespaces: Namespaces) -> Page[WorkloadStatistics]:
        """Hours of workloads, always in pages."""
        wanted = WorkloadHoursQuery(
            **msgspec.structs.asdict(
                await _hours(store, default, currency_of, query, namespaces, always_paged=True)
            ),
            namespace=query.namespace,
            name=query.workload_name,
            kind=query.workload_type,
            dimension_type=query.dimension_type,
            dimension_key=query.dimension_key,
            dimension_value=query.dimension_value,
            by_utilization=query.order_by == "utilization",
        )
        hours, new = await running(query, wanted)
        added = [row for row in new.workloads if wanted.selects(row)]
        total = len(added)

        async def stored(wider: WorkloadHoursQuery) -> list[WorkloadStatistics]:
            nonlocal total
            count, found = await store.workload_pages.page(wider)
            total += count
            return found

        rows = await with_current(hours, stored, added)
        return page_of(rows, total, query.page or 1, query.page_size or DEFAULT_PAGE_SIZE)

    return [cluster_hours, namespace_hours, label_hours, workload_hours]


def _snapshot_routes(store: Store, default: str, now: Callable[[], float]) -> list[Route]:
    @get(f"{PREFIX}/snapshots/latest", scope="filtered", example=SNAPSHOT)
    async def latest_snapshot(query: ClusterParams, namespaces: Namespaces) -> Snapshot:
        """The newest snapshot, with all workloads."""
        cluster = await cluster_name(store, default, query.cluster)
        return await store.snapshots.latest(cluster, now(), namespaces)

    @get(f"{PREFIX}/snapshots", scope="filtered", example=[SNAPSHOT])
    async def snapshots(query: SnapshotParams, namespaces: Namespaces) -> list[Snapshot] | Page[Snapshot]:
        """Snapshots of a time range, by default of the last 24 hours."""
        cluster = await cluster_name(store, default, query.cluster)
        end = query.end_time.timestamp() if query.end_time else now()
        start = query.start_time.timestamp() if query.start_time else end - DAY
        if start > end:
            raise InvalidRequest("start_time must not be after end_time, which is now if not given")
        paged = query.page is not None or query.page_size is not None
        page, size = query.page or 1, query.page_size or DEFAULT_PAGE_SIZE
        max_rows = MAX_DETAILED if query.details else MAX_ROWS
        if paged and query.details and size > MAX_DETAILED:
            raise InvalidRequest(f"parameter page_size: with details it takes at most {MAX_DETAILED}")
        limit, offset = (size, (page - 1) * size) if paged else (max_rows + 1, 0)
        found = await store.snapshots.between(
            cluster, start, end, limit, offset, details=query.details, namespaces=namespaces
        )
        rows = list(found)
        if not paged:
            return _bounded(rows, max_rows)
        return page_of(rows, await store.snapshots.count(cluster, start, end), page, size)

    return [latest_snapshot, snapshots]


async def _hours(
    store: Store,
    default: str,
    currency_of: CurrencyOf,
    query: HourParams,
    namespaces: Namespaces,
    *,
    always_paged: bool = False,
) -> HoursQuery:
    size = query.page_size or DEFAULT_PAGE_SIZE
    paged = query.paged or always_paged
    cluster = await cluster_name(store, default, query.cluster)
    return HoursQuery(
        cluster=cluster,
        first=first_hour(query.start_time),
        last=last_hour(query.end_time),
        limit=size if paged else MAX_ROWS + 1,
        offset=((query.page or 1) - 1) * size if paged else 0,
        descending=query.order_direction == "desc",
        currency=currency_of(cluster),
        namespaces=namespaces,
    )


async def _answer(
    query: HourParams, rows: list[T], count: Callable[[], Awaitable[int]], added: int
) -> "list[T] | Page[T]":
    if not query.paged:
        return _bounded(rows, MAX_ROWS)
    return page_of(rows, await count() + added, query.page or 1, query.page_size or DEFAULT_PAGE_SIZE)


def _bounded(rows: list[T], limit: int) -> list[T]:
    if len(rows) > limit:
        raise InvalidRequest(f"more than {limit:,} rows; give page and page_size, or a shorter time range")
    return rows
