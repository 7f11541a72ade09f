"""Make intervals honest: compare earlier estimates with what happened, and widen or narrow by that.

An estimate is a median wait and a spread in the logarithm. When a unit starts, its error in units of the spread is
kept. The interval of the next estimate takes the 5th and the 95th percentile of these errors (split conformal
prediction), so that 90% of the starts are inside, whatever the simulation got wrong, as long as the fleet behaves
tomorrow as it did lately. Units that wait longer than their interval count before they start.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

OFFSET_S = 60.0
"""Added to waits before their logarithm is taken: a minute more or less matters little."""
KEPT = 600
FEWEST = 40
"""Errors from which on they are used."""
_DEFAULT = (-0.75, 0.0, 0.75)
_LEAST_SPREAD = 0.35


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


class Calibration:
    """The errors of the last estimates, and the estimates of units that still wait."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=KEPT)
        self._open: dict[str, tuple[Raw, float]] = {}
        self._quantiles: tuple[float, float, float] | None = None

    def estimated(self, key: str, raw: Raw, now: float) -> None:
        """Remember the first estimate of a unit."""
        if key not in self._open and len(self._open) < 50_000:
            self._open[key] = (raw, now)

    def started(self, key: str, now: float) -> None:
        """Compare the estimate of a unit with its start."""
        if (known := self._open.pop(key, None)) is not None:
            raw, then = known
            self._errors.append(raw.error(max(now - then, 0.0)))
            self._quantiles = None

    def left(self, key: str) -> None:
        """Forget a unit that was deleted before it started."""
        self._open.pop(key, None)

    def quantiles(self, now: float) -> tuple[float, float, float]:
        """Return the errors at 5, 50 and 95%."""
        if self._quantiles is None:
            late = [raw.error(now - then) for raw, then in self._open.values() if now > then]
            if len(self._errors) < FEWEST:
                self._quantiles = _DEFAULT
            else:
                high = float(np.quantile(self._errors, 0.95))
                errors = [*self._errors, *(each for each in late if each > high)]
                low, median = np.quantile(errors, (0.05, 0.5))
                # Where many waits are equal, such as 0, less than 5% are below: the rest is above.
                below = float(np.mean(np.asarray(errors) < low))
                high = float(np.quantile(errors, min(below + 0.9, 1.0)))
                self._quantiles = float(low), float(median), high
        return self._quantiles
