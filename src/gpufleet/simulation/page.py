"""Draw the outcomes of scenarios as one HTML page without external files.

Written by hand: a few line and bar charts do not justify a plotting library as a dependency.
"""

from collections.abc import Callable, Sequence
from html import escape

from gpufleet.simulation.outcome import Outcome, Sample, summary
from gpufleet.simulation.text_report import duration
from gpufleet.simulation.unit import size_order

_COLOURS = ("#1b6ac9", "#d1495b", "#2e933c", "#b8860b", "#6a4c93", "#00838f", "#8d6e63", "#546e7a")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 260, 60, 20, 16, 34

_COUNTS = tuple(digit * 10.0**power for power in range(8) for digit in (1, 2, 5))
_TIMES = tuple(
    seconds * many
    for seconds, each in ((1, (1, 5, 15, 30)), (60, (1, 2, 5, 10, 15, 30)), (3600, (1, 2, 3, 6, 12)))
    for many in each
) + tuple(86400.0 * days for days in (1, 2, 5, 10, 20, 50, 100))
"""Distances between the lines of a grid."""

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--text:light-dark(#222,#ddd)}
body{font:14px/1.5 system-ui,sans-serif;max-width:1060px;margin:2rem auto;padding:0 1rem;color:var(--text)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--text)}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em}
h2{margin-top:2rem;font-size:1.1rem}.scroll{overflow-x:auto}
"""


def page(outcomes: Sequence[Outcome], title: str, note: str = "") -> str:
    """Return the HTML page; `note` is a line under the title."""
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(note)}</p>" if note else "",
        _figures(outcomes),
        "<h2>GPUs allocated, %</h2>",
        _lines(outcomes, lambda sample: sample.allocated_percent, 100.0),
        "<h2>Units waiting</h2>",
        _lines(outcomes, lambda sample: float(sample.waiting)),
        "<h2>Waiting time by size: median and 95th percentile</h2>",
        _bars(outcomes, 1),
        "<h2>Waiting time by queue: median and 95th percentile</h2>",
        _bars(outcomes, 0),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _figures(outcomes: Sequence[Outcome]) -> str:
    head = (
        "Scenario", "Nodes", "Allocation, %", "Fragmented, %", "Mean wait", "Median", "p95",
        "Not started", "Preemptions", "Failures", "Cost", "Cost of capacity",
    )  # fmt: skip
    rows = []
    for number, outcome in enumerate(outcomes):
        report = outcome.report()
        waits = report["wait_seconds"]
        cells = (
            f"{outcome.nodes:,}",
            f"{outcome.allocation_percent:.2f}",
            f"{outcome.fragmentation_percent:.2f}",
            *(duration(waits[name]) for name in ("mean", "median", "p95")),
            f"{report['unstarted']:,}",
            f"{outcome.preemptions:,}",
            f"{outcome.failures:,}",
            f"{outcome.cost:,.0f}",
            f"{outcome.capacity_cost:,.0f}",
        )
        key = f'<span class="key" style="background:{_colour(number)}"></span>'
        rows.append(f"<tr><td>{key}{escape(outcome.scenario)}</td>" + _cells(cells) + "</tr>")
    titles = "".join(f"<th>{name}</th>" for name in head)
    return f'<div class="scroll"><table><tr>{titles}</tr>{"".join(rows)}</table></div>'


def _cells(values: Sequence[str]) -> str:
    return "".join(f"<td>{value}</td>" for value in values)


def _lines(outcomes: Sequence[Outcome], value: Callable[[Sample], float], most: float | None = None) -> str:
    begin = min((outcome.begin for outcome in outcomes), default=0.0)
    end = max((outcome.end for outcome in outcomes), default=1.0)
    top = most or 4.0 * _step(
        max((value(s) for each in outcomes for s in each.samples), default=0.0), _COUNTS
    )
    parts = [*_grid(top), *_days(begin, end)]
    for number, outcome in enumerate(outcomes):
        points = " ".join(
            f"{_x((sample.time - begin) / (end - begin)):.1f},{_y(value(sample) / top):.1f}"
            for sample in outcome.samples
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="1.5">'
            f"<title>{escape(outcome.scenario)}</title></polyline>"
        )
    return _svg(parts)


def _bars(outcomes: Sequence[Outcome], part: int) -> str:
    names = {key[part] for outcome in outcomes for key in outcome.waits}
    ordered = sorted(names, key=size_order) if part else sorted(names)
    found = {
        (name, number): summary(
            [wait for key, waits in outcome.waits.items() if key[part] == name for wait in waits]
        )
        for name in ordered
        for number, outcome in enumerate(outcomes)
    }
    top = 4.0 * _step(max((each["p95"] for each in found.values()), default=0.0), _TIMES)
    parts = list(_grid(top, in_time=True))
    width = 1.0 / max(len(ordered), 1)
    bar = width * 0.8 / max(len(outcomes), 1)
    for at, name in enumerate(ordered):
        parts.append(
            f'<text x="{_x((at + 0.5) * width):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(name)}</text>'
        )
        for number, outcome in enumerate(outcomes):
            each, left = found[name, number], at * width + width * 0.1 + number * bar
            label = (
                f"{outcome.scenario}, {name}: median {duration(each['median'])}, p95 {duration(each['p95'])}"
            )
            for figure, opacity in (("p95", 0.45), ("median", 1.0)):
                y = _y(each[figure] / top)
                parts.append(
                    f'<rect x="{_x(left):.1f}" y="{y:.1f}" width="{(_x(bar) - _x(0)) * 0.92:.1f}" '
                    f'height="{_y(0) - y:.1f}" fill="{_colour(number)}" fill-opacity="{opacity}">'
                    f"<title>{escape(label)}</title></rect>"
                )
    return _svg(parts)


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _grid(top: float, *, in_time: bool = False) -> list[str]:
    lines = []
    for quarter in range(5):
        y, value = _y(quarter / 4), top * quarter / 4
        text = duration(value) if in_time else f"{value:,.0f}"
        lines.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#8884"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    return lines


def _step(most: float, steps: Sequence[float]) -> float:
    """Return the distance of the lines of a grid: the first of these steps of which four are enough."""
    return next((step for step in steps if 4 * step >= most), most / 4)


def _days(begin: float, end: float) -> list[str]:
    days = (end - begin) / 86400
    return [
        f'<text x="{_x(sixth / 6):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{days * sixth / 6:.1f} d</text>'
        for sixth in range(7)
    ]


def _x(share: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(share, 1.0)
