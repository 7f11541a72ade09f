"""Report what each group used, with rows for unattributed and unallocated GPU time.

Pure. Sums are exact until the end, and the remainders are their differences, so that the rows of a
report always add up to the capacity of the cluster.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from gpufleet.accounting.fault_costs import FaultCosts
from gpufleet.accounting.report_series import ReportSeries
from gpufleet.errors import InvalidRequest
from gpufleet.model.hours import GPU_HOUR, KILOWATT_HOUR
from gpufleet.model.statistics import UsageSum, UsageTotals

MAX_DAYS = 400
"""The longest period of a report."""


class ReportPeriod(msgspec.Struct, frozen=True):
    """Whole days in a time zone, `end` not included."""

    name: str
    start: datetime
    end: datetime
    zone: tzinfo = UTC

    @property
    def first(self) -> int:
        """Its first hour number."""
        return int(self.start.timestamp()) // 3600

    @property
    def after(self) -> int:
        """The first hour number after it."""
        return int(self.end.timestamp()) // 3600


class Grouping(msgspec.Struct, frozen=True):
    """What a report is grouped by."""

    by: Literal["namespace", "workload", "label", "annotation"]
    key: str = ""


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group, or a remainder according to `row`."""

    row: Literal["group", "others", "unattributed", "unallocated"]
    name: str
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    """The only run of a workload; empty if several are merged."""
    runs: int | msgspec.UnsetType = msgspec.UNSET
    """How many runs of the workload the row has, if they are merged."""
    gpu_hours: float
    idle_gpu_hours: float
    avg_utilization: float | None
    cost: float
    currency: str | msgspec.UnsetType = msgspec.UNSET
    """The unit of the cost, if one is configured."""
    energy_kwh: float | None
    """Energy of the allocated GPUs; null without a reading of power."""
    share: float
    """Percent of the cluster's capacity."""


class ReportTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster."""

    capacity_gpu_hours: float
    allocated_gpu_hours: float
    idle_gpu_hours: float
    avg_utilization: float | None
    cost: float
    energy_kwh: float | None
    """Energy of the allocated GPUs; null without a reading of power."""
    allocation_rate: float
    """Percent of the capacity."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a cluster's GPUs in a period."""

    cluster_name: str
    period: str
    group_by: str
    start_time: datetime
    end_time: datetime
    hours_accounted: float
    """Hours in which a server followed the cluster; fewer than `hours_in_period` if some time is missing."""
    hours_in_period: int
    currency: str = ""
    """The unit of all costs; empty if none is configured."""
    totals: ReportTotals
    rows: list[ReportRow]
    series: ReportSeries | msgspec.UnsetType = msgspec.UNSET
    """The largest groups over time, if requested."""
    faults: FaultCosts | msgspec.UnsetType = msgspec.UNSET
    """What faults cost; absent without repairs, and for callers who are limited to namespaces."""


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"parameter zone: {name[:60]!r} is not valid; it takes a time zone such as Europe/Berlin"
        ) from None


def period_of(text: str, zone: tzinfo = UTC) -> ReportPeriod:
    """Parse a month (2026-10), a day (2026-10-05) or a range of days (2026-10-05..2026-10-11) in a time zone."""
    first, _, last = text.partition("..")
    try:
        start, end = _span_of(first, zone)[0], _span_of(last or first, zone)[1]
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"parameter period: {text!r} is not valid; it takes a month such as 2026-10, a day such as 2026-10-05, "
            "or the first and the last of several, such as 2026-10-05..2026-10-11"
        ) from None
    if start >= end:
        raise InvalidRequest(f"parameter period: {text!r} ends before it begins")
    if end - start > timedelta(days=MAX_DAYS):
        raise InvalidRequest(f"parameter period: {text!r} is too long; it takes at most {MAX_DAYS} days")
    return ReportPeriod(text, start.astimezone(UTC), end.astimezone(UTC), zone)


