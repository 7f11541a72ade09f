"""Make intervals honest: compare earlier estimates with what happened, and widen or narrow by that.

An estimate is a median wait and a spread in the logarithm. When a unit starts, its error in units of the spread is
kept. The interval of the next estimate takes the 5th and the 95th percentile of these errors (split conformal
prediction). Two things would make it too narrow. Units with long waits are still waiting when others, estimated at the
same time, have started: their errors so far count as lower bounds (Kaplan-Meier estimator). And a queue that
grows makes other errors than before: when more starts than 10% are outside of their intervals, later intervals take
percentiles further out, and the other way round (adaptive conformal inference, Gibbs and Candès 2021).

`encode` and `restore` carry the estimates over a restart.
"""

import math
from dataclasses import dataclass

import msgspec
import numpy as np

OFFSET_S = 60.0
"""Added to waits before their logarithm is taken: a minute more or less matters little."""
KEPT = 600
"""Estimates that are compared, the latest."""
FEWEST = 40
"""Starts from which on they are used."""
OUTSIDE = 0.1
"""The part of the starts that may be outside of the interval."""
STEP = 0.02
"""How far one start moves the percentiles of the interval."""
_MOST_OUTSIDE, _LEAST_OUTSIDE = 0.3, 0.004
_DEFAULT = (-0.75, 0.0, 0.75)
_LEAST_SPREAD = 0.35
_TIE = 1e-6

Errors = tuple[float, float, float]
"""At the low end of the interval, in the middle, and at the high end."""


@dataclass(frozen=True, slots=True)
class Raw:
    """The median wait of the sampled simulations and their spread in the logarithm."""

    median: float
    spread: float

    @classmethod
    def of(cls, waits: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> "Raw":
        """Return median and spread of sampled waits."""
        low, median, high = np.quantile(waits, (0.1, 0.5, 0.9), method="inverted_cdf")
        spread = math.log(high + OFFSET_S) - math.log(low + OFFSET_S)
        return cls(float(median), max(spread, _LEAST_SPREAD))

    def error(self, wait: float) -> float:
        """Return how far a wait is from the median, in spreads."""
        return (math.log(wait + OFFSET_S) - math.log(self.median + OFFSET_S)) / self.spread

    def at(self, error: float) -> float:
        """Return the wait with this error."""
        return max(
            math.exp(min(math.log(self.median + OFFSET_S) + error * self.spread, 40.0)) - OFFSET_S, 0.0
        )


@dataclass(slots=True)
class _Made:
    """An estimate that was made at `then` with these ends; `error` is known once the unit has started."""

    raw: Raw
    then: float
    low: float
    high: float
    error: float | None = None
    counted: bool = False
    """Whether it has moved the percentiles."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept over a restart; the oldest estimates first."""

    made: list[tuple[str, _Made]]
    outside: float


class Calibration:
    """The latest estimates, of units that have started and of those that still wait."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self._known = 0
        self._outside = OUTSIDE
        self._quantiles: tuple[float, Errors] | None = None

    def encode(self) -> bytes:
        """Return all estimates as JSON."""
        return msgspec.json.encode(_Kept(list(self._made.items()), self._outside))

    def restore(self, text: bytes) -> None:
        """Go on with encoded estimates; raise msgspec.DecodeError if they are not valid."""
        kept = msgspec.json.decode(text, type=_Kept)
        self._made, self._outside = dict(kept.made), kept.outside
        self._known = sum(made.error is not None for made in self._made.values())
        self._quantiles = None

    def waiting(self) -> list[str]:
        """Return the units that have not started, as far as is known."""
        return [key for key, made in self._made.items() if made.error is None]

    def estimated(self, key: str, raw: Raw, now: float) -> None:
        """Remember the first estimate of a unit."""
        if key in self._made:
            return
        low, _, high = self.quantiles(now)
        self._made[key] = _Made(raw, now, raw.at(low), raw.at(high))
        if len(self._made) > KEPT:
            oldest = self._made.pop(next(iter(self._made)))
            self._known -= oldest.error is not None

    def started(self, key: str, now: float) -> None:
        """Compare the estimate of a unit with its start."""
        made = self._made.get(key)
        if made is None or made.error is not None:
            return
        wait = max(now - made.then, 0.0)
        made.error = made.raw.error(wait)
        self._known += 1
        self._count(made, made.low - 1.0 <= wait <= made.high + 1.0)
        self._quantiles = None

    def left(self, key: str) -> None:
        """Forget a unit that was deleted before it started."""
        made = self._made.get(key)
        if made is not None and made.error is None:
            del self._made[key]

    def quantiles(self, now: float) -> Errors:
        """Return the errors at the ends of the interval and in its middle."""
        if self._quantiles is None or self._quantiles[0] != now:
            for made in self._made.values():
                if made.error is None and now - made.then > made.high + 1.0:
                    self._count(made, inside=False)  # it starts too late, whenever that is
            self._quantiles = now, self._compute(now)
        return self._quantiles[1]

    def _count(self, made: _Made, inside: bool) -> None:
        if not made.counted and self._known >= FEWEST:
            moved = self._outside + STEP * (OUTSIDE - (not inside))
            self._outside = min(max(moved, _LEAST_OUTSIDE), _MOST_OUTSIDE)
        made.counted = True

    def _compute(self, now: float) -> Errors:
        if self._known < FEWEST:
            return _DEFAULT
        errors = np.array(
            [
                made.error if made.error is not None else made.raw.error(max(now - made.then, 0.0))
                for made in self._made.values()
            ]
        )
        started = np.array([made.error is not None for made in self._made.values()])
        values, part = _distribution(errors, started)

        def at(level: float) -> float:
            return float(values[min(int(np.searchsorted(part, level - _TIE)), len(values) - 1)])

        low = at(self._outside / 2)
        # Where many waits are equal, such as 0, less than 5% are below: the rest is above.
        first = int(np.searchsorted(values, low - _TIE))
        below = float(part[first - 1]) if first else 0.0
        return low, at(0.5), at(min(below + 1.0 - self._outside, 1.0))


def _distribution(
    errors: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    started: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]",
) -> "tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]":
    """Return errors in order and the part of all units at or below each; units that wait have at least theirs.

    This is the Kaplan-Meier estimator.
    """
    order = np.lexsort((~started, errors))
    errors, started = errors[order], started[order]
    at_risk = np.arange(len(errors), 0, -1)
    part = 1.0 - np.cumprod(1.0 - started / at_risk)
    return errors, np.asarray(part, np.float64)
