"""What queues have used: the server's reading, and what this process has seen since then.

The reading comes from the integers that are billed. Before the first one, and while the server does not answer, the
scheduler counts its own ledger on top of what it knows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpufleet.queueing.shares.budget import Budget, Period, period_at, price_of
from gpufleet.queueing.shares.decay import Span, decay

QueueOf = Callable[[str], str | None]
"""Returns the queue of a namespace."""


@dataclass(frozen=True)
class PeriodUse:
    """What a namespace used in a period."""

    gpu_hours: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True)
class UseReading:
    """The accounted use of all namespaces until a time, which is the end of the last accounted hour."""

    until: float = float("-inf")
    read_at: float | None = None
    decayed: Mapping[str, float] = field(default_factory=dict)
    """Decayed GPU-seconds at `until`, by namespace."""
    periods: Mapping[Period, Mapping[str, PeriodUse]] = field(default_factory=dict)
    """The use from the start of the period at `until`, by namespace."""
    starts: Mapping[Period, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    """The price of a GPU-hour by model."""


NO_READING = UseReading()


def decayed_by_queue(
    reading: UseReading, spans: Iterable[Span], queue_of: QueueOf, now: float, half_life: float
) -> dict[str, float]:
    """Return the decayed GPU-seconds of each queue."""
    found: dict[str, float] = {}
    left = decay(now - reading.until, half_life) if reading.decayed else 0.0
    for namespace, seconds in reading.decayed.items():
        _add(found, queue_of(namespace), seconds * left)
    for span in spans:
        _add(found, queue_of(span.namespace), span.decayed(reading.until, now, half_life))
    return found


def used_of_budget(
    reading: UseReading,
    spans: Iterable[Span],
    namespaces: Callable[[str], bool],
    budget: Budget,
    now: datetime,
) -> float:
    """Return the GPU-hours or the cost since the budget's period began, of the namespaces that count.

    `spans` are those of these namespaces.
    """
    start = period_at(budget.period, now)[0].timestamp()
    used = 0.0
    if reading.starts.get(budget.period) == start:
        for namespace, use in reading.periods.get(budget.period, {}).items():
            if namespaces(namespace):
                used += use.cost if budget.in_money else use.gpu_hours
    for span in spans:
        hours = span.seconds(max(start, reading.until), now.timestamp()) / 3600
        used += hours * (price_of(reading.prices, span.model) if budget.in_money else 1.0)
    return used


def _add(found: dict[str, float], queue: str | None, seconds: float) -> None:
    if queue is not None:
        found[queue] = found.get(queue, 0.0) + seconds
