"""`/api/v1/gpu-aggregation/report` and `/waste`: what a month comes to, and who holds GPUs for nothing."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.accounting.report import (
    MOST_DAYS,
    Grouping,
    Report,
    ReportPeriod,
    ReportRow,
    ReportTotals,
    grouping_of,
    period_of,
    report,
)
from gpufleet.accounting.report_series import ReportSeries, report_series, step_of
from gpufleet.errors import InvalidRequest
from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.statistics import UsageSum
from gpufleet.server.http.answers import Raw
from gpufleet.server.http.csv import as_csv, wants_csv
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.aggregation import DAY, PREFIX, cluster_name
from gpufleet.server.routes.aggregation_params import DEFAULT_PAGE_SIZE, MaybeSpan, Page, PageNumber, PageSize
from gpufleet.server.routes.aggregation_ports import Books
from gpufleet.server.routes.report_page import page_of

WASTE_DAYS = 7


class ReportAsked(msgspec.Struct):
    """Which report."""

    period: Annotated[
        str,
        Meta(
            pattern=r"^\d{4}-\d{2}(-\d{2})?(\.\.\d{4}-\d{2}(-\d{2})?)?$",
            description="a month (2026-10), a day (2026-10-05), or the first and last of several "
            "(2026-10-05..2026-10-11), in UTC.",
        ),
    ]
    group_by: Annotated[
        str, Meta(max_length=400, description="namespace, workload, label:KEY or annotation:KEY.")
    ] = "namespace"
    cluster: Annotated[str, Meta(max_length=253, description="Cluster; the default one if not given.")] = ""
    groups: Annotated[
        int,
        Meta(
            ge=0, le=100_000, description="Tell this many groups, the largest; the rest is one row. 0: all."
        ),
    ] = 0
    series: Annotated[
        int,
        Meta(ge=0, le=50, description="Tell also how this many groups, the largest, used GPUs over time."),
    ] = 0
    format: Annotated[
        Literal["json", "csv", "html"] | None, Meta(description="Form; what Accept says if not given.")
    ] = None


class WasteAsked(MaybeSpan):
    """Waste of which days; the last week if not said."""

    page: PageNumber = 1
    page_size: PageSize = DEFAULT_PAGE_SIZE


class WasteRow(msgspec.Struct, kw_only=True):
    """A workload that held GPUs which it did not use."""

    namespace: str
    workload_name: str
    workload_type: str
    owner_uid: str
    idle_gpu_hours: float
    allocated_gpu_hours: float
    idle_share: float
    """Percent of the GPU-hours it held."""
    avg_utilization: float | None
    idle_cost: float


def report_routes(books: Books, now: Callable[[], float] = time.time) -> list[Route]:
    """Reports, and the list of what is wasted."""

    @get(f"{PREFIX}/report", example=_REPORT, texts=("text/csv", "text/html"))
    async def usage_report(query: ReportAsked, context: RequestContext) -> Report | Raw:
        """What each group used of a month or of other days, with what is left over: JSON, CSV, or a page that prints well."""
        period, grouping = period_of(query.period), grouping_of(query.group_by)
        cluster = await cluster_name(books, query.cluster)
        totals = await books.usage.totals(cluster, period.first, period.after)
        groups = await _groups(books, cluster, period.first, period.after, grouping)
        made = report(cluster, period, query.group_by, totals, groups, query.groups or None)
        if query.series:
            made = msgspec.structs.replace(
                made, series=await _series(books, cluster, period, grouping, groups[: query.series])
            )
        form = query.format or _form(context.accept)
        if form == "html":
            return Raw(page_of(made).encode(), b"text/html; charset=utf-8")
        if form == "csv":
            return Raw(as_csv(msgspec.json.encode(made.rows)) or b"", b"text/csv; charset=utf-8")
        return made

    @get(f"{PREFIX}/waste", example=Page(1, 1, 20, 1, [_WASTE]))
    async def waste(query: WasteAsked) -> Page[WasteRow]:
        """Workloads that hold GPUs which they don't use, the worst first; counted in whole days."""
        cluster = await cluster_name(books, query.cluster)
        end = query.end_time.timestamp() if query.end_time else now()
        start = query.start_time.timestamp() if query.start_time else end - WASTE_DAYS * DAY
        if not 0 <= end - start <= MOST_DAYS * DAY:
            raise InvalidRequest(f"start_time must lie before end_time, by {MOST_DAYS} days at the most")
        first, after = int(start // DAY) * 24, int(end // DAY) * 24 + 24
        offset = (query.page - 1) * query.page_size
        total, found = await books.usage.idle_workloads(cluster, first, after, query.page_size, offset)
        rows = [_waste(each) for each in found]
        return Page(total, query.page, query.page_size, -(-total // query.page_size), rows)

    return [usage_report, waste]


async def _groups(books: Books, cluster: str, first: int, after: int, grouping: Grouping) -> list[UsageSum]:
    if grouping.by == "namespace":
        return await books.usage.by_namespace(cluster, first, after)
    if grouping.by == "workload":
        return await books.usage.by_workload(cluster, first, after)
    return await books.usage.by_label(cluster, first, after, grouping.by, grouping.key)


async def _series(
    books: Books, cluster: str, period: ReportPeriod, grouping: Grouping, groups: list[UsageSum]
) -> ReportSeries:
    step = step_of(period.after - period.first)
    span = (cluster, period.first, period.after, step)
    whole = await books.series.of_cluster(*span)
    held = await books.series.of_groups(*span, grouping.by, grouping.key, groups)
    return report_series(step, whole, groups, held)


def _form(accept: bytes) -> str:
    if wants_csv(accept):
        return "csv"
    kinds = [part.split(b";")[0].strip().lower() for part in accept.split(b",")]
    if b"text/html" in kinds and b"application/json" not in kinds:
        return "html"
    return "json"


def _waste(found: UsageSum) -> WasteRow:
    share = found.idle / found.allocated if found.allocated else 0.0
    return WasteRow(
        namespace=found.namespace,
        workload_name=found.name,
        workload_type=found.kind,
        owner_uid=found.uid,
        idle_gpu_hours=found.idle / GPU_HOUR,
        allocated_gpu_hours=found.allocated / GPU_HOUR,
        idle_share=round(100 * share, 4),
        avg_utilization=found.utilization,
        idle_cost=round(float(found.cost) * share, 6),
    )


_REPORT = Report(
    cluster_name="prod",
    period="2026-10",
    group_by="namespace",
    start_time=datetime(2026, 10, 1, tzinfo=UTC),
    end_time=datetime(2026, 11, 1, tzinfo=UTC),
    hours_accounted=744,
    hours_in_period=744,
    totals=ReportTotals(
        capacity_gpu_hours=95232.0,
        allocated_gpu_hours=71424.0,
        idle_gpu_hours=1200.5,
        avg_utilization=68.2,
        cost=249984.0,
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
            share=75.0,
        ),
        ReportRow(
            row="unattributed",
            name="unattributed",
            gpu_hours=0.0,
            idle_gpu_hours=0.0,
            avg_utilization=None,
            cost=0.0,
            share=0.0,
        ),
        ReportRow(
            row="unallocated",
            name="unallocated",
            gpu_hours=23808.0,
            idle_gpu_hours=0.0,
            avg_utilization=None,
            cost=0.0,
            share=25.0,
        ),
    ],
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
    idle_cost=560.0,
)