def _span_of(text: str, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the start and the exclusive end of a month or a day."""
    if len(text) == 7:
        start = datetime.strptime(text, "%Y-%m").replace(tzinfo=zone)
        return start, (start + timedelta(days=31)).replace(day=1)
    start = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=zone)
    return start, start + timedelta(days=1)


def grouping_of(text: str) -> Grouping:
    """Parse `namespace`, `workload`, `label:KEY` or `annotation:KEY`."""
    by, _, key = text.partition(":")
    if by in ("namespace", "workload") and not key:
        return Grouping(by)  # type: ignore[arg-type]
    if by in ("label", "annotation") and key:
        return Grouping(by, key)  # type: ignore[arg-type]
    raise InvalidRequest(
        f"parameter group_by: {text[:60]!r} is not valid; it takes namespace, workload, label:KEY or annotation:KEY"
    )


def report(
    cluster: str,
    period: ReportPeriod,
    group_by: str,
    totals: UsageTotals,
    groups: Sequence[UsageSum],
    limit: int | None = None,
    currency: str = "",
    *,
    limited: bool = False,
) -> Report:
    """Build the report; groups beyond the first `limit` become one row.

    With `limited`, totals and groups are those of some namespaces, and what is left of the capacity includes the
    use of the others.
    """
    rows = [_row("group", group, totals) for group in groups[:limit]]
    if limit is not None and len(groups) > limit:
        rows.append(_row("others", _combined(groups[limit:]), totals))
    rest = UsageSum(
        name="unattributed",
        allocated=totals.allocated - sum(group.allocated for group in groups),
        idle=totals.idle - sum(group.idle for group in groups),
        cost=totals.cost - sum((group.cost for group in groups), Decimal(0)),
        energy=None if totals.energy is None else totals.energy - (_energy(groups) or 0),
        utilization=None,
    )
    rows.append(_row("unattributed", rest, totals))
    free = UsageSum(
        name="other namespaces and unallocated" if limited else "unallocated",
        allocated=totals.capacity - totals.allocated,
        idle=0,
        cost=Decimal(0),
        utilization=None,
    )
    rows.append(_row("unallocated", free, totals))
    if currency:
        rows = [msgspec.structs.replace(row, currency=currency) for row in rows]
    return Report(
        cluster_name=cluster,
        period=period.name,
        group_by=group_by,
        start_time=period.start,
        end_time=period.end,
        hours_accounted=round(totals.hours, 4),
        hours_in_period=period.after - period.first,
        currency=currency,
        totals=ReportTotals(
            capacity_gpu_hours=totals.capacity / GPU_HOUR,
            allocated_gpu_hours=totals.allocated / GPU_HOUR,
            idle_gpu_hours=totals.idle / GPU_HOUR,
            avg_utilization=totals.utilization,
            cost=_money(totals.cost),
            energy_kwh=kilowatt_hours(totals.energy),
            allocation_rate=_percent(totals.allocated, totals.capacity),
        ),
        rows=rows,
    )


def _combined(groups: Sequence[UsageSum]) -> UsageSum:
    """Return several groups as one, without utilization: its weights are not known here."""
    return UsageSum(
        name=f"{len(groups)} other{'s' if len(groups) > 1 else ''}",
        allocated=sum(group.allocated for group in groups),
        idle=sum(group.idle for group in groups),
        cost=sum((group.cost for group in groups), Decimal(0)),
        energy=_energy(groups),
        utilization=None,
    )


def _row(
    kind: Literal["group", "others", "unattributed", "unallocated"], group: UsageSum, totals: UsageTotals
) -> ReportRow:
    return ReportRow(
        row=kind,
        name=group.name,
        namespace=group.namespace,
        kind=group.kind,
        uid=group.uid,
        runs=group.runs or msgspec.UNSET,
        gpu_hours=group.allocated / GPU_HOUR,
        idle_gpu_hours=group.idle / GPU_HOUR,
        avg_utilization=group.utilization,
        cost=_money(group.cost),
        energy_kwh=kilowatt_hours(group.energy),
        share=_percent(group.allocated, totals.capacity),
    )


def _energy(groups: Sequence[UsageSum]) -> int | None:
    known = [group.energy for group in groups if group.energy is not None]
    return sum(known) if known else None


def kilowatt_hours(energy: int | None) -> float | None:
    """Convert millijoules."""
    return None if energy is None else energy / KILOWATT_HOUR


def _money(cost: Decimal) -> float:
    """Round to a millionth of the currency; the costs of hours are not more precise."""
    return float(round(cost, 6)) + 0.0  # avoid -0


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 4) if whole else 0.0
