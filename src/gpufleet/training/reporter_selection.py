"""Reduce the points of a job to one series per metric, although many processes report each metric.

Every rank may report its loss at slightly different times, and the agent also scrapes the log. Drawn
as one series, these points would form a zigzag. So one reporter counts at a time. Pushed points take
precedence over scraped ones, points of the whole job over points of a rank, and lower ranks over
higher ones. A reporter of lower precedence fills in where all others have a gap: before they start,
after they end, or when they pause for more than `MAX_GAP` seconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from statistics import median

from gpufleet.model.training_point import TrainingPoint

MAX_GAP = 300.0
"""Seconds without a point after which another reporter takes over."""

_MIN_MARGIN = 60.0
"""Minimum seconds around a point that belong to its reporter: points arrive in batches."""

_Reporter = tuple[bool, int, str]
"""Whether the points were scraped, the rank (-1 for the whole job) and the source; sorted by precedence."""


def select_reporters(points: Sequence[TrainingPoint]) -> list[TrainingPoint]:
    """Return the points of one reporter at a time for each metric, in the order of `points`."""
    reporters: dict[str, dict[_Reporter, list[float]]] = {}
    for point in points:
        reporters.setdefault(point.metric, {}).setdefault(_reporter(point), []).append(point.time)
    selected = {metric: _select(times) for metric, times in reporters.items() if len(times) > 1}
    return [
        point
        for point in points
        if point.metric not in selected or point.time in selected[point.metric].get(_reporter(point), ())
    ]


def _reporter(point: TrainingPoint) -> _Reporter:
    return bool(point.source), -1 if point.rank is None else point.rank, point.source


def _select(times_by_reporter: dict[_Reporter, list[float]]) -> dict[_Reporter, frozenset[float]]:
    """Return the times at which the points of each reporter are used."""
    selected: dict[_Reporter, frozenset[float]] = {}
    covered: list[tuple[float, float]] = []
    for reporter in sorted(times_by_reporter):
        times = sorted(times_by_reporter[reporter])
        free = [time for time in times if not _contains(covered, time)]
        if free:
            selected[reporter] = frozenset(free)
            covered = _merge([*covered, *_intervals(free)])
    return selected


def _intervals(times: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Yield the intervals that a reporter covers with points at `times`, with a margin for the next point."""
    gaps = [after - before for before, after in pairwise(times)]
    margin = max(_MIN_MARGIN, min(MAX_GAP, 1.5 * median(gaps))) if gaps else _MIN_MARGIN
    start = times[0]
    for before, after in pairwise(times):
        if after - before > MAX_GAP:
            yield start - margin, before + margin
            start = after
    yield start - margin, times[-1] + margin


def _merge(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the intervals sorted, with overlapping ones merged."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _contains(intervals: Sequence[tuple[float, float]], time: float) -> bool:
    at = bisect_right(intervals, (time, inf))
    return at > 0 and time <= intervals[at - 1][1]
