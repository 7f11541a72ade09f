"""Print a usage report as a table."""

from collections.abc import Sequence

from gpufleet.client import types
from gpufleet.terminal.columns import NONE, Column
from gpufleet.terminal.width import wrapped

_MAX_FAULTS = 5
"""Entries of each table of faults."""
_ROWS = {"others": "(others)", "unattributed": "(none)", "unallocated": "(unallocated)"}


def report_columns(currency: str) -> tuple[Column, ...]:
    """Return the columns; costs only if a currency is configured."""
    columns = (
        Column("NAME", _name),
        Column("GPU-HOURS", lambda row: row.gpu_hours, text=_hours),
        Column("SHARE", lambda row: row.share, text=lambda share: f"{share:.1f}%"),
        Column("IDLE", lambda row: row.idle_gpu_hours, text=_hours),
        Column("UTIL", lambda row: row.avg_utilization, text=lambda value: f"{value:.0f}%"),
        Column("KWH", lambda row: row.energy_kwh, text=_hours),
        Column(currency or "COST", lambda row: row.cost, text=lambda cost: f"{cost:,.2f}"),
    )
    return columns if currency else columns[:-1]


def _name(row: types.ReportRow) -> str:
    name = row.name or _ROWS.get(row.row, NONE)
    return f"{row.namespace}/{name}" if row.namespace and row.kind else name


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def text_report(report: types.Report, width: int = 0) -> str:
    """Return the report as text: a heading, the rows, and the total of the cluster."""
    hours = f"{report.hours_accounted:,.0f} of {report.hours_in_period:,} hours accounted"
    head = f"Cluster {report.cluster_name}, {report.period}, by {report.group_by} ({hours})"
    totals = report.totals
    total = types.ReportRow(
        row="group",
        name="TOTAL",
        gpu_hours=totals.capacity_gpu_hours,
        idle_gpu_hours=totals.idle_gpu_hours,
        avg_utilization=totals.avg_utilization,
        cost=totals.cost,
        energy_kwh=totals.energy_kwh,
        share=100.0,
    )
    columns = report_columns(report.currency)
    return f"{head}\n{_numbers_table(columns, [*report.rows, total], width)}{_faults(report, width)}"


def _faults(report: types.Report, width: int) -> str:
    """Return what faults cost, as lines; nothing if it is not known."""
    costs = report.faults
    if not costs:
        return ""
    lines = [
        "",
        f"Faults: {costs.faults:,} began, {costs.open_faults:,} open, {costs.lost_gpu_hours:,.1f} GPU-hours lost; "
        f"mean time between failures of a node {_mean(costs.mean_hours_between_failures)}, "
        f"to repair {_mean(costs.mean_hours_to_repair)}",
    ]
    for title, table in (("cause", costs.by_cause), ("node", costs.by_node), ("model", costs.by_model)):
        parts = [f"{name or NONE} {hours:,.1f}" for name, hours in list((table or {}).items())[:_MAX_FAULTS]]
        lines += [f"  by {title}: {', '.join(parts)}"] if parts else []
    return "\n".join(wrapped(line, width) for line in lines) + "\n"


def _mean(hours: float | None) -> str:
    return NONE if hours is None else f"{hours:,.1f} h"


def _numbers_table(columns: Sequence[Column], rows: Sequence[types.ReportRow], width: int) -> str:
    """Return a table whose numbers are aligned to the right; long names are cut to fit."""
    cells = [
        [column.header for column in columns],
        *([column.cell(row) for column in columns] for row in rows),
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    if width:
        widths[0] = max(12, min(widths[0], width - sum(widths[1:]) - 2 * (len(columns) - 1)))
    lines = []
    for first, *rest in cells:
        name = first if len(first) <= widths[0] else first[: widths[0] - 1] + "…"
        numbers = [text.rjust(size) for text, size in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *numbers]).rstrip() + "\n")
    return "".join(lines)
