"""Budgets: the period that is counted, how much is used, and when running units must end.

A hard budget ends units early enough that they are gone when it is used up, even if they take all of their
grace period: `must_end` adds what they will still use until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Literal

Period = Literal["Day", "Week", "Month"]

WARN_AT = 0.8
"""The part of a budget at which its owners are warned."""

LEAST_RUN_S = 20.0
"""Seconds for which a hard budget must last, besides the grace period, for a unit to start."""


class BudgetState(IntEnum):
    """How much of a budget is used."""

    AVAILABLE = 0
    NEARLY_USED = 1
    """80 percent or more."""
    USED_UP = 2


@dataclass(frozen=True)
class Budget:
    """GPU-hours, or a cost if `in_money`, per period."""

    total: float
    period: Period = "Month"
    hard: bool = False
    in_money: bool = False

    def state(self, used: float) -> BudgetState:
        """Return how much is used."""
        if used >= self.total:
            return BudgetState.USED_UP
        return BudgetState.NEARLY_USED if used >= WARN_AT * self.total else BudgetState.AVAILABLE

    def must_end(self, used: float, rate: float, seconds: float) -> bool:
        """Return whether running units must end now, if they use `rate` per hour for up to `seconds` more."""
        return self.hard and used + rate * seconds / 3600 >= self.total


@dataclass(frozen=True)
class HardBudget:
    """A hard budget as of its last check, for units that want to start."""

    budget: Budget
    used: float
    checked_at: float
    grace: float
    """How long the running units may take to terminate."""
    longest_grace: float
    """How long any unit may take."""
    price: float = 1.0
    """What a GPU-hour costs at most; 1 if the budget is in GPU-hours."""

    def allows(self, gpus: float, grace: float, now: float) -> bool:
        """Return whether the budget lasts long enough for so many GPUs: of running units, and of a new one with `grace`."""
        longest = max(self.grace, min(grace, self.longest_grace))
        seconds = max(now - self.checked_at, 0.0) + LEAST_RUN_S + longest
        return self.used + gpus * self.price * seconds / 3600 <= self.budget.total


def period_at(period: Period, now: datetime) -> tuple[datetime, datetime]:
    """Return when the period of this time began, and when the next one begins, in UTC."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "Day":
        return day, day + timedelta(days=1)
    if period == "Week":
        start = day - timedelta(days=day.weekday())
        return start, start + timedelta(days=7)
    start = day.replace(day=1)
    return start, (start + timedelta(days=31)).replace(day=1)


def price_of(prices: Mapping[str, float], model: str) -> float:
    """Return the price of a GPU-hour of a model; the one under an empty name applies to unlisted models."""
    return prices.get(model, prices.get("", 0.0))
