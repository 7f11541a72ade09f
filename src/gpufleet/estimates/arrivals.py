"""Units that arrived lately: what they are like, and how many to expect in the next hours.

Expected is what is usual for the hour of the day, times how the last hours compare with that.
"""

from collections import Counter, deque
from collections.abc import Sequence

from gpufleet.estimates.fleet_state import WaitingUnit

HOUR = 3600.0
DAY_HOURS = 24
KEPT_HOURS = 14 * DAY_HOURS
KEPT = 5_000
DRAWN = 400
"""The latest arrivals, from which later ones are drawn."""
_LEVEL_HOURS = 6
_LEVEL_SHRINKAGE = 10.0
"""Arrivals that the last hours must have for their level to count half."""


class Arrivals:
    """Arrivals by hour, and the latest of them."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, WaitingUnit]] = {}
        self._recent: deque[float] = deque(maxlen=20_000)
        self._hours: Counter[int] = Counter()
        self._first: float | None = None

    def begin(self, since: float) -> None:
        """Note that all arrivals from this time on are observed."""
        self._first = since if self._first is None else min(self._first, since)

    def observe(self, unit: WaitingUnit, at: float) -> None:
        """Record an arrival; the same key counts once."""
        if unit.key in self._latest:
            return
        if self._first is None:
            self._first = at
        self._latest[unit.key] = at, unit
        if len(self._latest) > KEPT:
            del self._latest[next(iter(self._latest))]
        self._recent.append(at)
        if at < self._first:
            return
        self._hours[int(at // HOUR)] += 1
        if len(self._hours) > KEPT_HOURS:
            oldest = min(self._hours)
            del self._hours[oldest]
            self._first = max(self._first, (oldest + 1) * HOUR)

    def latest(self) -> list[WaitingUnit]:
        """Return the latest units."""
        ordered = sorted(self._latest.values(), key=lambda each: each[0])
        return [unit for _, unit in ordered[-DRAWN:]]

    def rates(self, now: float) -> Sequence[float]:
        """Return the expected arrivals per second of each of the next 24 hours."""
        if self._first is None or now - self._first < HOUR / 6:
            return ()
        usual = self._usual(now)
        this = int(now // HOUR)
        since = max(now - _LEVEL_HOURS * HOUR, self._first)
        expected = sum(
            usual[hour % DAY_HOURS] * (min((hour + 1) * HOUR, now) - max(hour * HOUR, since)) / HOUR
            for hour in range(int(since // HOUR), this + 1)
        )
        seen = sum(since < at <= now for at in self._recent)
        level = (seen + _LEVEL_SHRINKAGE) / (expected + _LEVEL_SHRINKAGE)
        return [usual[(this + ahead) % DAY_HOURS] * level / HOUR for ahead in range(DAY_HOURS)]

    def _usual(self, now: float) -> list[float]:
        """Return the arrivals of each hour of the day; the fewer days were seen, the nearer to the mean."""
        assert self._first is not None
        observed, counted = [0.0] * DAY_HOURS, [0.0] * DAY_HOURS
        for hour in range(int(self._first // HOUR), int(now // HOUR) + 1):
            seconds = min((hour + 1) * HOUR, now) - max(hour * HOUR, self._first)
            observed[hour % DAY_HOURS] += max(seconds, 0.0) / HOUR
            counted[hour % DAY_HOURS] += self._hours[hour]
        mean = sum(counted) / max(sum(observed), 1e-9)
        return [(counted[hour] + mean) / (observed[hour] + 1.0) for hour in range(DAY_HOURS)]
