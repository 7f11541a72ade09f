"""How long units run: sampled from run times that were seen, from specific to general.

Run times are kept by workload and size, by owner and size, by size, and for all. A sample is drawn from the most
specific level that has enough of them; the fewer a level has, the more often the next one is asked (shrinkage).
A unit that has already run for some time is compared only with runs that took longer. If none did, it is expected
to run as long again, which is the rule of the scheduler, too. A declared maximum is never exceeded.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Key = tuple[object, ...]

KEPT = 200
"""Run times that are kept for each key, the newest."""
MOST_KEYS = 20_000
SHRINKAGE = 4.0
"""Run times that a level needs to be asked as often as all more general ones."""
_JITTER = 0.05
_LEAST_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is known about a unit before it ends."""

    workload: str = ""
    owner: str = ""
    gpus: float = 1.0
    declared: float | None = None
    service: bool = False
    """Whether it runs until somebody deletes it."""

    def levels(self) -> tuple[Key, ...]:
        """Return the keys of its levels, the most specific first."""
        return (
            ("workload", self.workload, self.owner, self.gpus),
            ("owner", self.owner, self.gpus, self.declared),
            ("declared", self.declared, self.gpus),
            ("size", self.gpus),
            (),
        )


class RunTimes:
    """Run times by key; bounded in memory."""

    def __init__(self) -> None:
        self._seen: dict[Key, deque[float]] = {}
        self._sorted: dict[Key, Floats] = {}
        self.count = 0

    def observe(self, job: Job, seconds: float) -> None:
        """Record a run that ended."""
        if job.service:
            return
        self.count += 1
        for key in job.levels():
            seen = self._seen.pop(key, None)
            if seen is None:
                seen = deque(maxlen=KEPT if key else 10 * KEPT)
                if len(self._seen) >= MOST_KEYS:
                    oldest = next(iter(self._seen))
                    del self._seen[oldest]
                    self._sorted.pop(oldest, None)
            self._seen[key] = seen  # the keys used last are kept
            seen.append(max(seconds, 1.0))
            self._sorted.pop(key, None)

    def sample(
        self, jobs: Sequence[Job], elapsed: Sequence[float], samples: int, rng: np.random.Generator
    ) -> Floats:
        """Return the remaining run times of jobs that have run for `elapsed` seconds: a row for each job."""
        number = len(jobs)
        age = np.asarray(elapsed, np.float64)[:, None]
        total = np.full((number, samples), np.nan)
        keys = [job.levels() for job in jobs]
        for level in range(len(keys[0]) if keys else 0):
            by_key: dict[Key, list[int]] = {}
            for at in range(number):
                by_key.setdefault(keys[at][level], []).append(at)
            for key, rows in by_key.items():
                self._draw(key, np.array(rows), age, total, rng)
        missing = np.isnan(total)
        # None ran this long: as long again, with a Pareto tail.
        doubled = np.maximum(age, _LEAST_S) / np.clip(rng.random(total.shape), 0.01, 1.0)
        total[missing] = doubled[missing]
        total *= np.exp(_JITTER * rng.standard_normal(total.shape))
        most = np.array([np.inf if job.declared is None else job.declared for job in jobs])[:, None]
        total = np.minimum(total, most)
        total[[job.service for job in jobs]] = np.inf
        left: Floats = np.maximum(total - age, 1.0)
        return left

    def _draw(
        self, key: Key, rows: NDArray[np.intp], age: Floats, total: Floats, rng: np.random.Generator
    ) -> None:
        """Fill the samples that this level answers."""
        values = self._values(key)
        if not len(values):
            return
        first = np.searchsorted(values, age[rows], side="right")
        longer = len(values) - first
        shape = (len(rows), total.shape[1])
        answers = (rng.random(shape) < longer / (longer + SHRINKAGE)) & np.isnan(total[rows])
        at = np.minimum(first + (rng.random(shape) * longer).astype(np.intp), len(values) - 1)
        total[rows] = np.where(answers, values[at], total[rows])

    def _values(self, key: Key) -> Floats:
        found = self._sorted.get(key)
        if found is None:
            found = self._sorted[key] = np.sort(np.array(self._seen.get(key, ()), np.float64))
        return found
