"""The order between queues: by weighted share of decayed use.

`Shares` is what the simulation asks for. `DecayedShares` computes it in closed form: the use of a queue decays
with a half-life and grows with the GPUs that it has now.
"""

import math
from collections.abc import Mapping
from typing import Protocol

AHEAD_S = 4 * 3600.0
"""As in the scheduler: seconds of the present allocation that count as used, so that one cycle does not give all free GPUs to one queue."""


class Shares(Protocol):
    """Ranks queues by what they have used."""

    def rank(self, queue: str, now: float) -> float:
        """Return the rank of a queue; the lowest is served first."""

    def changed(self, queue: str, gpus: float, now: float) -> None:
        """Count GPUs that a queue gets, or loses if negative."""

    def used(self, queue: str, now: float) -> float:
        """Return the decayed GPU seconds of a queue."""


class NoShares:
    """Ranks all queues equally: only priority and age count."""

    def rank(self, queue: str, now: float) -> float:
        """Return 0."""
        return 0.0

    def changed(self, queue: str, gpus: float, now: float) -> None:
        """Do nothing."""

    def used(self, queue: str, now: float) -> float:
        """Return 0."""
        return 0.0


class DecayedShares:
    """Decayed GPU seconds of each queue divided by its weight."""

    def __init__(self, weights: Mapping[str, float], half_life_s: float) -> None:
        self._weights = weights
        self._decay = math.log(2) / half_life_s
        self._used: dict[str, float] = {}
        self._gpus: dict[str, float] = {}
        self._at: dict[str, float] = {}

    def rank(self, queue: str, now: float) -> float:
        """Return the weighted use of a queue, its present allocation included."""
        ahead = AHEAD_S * self._gpus.get(queue, 0.0)
        return (self.used(queue, now) + ahead) / self._weights.get(queue, 1.0)

    def used(self, queue: str, now: float) -> float:
        """Return the decayed GPU seconds of a queue."""
        self._advance(queue, now)
        return self._used[queue]

    def changed(self, queue: str, gpus: float, now: float) -> None:
        """Count GPUs that a queue gets, or loses if negative."""
        self._advance(queue, now)
        self._gpus[queue] = self._gpus.get(queue, 0.0) + gpus

    def _advance(self, queue: str, now: float) -> None:
        left = math.exp(-self._decay * (now - self._at.get(queue, now)))
        gained = self._gpus.get(queue, 0.0) * (1.0 - left) / self._decay
        self._used[queue] = self._used.get(queue, 0.0) * left + gained
        self._at[queue] = now
