"""Draw a report over time as SVG without styles or scripts: bars stacked by group, with axes and a legend."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from html import escape

from msgspec import UNSET

from gpufleet.accounting.report import Report
from gpufleet.accounting.report_series import ReportLine, ReportSeries

CHART_LINES = 7
"""Groups with a colour of their own; the others are one line."""
_WIDTH, _HEIGHT = 720, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 4, 8, 22
_MOST_TICKS = 10
_TICK_DAYS = (1, 2, 7, 14, 28, 56)
# The dashboard's colours of teams, as it darkens them on a light page.
_PALETTE = (
    "#6692be",
    "#cd7558",
    "#cdbe75",
    "#3aa184",
    "#db92a1",
    "#84bedb",
    "#929200",
    "#a88ec5",
    "#a1af2c",
    "#c68b34",
)
_NEXT = 3
"""Coprime to the number of colours, so that every colour is tried."""
_OTHERS = "#9aa3b0"


def chart_colours(report: Report) -> dict[tuple[str, str, str, str], str]:
    """Return the colour of each line of the report.

    As in the dashboard, it comes from the name, so that a team has the same colour in every report, unless another
    group with the same colour is in it.
    """
    if report.series is UNSET:
        return {}
    lines = [line for line in report.series.lines if line.row == "group"]
    names = _names(lines)
    places: dict[str, int] = {}
    for name in sorted(set(names.values())):
        first = _hash(name) % len(_PALETTE)
        tried = [(first + step * _NEXT) % len(_PALETTE) for step in range(len(_PALETTE))]
        places[name] = next((place for place in tried if place not in places.values()), first)
    return {key: _PALETTE[places[name]] for key, name in names.items()}


def _names(lines: Sequence[ReportLine]) -> dict[tuple[str, str, str, str], str]:
    """Return the name of each line by which it gets its colour; runs of one workload differ in their uid."""
    named = Counter(line.name for line in lines)
    return {
        key_of(line): line.uid if line.uid and named[line.name] > 1 else line.name or "none" for line in lines
    }


def key_of(line: ReportLine) -> tuple[str, str, str, str]:
    """Identify a group: runs of one workload differ in their uid."""
    return (line.namespace, line.kind, line.name, line.uid)


def _hash(name: str) -> int:
    """Return the number by which the dashboard chooses the colour of a name (FNV-1a)."""
    found = 2166136261
    for letter in name:
        found = ((found ^ ord(letter)) * 16777619) & 0xFFFFFFFF
    return found ^ (found >> 15)


def swatch(colour: str) -> str:
    """Return a small square; it is printed also by browsers that print no backgrounds."""
    return f'<svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" fill="{colour}"/></svg>'


def draw_charts(report: Report, zone: tzinfo = UTC) -> str:
    """Return the charts of GPU-hours, and of cost where there are prices, with one legend."""
    series = report.series
    if series is UNSET or not series.times:
        return ""
    shown = [(f"GPU-hours per {series.step}", [line.gpu_hours for line in series.lines])]
    if report.totals.cost:
        unit = f" ({report.currency})" if report.currency else ""
        shown.append((f"Cost per {series.step}{unit}", [line.cost for line in series.lines]))
    charts = [_figure(report, series, title, columns, zone) for title, columns in shown]
    colours = chart_colours(report)
    named = Counter((line.namespace, line.name) for line in series.lines)
    legend = "".join(
        f"<li>{swatch(colours.get(key_of(line), _OTHERS))} {escape(_name(line, named[line.namespace, line.name] > 1))}</li>"
        for line in series.lines
    )
    return f'{"".join(charts)}\n<ul class="legend">{legend}</ul>'


def _name(line: ReportLine, repeated: bool) -> str:
    name = f"{line.namespace}/{line.name}" if line.kind else line.name or "none"
    return f"{name} {line.uid}" if repeated and line.uid else name


def _figure(
    report: Report, series: ReportSeries, title: str, columns: Sequence[Sequence[float]], zone: tzinfo
) -> str:
    colours = chart_colours(report)
    top = _ceiling(max(sum(column[at] for column in columns) for at in range(len(series.times))))
    bars = "".join(
        f'<path fill="{colours.get(key_of(line), _OTHERS)}" d="{_bars(report, series, columns, place, top)}"/>'
        for place, line in enumerate(series.lines)
    )
    axes = "".join(_value_tick(top * part / 4, top) for part in range(5)) + "".join(
        _time_tick(at, label, report) for at, label in _time_ticks(report, zone)
    )
    return (
        f"\n<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)} by {escape(report.group_by)}">'
        f"{axes}{bars}</svg></figure>"
    )


def _bars(
    report: Report, series: ReportSeries, columns: Sequence[Sequence[float]], place: int, top: float
) -> str:
    """Return the outline of the bars of one line, on top of the lines before it."""
    step = timedelta(hours=1 if series.step == "hour" else 24)
    parts = []
    for at, time in enumerate(series.times):
        value = columns[place][at]
        if value <= 0:
            continue
        below = sum(max(column[at], 0.0) for column in columns[:place])
        left, right = _x(time, report), _x(min(time + step, report.end_time), report)
        gap = 0.12 * (right - left) if series.step == "day" else 0.0
        low, high = _y(below, top), _y(below + value, top)
        parts.append(f"M{left + gap:.1f} {low:.1f}V{high:.1f}H{right - gap:.1f}V{low:.1f}Z")
    return "".join(parts)


def _x(time: datetime, report: Report) -> float:
    share = (time - report.start_time) / (report.end_time - report.start_time)
    return _LEFT + max(share, 0.0) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)


def _ceiling(value: float) -> float:
    """Return a round number of at least `value`, a quarter of which is round too."""
    if value <= 0:
        return 4.0
    power = 0.01
    while True:
        for digits in (1, 2, 3, 4, 6, 8):
            if digits * power >= value:
                return digits * power
        power *= 10


def _value_tick(value: float, top: float) -> str:
    y = _y(value, top)
    return (
        f'<path stroke="#ddd" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{value:,.10g}</text>'
    )


def _time_tick(time: datetime, label: str, report: Report) -> str:
    x = _x(time, report)
    return (
        f'<path stroke="#999" d="M{x:.1f} {_HEIGHT - _BOTTOM}v4"/>'
        f'<text x="{x + 3:.1f}" y="{_HEIGHT - 7}">{label}</text>'
    )


def _time_ticks(report: Report, zone: tzinfo) -> list[tuple[datetime, str]]:
    """Return midnights in the time zone, few enough to be legible; hours for a single day."""
    start, end = report.start_time.astimezone(zone), report.end_time
    days = max(1, round((report.end_time - report.start_time) / timedelta(days=1)))
    if days == 1:
        times = [start + timedelta(hours=hour) for hour in range(0, 24, 3)]
        return [(time, f"{time:%H:%M}") for time in times]
    step = next((step for step in _TICK_DAYS if days <= step * _MOST_TICKS), _TICK_DAYS[-1])
    midnights = [start + timedelta(days=day) for day in range(0, days, step)]
    return [(time, f"{time.day} {time:%b}") for time in midnights if time < end]
