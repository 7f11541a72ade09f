"""Render a report as one printable HTML page without scripts or external files.

On paper, each page has the title and its number, tables repeat their heading, and the total comes once, at the end.
The dashboard prints the same page: its rules for the paper are a style sheet of their own.
"""

import re
from collections import Counter
from datetime import UTC, tzinfo
from html import escape

from msgspec import UNSET

from gpufleet.accounting.report import Report, ReportRow
from gpufleet.model.namespaces import Namespaces
from gpufleet.server.routes.accounting.report_chart import chart_colours, draw_charts, swatch

_STYLE = """
.report { font: 10.5pt/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a1a1a;
  background: #fff; }
h1 { font-size: 1.4rem; line-height: 1.2; margin: 0; } h2 { font-size: 1.1rem; margin: 1.5rem 0 0; break-after: avoid; }
p { margin: .3rem 0 1rem; color: #555; }
figure { margin: 0 0 .6rem; break-inside: avoid; } figcaption { font-weight: 600; }
figure svg { display: block; width: 100%; height: auto; font-size: 10px; fill: #555; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 0 0 1.2rem; padding: 0; list-style: none; break-before: avoid; }
.swatch { width: .7em; height: .7em; }
table { border-collapse: collapse; width: 100%; margin-bottom: 1rem; } caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; width: 34%; } :is(th, td):not(:first-child) { white-space: nowrap; }
thead th { border-bottom: 2px solid #333; vertical-align: bottom; } tfoot td { border-top: 2px solid #333; font-weight: 600; }
.others td, .unattributed td, .unallocated td { font-style: italic; color: #555; }
@media print {
  .report { font-size: 9pt; margin: 0; max-width: none; padding: 0; } th, td { padding: .2rem .3rem; }
  thead { display: table-header-group; } tfoot { display: table-row-group; } tr { break-inside: avoid; }
  tbody tr:last-child { break-after: avoid; }
}
"""


def render_report(
    report: Report, namespaces: Namespaces = None, zone: tzinfo = UTC, workload: str = ""
) -> str:
    """Return the report as HTML; it is limited to `namespaces` and a `workload`, `zone` is that of its days."""
    title = f"GPU use of {report.cluster_name}, {report.period.replace('..', ' to ')}"
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style id="paper">{_paper(title)}</style><style>{_STYLE}</style></head>
<body>
<main class="report">
<h1>{escape(title)}</h1>
<p>{escape(_note(report, namespaces, zone, workload))}</p>{draw_charts(report, zone)}
{_table(report)}{_faults(report)}
</main>
</body>
</html>
"""


def _paper(title: str) -> str:
    """Return the margins and the header of each page."""
    text = re.sub(r"[^\w ,.-]", lambda found: f"\\{ord(found[0]):x} ", title)
    return f"""
@page {{ margin: 18mm 14mm 14mm; @top-left {{ content: "{text}"; font: 8pt system-ui, sans-serif; color: #555; }}
  @top-right {{ content: "Page " counter(page) " of " counter(pages); font: 8pt system-ui, sans-serif; color: #555; }} }}
"""


def _note(report: Report, namespaces: Namespaces, zone: tzinfo, workload: str) -> str:
    """Return the grouping, the exact period, how much of it was observed, and what it is limited to."""
    start, end = report.start_time.astimezone(zone), report.end_time.astimezone(zone)
    note = f"By {report.group_by}, {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} {zone}. "
    observed = int(10 * report.hours_accounted) / 10  # rounded down, so that a part never looks like all
    note += f"{observed:.10g} of {report.hours_in_period} hours were observed."
    if namespaces is not None:
        note += f" Limited to namespaces: {', '.join(sorted(namespaces)) or 'none'}."
    if workload:
        note += f" Runs of {workload} only."
    return note


def _table(report: Report) -> str:
    totals = report.totals
    cost = f"cost<br>({escape(report.currency)})" if report.currency else "cost"
    colours = chart_colours(report)
    marks = {key: f"{swatch(colour)} " for key, colour in colours.items()}
    named = Counter((row.namespace, row.kind, row.name) for row in report.rows)
    rows = "\n".join(
        _row(
            row,
            marks.get((row.namespace, row.kind, row.name, row.uid), ""),
            named[row.namespace, row.kind, row.name] > 1,
        )
        for row in report.rows
    )
    return f"""<table>
<caption>{totals.allocated_gpu_hours:z,.2f} of {totals.capacity_gpu_hours:z,.2f} GPU-hours were allocated \
({totals.allocation_rate:.2f}%).</caption>
<thead><tr><th scope="col">{escape(report.group_by)}</th><th scope="col">GPU-hours</th>\
<th scope="col">of<br>capacity</th><th scope="col">idle<br>GPU-hours</th><th scope="col">utilization</th>\
<th scope="col">energy<br>(kWh)</th><th scope="col">{cost}</th></tr></thead>
<tbody>
{rows}
</tbody>
<tfoot><tr><td>total</td><td>{totals.capacity_gpu_hours:z,.2f}</td><td>100.00%</td>\
<td>{totals.idle_gpu_hours:z,.2f}</td><td>{_percent(totals.avg_utilization)}</td>\
<td>{_energy(totals.energy_kwh)}</td><td>{totals.cost:z,.2f}</td></tr></tfoot>
</table>"""


def _faults(report: Report) -> str:
    """Return what faults cost, by cause, node and model; nothing if it is not known."""
    costs = report.faults
    if costs is UNSET:
        return ""
    capacity = report.totals.capacity_gpu_hours
    share = f" ({100 * costs.lost_gpu_hours / capacity:.2f}% of capacity)" if capacity else ""
    note = (
        f"Faults: {costs.faults:,} began, {costs.open_faults:,} open. {costs.lost_gpu_hours:z,.2f} GPU-hours were "
        f"lost{share}, from each fault until the node was returned. Mean time between failures of a node: "
        f"{_mean(costs.mean_hours_between_failures)}; to repair: {_mean(costs.mean_hours_to_repair)}."
    )
    models = {name.replace("_", " "): hours for name, hours in costs.by_model.items()}
    tables = "".join(
        f'<table><thead><tr><th scope="col">{title}</th><th scope="col">lost GPU-hours</th></tr></thead><tbody>'
        + "".join(f"<tr><td>{escape(key)}</td><td>{hours:z,.2f}</td></tr>" for key, hours in rows.items())
        + "</tbody></table>"
        for title, rows in (("cause", costs.by_cause), ("node", costs.by_node), ("model", models))
        if rows
    )
    return f"\n<h2>Faults</h2>\n<p>{note}</p>\n{tables}"


def _mean(hours: float | None) -> str:
    return "–" if hours is None else f"{hours:,.1f} h"


def _row(row: ReportRow, mark: str, repeated: bool) -> str:
    """Return a row; where several runs have its name, with its uid."""
    runs = "" if row.runs is UNSET or row.runs == 1 else f", {row.runs} runs"
    kind = f"{row.kind}{runs}{f', {row.uid}' if repeated and row.uid else ''}"
    name = f"{row.namespace}/{row.name} ({kind})" if kind else row.name or "none"
    return (
        f'<tr class="{row.row}"><td>{mark}{escape(name)}</td><td>{row.gpu_hours:z,.2f}</td><td>{row.share:.2f}%</td>'
        f"<td>{row.idle_gpu_hours:z,.2f}</td><td>{_percent(row.avg_utilization)}</td>"
        f"<td>{_energy(row.energy_kwh)}</td><td>{row.cost:z,.2f}</td></tr>"
    )


def _energy(value: float | None) -> str:
    return "–" if value is None else f"{value:z,.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}%"
