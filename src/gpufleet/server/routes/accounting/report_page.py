"""Render a report as one printable HTML page without scripts or external files."""

from html import escape

from msgspec import UNSET

from gpufleet.accounting.report import Report, ReportRow
from gpufleet.model.namespaces import Namespaces

_STYLE = """
body { font: 11pt/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 1.5rem 0 0; } p { margin: .3rem 0 1rem; color: #555; }
table { border-collapse: collapse; width: 100%; margin-bottom: 1rem; } caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid #333; } tfoot td { border-top: 2px solid #333; font-weight: 600; }
.unattributed td, .unallocated td { font-style: italic; color: #555; }
@media print { body { margin: 0; max-width: none; } thead { display: table-header-group; } tr { break-inside: avoid; } }
"""


def render_report(report: Report, namespaces: Namespaces = None) -> str:
    """Return the report as HTML; `namespaces` are those that it is limited to."""
    title = f"GPU use of {report.cluster_name}, {report.period}"
    totals = report.totals
    missing = report.hours_in_period - report.hours_accounted
    note = (
        f"By {report.group_by}. {report.hours_accounted:.10g} of {report.hours_in_period} hours were observed"
    )
    note += f"; the other {round(missing, 4):.10g} were not." if missing else "."
    if namespaces is not None:
        note += f" Limited to namespaces: {', '.join(sorted(namespaces)) or 'none'}."
    cost = f"cost ({report.currency})" if report.currency else "cost"
    rows = "\n".join(_row(row) for row in report.rows)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(note)} {report.start_time:%Y-%m-%d %H:%M} to {report.end_time:%Y-%m-%d %H:%M} UTC.</p>
<table>
<caption>{totals.allocated_gpu_hours:z,.2f} of {totals.capacity_gpu_hours:z,.2f} GPU-hours were allocated \
({totals.allocation_rate:.2f}%).</caption>
<thead><tr><th scope="col">{escape(report.group_by)}</th><th scope="col">GPU-hours</th>\
<th scope="col">of capacity</th><th scope="col">idle GPU-hours</th><th scope="col">utilization</th>\
<th scope="col">energy (kWh)</th><th scope="col">{escape(cost)}</th></tr></thead>
<tbody>
{rows}
</tbody>
<tfoot><tr><td>all</td><td>{totals.capacity_gpu_hours:z,.2f}</td><td>100.00%</td>\
<td>{totals.idle_gpu_hours:z,.2f}</td><td>{_percent(totals.avg_utilization)}</td>\
<td>{_energy(totals.energy_kwh)}</td><td>{totals.cost:z,.2f}</td></tr></tfoot>
</table>{_faults(report)}
</body>
</html>
"""


def _faults(report: Report) -> str:
    """Return what faults cost, by cause, node and model; nothing if it is not known."""
    costs = report.faults
    if costs is UNSET:
        return ""
    capacity = report.totals.capacity_gpu_hours
    share = f" ({100 * costs.lost_gpu_hours / capacity:.2f}% of capacity)" if capacity else ""
    note = (
        f"{costs.faults:,} faults began, {costs.open_faults:,} are open. {costs.lost_gpu_hours:z,.2f} GPU-hours were "
        f"lost{share}, from each fault until the node was returned. Mean time between failures of a node: "
        f"{_mean(costs.mean_hours_between_failures)}; to repair: {_mean(costs.mean_hours_to_repair)}."
    )
    tables = "".join(
        f'<table><thead><tr><th scope="col">{title}</th><th scope="col">lost GPU-hours</th></tr></thead><tbody>'
        + "".join(f"<tr><td>{escape(key)}</td><td>{hours:z,.2f}</td></tr>" for key, hours in rows.items())
        + "</tbody></table>"
        for title, rows in (("cause", costs.by_cause), ("node", costs.by_node), ("model", costs.by_model))
        if rows
    )
    return f"\n<h2>Faults</h2>\n<p>{note}</p>\n{tables}"


def _mean(hours: float | None) -> str:
    return "–" if hours is None else f"{hours:,.1f} h"


def _row(row: ReportRow) -> str:
    name = f"{row.namespace}/{row.name} ({row.kind})" if row.kind else row.name
    return (
        f'<tr class="{row.row}"><td>{escape(name)}</td><td>{row.gpu_hours:z,.2f}</td><td>{row.share:.2f}%</td>'
        f"<td>{row.idle_gpu_hours:z,.2f}</td><td>{_percent(row.avg_utilization)}</td>"
        f"<td>{_energy(row.energy_kwh)}</td><td>{row.cost:z,.2f}</td></tr>"
    )


def _energy(value: float | None) -> str:
    return "–" if value is None else f"{value:z,.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}%"
