"""Forecast hourly demand from its history, with intervals that come from earlier forecasts.

The forecast is the level of the last week plus what is usual for the hour of the week. The same forecast is made for
moments of the past, and the interval is as wide as nine of ten of its errors, by how far ahead it looked. So a demand
that is hard to foresee has a wide interval. It extends as far to both sides: if all earlier forecasts were too low,
that may be the end of a growth, and it is not known that the next one is too low, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WEEK = 168
DAY = 24
LEAST_HOURS = 3 * DAY
"""Hours of history without which there is no forecast."""
_ORIGINS = 12
"""Hours between the moments of the past for which forecasts are made."""
_SHRINKAGE = 1.0
"""Weeks after which the usual value of an hour of the week counts as much as that of the hour of the day."""


@dataclass(frozen=True, slots=True)
class Point:
    """The demand of one hour, with a 90% interval."""

    hour: int
    expected: float
    low: float
    high: float


def hourly(spans: Iterable[tuple[float, float, float]], first_hour: int, hours: int) -> Floats:
    """Return the mean of each hour, from spans of start, end (in seconds) and amount."""
    found = np.zeros(hours + 1)
    rate = np.zeros(hours + 1)
    begin = first_hour * 3600.0
    for start, end, amount in spans:
        a, b = (max(start - begin, 0.0)) / 3600.0, min((end - begin) / 3600.0, float(hours))
        if b <= a:
            continue
        i, j = int(a), min(int(b), hours)
        if i == j:
            found[i] += (b - a) * amount
            continue
        found[i] += (i + 1 - a) * amount
        found[j] += (b - j) * amount
        rate[i + 1] += amount
        rate[j] -= amount
    return found[:hours] + np.cumsum(rate)[:hours]


def forecast(history: Sequence[float] | Floats, first_hour: int, ahead: int) -> list[Point]:
    """Return the next `ahead` hours; `history` begins at `first_hour` (hours since 1970)."""
    values = np.asarray(history, np.float64)
    if len(values) < LEAST_HOURS:
        return []
    expected = _project(values, first_hour, ahead)
    errors = _errors(values, first_hour, ahead)
    start = first_hour + len(values)
    return [
        Point(
            start + at,
            float(expected[at]),
            float(max(expected[at] - errors[at // DAY], 0.0)),
            float(expected[at] + errors[at // DAY]),
        )
        for at in range(ahead)
    ]


def exceeds(points: Sequence[Point], limit: float) -> tuple[int | None, int | None]:
    """Return the first hour at which the expected demand, and that at which its high end, exceeds a limit."""
    expected = next((point.hour for point in points if point.expected > limit), None)
    possible = next((point.hour for point in points if point.high > limit), None)
    return expected, possible


def spent(points: Sequence[Point], budget: float) -> tuple[int | None, int | None]:
    """Return the first hours at which the expected use, and the high end, have used up a budget of GPU hours."""
    expected = np.cumsum([point.expected for point in points])
    high = np.cumsum([point.high for point in points])
    return _first(points, expected > budget), _first(points, high > budget)


def _first(points: Sequence[Point], over: NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(over)
    return points[int(found[0])].hour if len(found) else None


def _project(values: Floats, first_hour: int, ahead: int) -> Floats:
    recent = values[-WEEK:]
    hours = first_hour + np.arange(len(values))
    residual = values - values.mean()
    of_day = np.array([residual[hours % DAY == hour].mean() for hour in range(DAY)])
    usual = np.empty(WEEK)
    for hour in range(WEEK):
        same = residual[hours % WEEK == hour]
        usual[hour] = (same.sum() + _SHRINKAGE * of_day[hour % DAY]) / (len(same) + _SHRINKAGE)
    last = hours[-len(recent) :] % WEEK
    level = float((recent - usual[last]).mean())
    future = (first_hour + len(values) + np.arange(ahead)) % WEEK
    projected: Floats = np.maximum(level + usual[future], 0.0)
    return projected


def _errors(values: Floats, first_hour: int, ahead: int) -> Floats:
    """Return how far nine of ten values are from the forecast, for each day ahead."""
    days = -(-ahead // DAY)
    errors: list[list[float]] = [[] for _ in range(days)]
    for origin in range(LEAST_HOURS, len(values) - DAY + 1, _ORIGINS):
        span = min(ahead, len(values) - origin)
        made = _project(values[:origin], first_hour, span)
        difference = np.abs(values[origin : origin + span] - made)
        for day in range(span // DAY):
            errors[day].extend(difference[day * DAY : (day + 1) * DAY].tolist())
    found = np.empty(days)
    known = 2 * float(values.std())
    for day, seen in enumerate(errors):
        if len(seen) >= 2 * DAY:
            # Errors of one day are alike, so days count. Of few days, the largest error counts.
            share = min(0.9 * (1 + DAY / len(seen)), 1.0)
            # No day is known better than one before it.
            known = max(float(np.quantile(seen, share)), known if day else 0.0)
        found[day] = known
    return found
