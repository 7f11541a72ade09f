"""`/api/v1/gpu-aggregation/report` and `/waste`: usage of a month, and workloads that leave GPUs idle."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.accounting.fault_costs import FaultCosts
from gpufleet.accounting.report import (
    MAX_DAYS,
    Grouping,
    Report,
    ReportPeriod,
    ReportRow,
    ReportTotals,
    grouping_of,
    kilowatt_hours,
    period_of,
    report,
    zone_of,
)
from gpufleet.accounting.report_series import ReportSeries, by_day, report_series, step_of
from gpufleet.errors import InvalidRequest
from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.statistics import UsageAmount, UsageSum
from gpufleet.server.csv import as_csv, wants_csv
from gpufleet.server.http.answers import Raw
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.accounting.aggregation import (
    DAY,
    DEFAULT_PAGE_SIZE,
    PREFIX,
    CurrencyOf,
    Page,
    cluster_name,
    no_currency,
    page_of,
)
from gpufleet.server.routes.params import ClusterName, PageNumber, PageSize, TimeRangeParams
from gpufleet.store import Store

WASTE_DAYS = 7
FaultsBetween = Callable[[float, float], FaultCosts]
"""Returns what the faults of a cluster cost between two times."""


ZoneName = Annotated[
    str, Meta(min_length=1, max_length=64, description="Time zone of the days, such as Europe/Berlin.")
]


class ReportParams(msgspec.Struct):
    """The period and the grouping of a report."""

    period: Annotated[
        str,
        Meta(
            pattern=r"^\d{4}-\d{2}(-\d{2})?(\.\.\d{4}-\d{2}(-\d{2})?)?(?!\n)$",
            description="a month (2026-10), a day (2026-10-05), or the first and last of several "
            "(2026-10-05..2026-10-11).",
        ),
    ]
    group_by: Annotated[
        str, Meta(max_length=400, description="namespace, workload, label:KEY or annotation:KEY.")
    ] = "namespace"
    cluster: ClusterName = ""
    zone: ZoneName = "UTC"
    namespace: Annotated[str, Meta(max_length=253, description="Usage of this namespace only.")] = ""
    merge_runs: Annotated[
        bool,
        Meta(description="With group_by=workload: one row for all runs with the same kind and name."),
    ] = False
    workload: Annotated[
        str,
        Meta(
            pattern=r"^$|^[^/]+/.+$",
            max_length=400,
            description="With group_by=workload and a namespace: runs of this kind and name only, such as Job/train.",
        ),
    ] = ""
    groups: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Number of largest groups; the rest is one row. 0: all."),
    ] = 0
    series: Annotated[
        int,
        Meta(ge=0, le=50, description="Number of largest groups to include as time series."),
    ] = 0
    format: Annotated[
        Literal["json", "csv"] | None,
        Meta(description="Format; from the Accept header if not given."),
    ] = None


class WasteParams(TimeRangeParams):
    """Waste of a time range, by default of the last week."""

    zone: ZoneName = "UTC"
    page: PageNumber = 1
    page_size: PageSize = DEFAULT_PAGE_SIZE


class WasteRow(msgspec.Struct, kw_only=True):
    """A workload with idle GPUs."""

    namespace: str
    workload_name: str
    workload_type: str
    owner_uid: str
    idle_gpu_hours: float
    allocated_gpu_hours: float
    idle_share: float
    """Percent of its allocated GPU-hours."""
    avg_utilization: float | None
    energy_kwh: float | None
    """The energy of its allocated GPUs; null without readings."""
    idle_cost: float
    currency: str | msgspec.UnsetType = msgspec.UNSET
    """The unit of the cost, if one is configured."""


def report_routes(
    store: Store,
    default_cluster: str,
    now: Callable[[], float] = time.time,
    currency_of: CurrencyOf = no_currency,
    faults: Mapping[str, FaultsBetween] | None = None,
) -> list[Route]:
    """Return the routes for reports and for the list of wasteful workloads; `faults` are those of clusters."""

    @get(f"{PREFIX}/report", scope="filtered", example=_REPORT, extra_media_types=("text/csv",))
    async def usage_report(
        query: ReportParams, context: RequestContext, namespaces: Namespaces
    ) -> Report | Raw:
        """Usage of each group in a month or other days, and the unallocated rest: JSON or CSV."""
        period = period_of(query.period, zone_of(query.zone))
        grouping_of(query.group_by)  # before the cluster, whose name may be wrong too
        cluster = await cluster_name(store, default_cluster, query.cluster)
        if query.namespace:
            namespaces = frozenset({query.namespace} if is_visible(namespaces, query.namespace) else ())
        if (query.workload or query.merge_runs) and query.group_by != "workload":
            raise InvalidRequest("parameters workload and merge_runs need group_by=workload")
        if query.workload and not query.namespace:
            raise InvalidRequest("parameter workload needs a namespace")
        made = await build_report(
            store,
            cluster,
            period,
            query.group_by,
            currency_of(cluster),
            namespaces,
            limit=query.groups or None,
            series=query.series,
            merge_runs=query.merge_runs,
            workload=query.workload,
        )
        if namespaces is None and (costs := (faults or {}).get(cluster)) is not None:
            start, end = period.start.timestamp(), min(period.end.timestamp(), now())
            made = msgspec.structs.replace(made, faults=costs(start, max(start, end)))
        if query.format == "csv" or (query.format is None and wants_csv(context.accept)):
            return Raw(rows_as_csv(made), "text/csv")
        return made

    @get(f"{PREFIX}/waste", scope="filtered", example=Page(1, 1, 20, 1, [_WASTE]))
    async def waste(query: WasteParams, namespaces: Namespaces) -> Page[WasteRow]:
        """Workloads with idle GPUs, most idle GPU-hours first; counted in whole days of the time zone."""
        cluster = await cluster_name(store, default_cluster, query.cluster)
        end = query.end_time.timestamp() if query.end_time else now()
        start = query.start_time.timestamp() if query.start_time else end - WASTE_DAYS * DAY
        if not 0 <= end - start <= MAX_DAYS * DAY:
            raise InvalidRequest(f"start_time must be before end_time, by at most {MAX_DAYS} days")
        zone = zone_of(query.zone)
        first, after = _midnight(start, zone), _midnight(end, zone, 1)
        offset = (query.page - 1) * query.page_size
        total, sums = await store.usage.idle_workloads(
            cluster, first, after, query.page_size, offset, namespaces
        )
        currency = currency_of(cluster) or msgspec.UNSET
        return page_of([_waste_row(each, currency) for each in sums], total, query.page, query.page_size)

    return [usage_report, waste]


def _midnight(at: float, zone: tzinfo, days: int = 0) -> int:
    """Return the number of the hour in which the day of a time begins, or one some days later."""
    day = datetime.fromtimestamp(at, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((day + timedelta(days=days)).timestamp()) // 3600


_AMOUNTS = ("allocated", "idle", "cost", "energy", "utilization")
_UNUSED = UsageSum(name="", allocated=0, idle=0, cost=Decimal(0), utilization=None)


async def build_report(
    store: Store,
    cluster: str,
    period: ReportPeriod,
    group_by: str,
    currency: str = "",
    namespaces: Namespaces = None,
    *,
    limit: int | None = None,
    series: int = 0,
    merge_runs: bool = False,
    workload: str = "",
) -> Report:
    """Return the report of a cluster: the largest `limit` groups, and so many of them over time.

    With `merge_runs`, the runs of a workload are one group; `workload` is the kind and name of the only one.
    """
    grouping = grouping_of(group_by)
    span = (cluster, period.first, period.after)
    totals = await store.usage.totals(*span, namespaces)
    whole = None
    if grouping.by == "workload":
        kind, _, name = workload.partition("/")
        only = (kind, name) if workload else None
        groups = await store.usage.by_workload(*span, namespaces, merge_runs=merge_runs, only=only)
        if only:
            found = await store.usage.by_workload(*span, namespaces, merge_runs=True, only=only)
            whole = found[0] if found else _UNUSED
            totals = msgspec.structs.replace(totals, **{part: getattr(whole, part) for part in _AMOUNTS})
    elif grouping.by == "namespace":
        groups = await store.usage.by_namespace(*span, namespaces)
    else:
        groups = await store.usage.by_label(*span, grouping.by, grouping.key, namespaces)
    limited = namespaces is not None
    made = report(cluster, period, group_by, totals, groups, limit, currency, limited=limited)
    if not series:
        return made
    lines = await _series(store, cluster, period, grouping, groups[:series], namespaces, whole)
    return msgspec.structs.replace(made, series=lines)


async def _series(
    store: Store,
    cluster: str,
    period: ReportPeriod,
    grouping: Grouping,
    groups: list[UsageSum],
    namespaces: Namespaces,
    whole: UsageSum | None,
) -> ReportSeries:
    """Return the use of groups over time; with `whole`, the others are its other runs."""
    step = step_of(period.after - period.first)
    zoned = step == "day" and period.zone is not UTC
    span = (cluster, period.first, period.after, "hour" if zoned else step)
    total = await store.usage_series.of_cluster(*span, namespaces)
    if whole is not None:
        runs = await store.usage_series.of_groups(*span, "workload", "", [whole], namespaces)
        total = dict.fromkeys(total, UsageAmount()) | next(iter(runs.values()), {})
    by_group = await store.usage_series.of_groups(*span, grouping.by, grouping.key, groups, namespaces)
    if zoned:
        total = by_day(total, period.zone)
        by_group = {group: by_day(hours, period.zone) for group, hours in by_group.items()}
    return report_series(step, total, groups, by_group)


def rows_as_csv(report: Report) -> bytes:
    """Return the rows of a report as CSV."""
    return as_csv(msgspec.json.encode(report.rows)) or b""


def _waste_row(usage: UsageSum, currency: str | msgspec.UnsetType) -> WasteRow:
    share = usage.idle / usage.allocated if usage.allocated else 0.0
    return WasteRow(
        namespace=usage.namespace,
        workload_name=usage.name,
        workload_type=usage.kind,
        owner_uid=usage.uid,
        idle_gpu_hours=usage.idle / GPU_HOUR,
        allocated_gpu_hours=usage.allocated / GPU_HOUR,
        idle_share=round(100 * share, 4),
        avg_utilization=usage.utilization,
        energy_kwh=kilowatt_hours(usage.energy),
        idle_cost=round(float(usage.cost) * share, 6),
        currency=currency,
    )


_REPORT = Report(
    cluster_name="prod",
    period="2026-10",
    group_by="namespace",
    start_time=datetime(2026, 10, 1, tzinfo=UTC),
    end_time=datetime(2026, 11, 1, tzinfo=UTC),
    hours_accounted=744,
    hours_in_period=744,
    currency="USD",
    totals=ReportTotals(
        capacity_gpu_hours=95232.0,
        allocated_gpu_hours=71424.0,
        idle_gpu_hours=1200.5,
        avg_utilization=68.2,
        cost=249984.0,
        energy_kwh=40850.5,
        allocation_rate=75.0,
    ),
    rows=[
        ReportRow(
            row="group",
            name="ml-training",
            gpu_hours=71424.0,
            idle_gpu_hours=1200.5,
            avg_utilization=68.2,
            cost=249984.0,
            currency="USD",
            energy_kwh=40850.5,
            share=75.0,
        ),
        ReportRow(
            row="unattributed",
            name="unattributed",
            gpu_hours=0.0,
            idle_gpu_hours=0.0,
            avg_utilization=None,
            cost=0.0,
            currency="USD",
            energy_kwh=0.0,
            share=0.0,
        ),
        ReportRow(
            row="unallocated",
            name="unallocated",
            gpu_hours=23808.0,
            idle_gpu_hours=0.0,
            avg_utilization=None,
            cost=0.0,
            currency="USD",
            energy_kwh=None,
            share=25.0,
        ),
    ],
    faults=FaultCosts(
        faults=2,
        lost_gpu_hours=12.5,
        mean_hours_between_failures=5952.0,
        mean_hours_to_repair=1.5,
        by_cause={"xid-79": 12.0, "xid-48": 0.5},
        by_node={"gpu-node-1": 12.5},
        by_model={"NVIDIA_H200": 12.5},
    ),
)
_WASTE = WasteRow(
    namespace="ml-training",
    workload_name="notebook-7",
    workload_type="StatefulSet",
    owner_uid="abc-def-123",
    idle_gpu_hours=160.0,
    allocated_gpu_hours=168.0,
    idle_share=95.2381,
    avg_utilization=1.3,
    energy_kwh=20.4,
    idle_cost=560.0,
    currency="USD",
)
