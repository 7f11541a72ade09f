"""`/api/forecast`: the demand of the next days by team or model, and when capacity or a budget runs out."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.estimates.forecast import Point, exceeds, forecast, hourly, spent
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams
from gpufleet.store.store import Store

HISTORY_DAYS = 35
MAX_PERIODS = 20_000
"""Periods that are read; if there are more, the forecast rests on fewer days."""
_MOST_GROUPS = 50


class ForecastParams(ClusterParams, rename="camel"):
    """What to forecast."""

    days: Annotated[int, Meta(ge=1, le=28, description="Days ahead.")] = 7
    by: Annotated[
        Literal["all", "namespace", "model"],
        Meta(description="One forecast, or one for each namespace or model."),
    ] = "all"
    budget: Annotated[
        float, Meta(ge=0, description="GPU hours from now on; the answer says when they are used up.")
    ] = 0.0


class ForecastPoint(msgspec.Struct):
    """The GPUs that are wanted in an hour, with a 90% interval."""

    time: datetime
    expected: float
    low: float
    high: float


class GroupForecast(msgspec.Struct, rename="camel"):
    """The forecast of one group. It has no points if less than three days are known."""

    name: str
    points: list[ForecastPoint]
    capacity: int | None
    """GPUs that there are now, of the model or in all; null for a namespace, and for callers who are limited to some."""
    capacity_exceeded: datetime | None
    """When the expected demand exceeds the capacity."""
    capacity_exceeded_earliest: datetime | None
    """When the high end of the interval does."""
    budget_spent: datetime | None
    budget_spent_earliest: datetime | None


class Forecast(msgspec.Struct):
    """Forecasts, those with the most use first."""

    data: list[GroupForecast]


def forecast_routes(store: Store, default: str, clock: Callable[[], float] = time.time) -> list[Route]:
    """Return the route."""

    @get("/api/forecast", scope="filtered", example=_EXAMPLE)
    async def get_forecast(query: ForecastParams, namespaces: Namespaces) -> Forecast:
        """Demand for GPUs in the next days, from the recorded allocations, with 90% intervals.

        Demand counts from the creation of a pod to its end, so also while it waits.
        """
        cluster, now = query.cluster or default, clock()
        hour = int(now // 3600)
        first = hour - 24 * HISTORY_DAYS
        try:
            periods = await store.allocation_periods.latest(cluster, first * 3600.0, now, MAX_PERIODS)
            accounted = await store.usage_series.of_cluster(cluster, first, hour, "hour")
            capacity = await store.capacity_periods.overlapping(cluster, now - 1, now)
        except NotFound:
            return Forecast([])
        # Of the time before, only workloads are known that were still there: the demand would seem to grow.
        first = max(first, min(accounted, default=hour))
        if len(periods) == MAX_PERIODS:  # all that ended later than the last of them are known
            first = max(first, int(periods[-1].end // 3600) + 1)
        if namespaces is not None:
            capacity = []  # the demand of some namespaces says nothing about the capacity of all
        visible = [period for period in periods if is_visible(namespaces, period.namespace)]
        return await asyncio.to_thread(_forecast, visible, capacity, query, first, hour, now)

    return [get_forecast]


def _forecast(
    periods: Sequence[AllocationPeriod],
    capacity: Sequence[CapacityPeriod],
    query: ForecastParams,
    first: int,
    hour: int,
    now: float,
) -> Forecast:
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for period in periods:
        start = period.created if 0 < period.created < period.start else period.start
        name = {"all": "", "namespace": period.namespace, "model": period.model}[query.by]
        groups.setdefault(name, []).append((start, period.end or now, period.gpus * period.share))
    found = []
    for name, spans in groups.items():
        history = hourly(spans, first, hour - first)
        points = forecast(history, first, 24 * query.days)
        found.append((float(history.sum()), _group(name, points, capacity, query)))
    found.sort(key=lambda pair: (-pair[0], pair[1].name))
    return Forecast([group for _, group in found[:_MOST_GROUPS]])


def _group(
    name: str, points: Sequence[Point], capacity: Sequence[CapacityPeriod], query: ForecastParams
) -> GroupForecast:
    gpus = None
    if query.by != "namespace" and capacity:
        gpus = sum(period.gpus for period in capacity if query.by == "all" or period.model == name)
    over = exceeds(points, gpus) if gpus else (None, None)
    used = spent(points, query.budget) if query.budget else (None, None)
    return GroupForecast(
        name,
        [
            ForecastPoint(
                _time(point.hour), round(point.expected, 2), round(point.low, 2), round(point.high, 2)
            )
            for point in points
        ],
        gpus,
        *(_time(each) if each is not None else None for each in (*over, *used)),
    )


def _time(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC)


_EXAMPLE = Forecast(
    [
        GroupForecast(
            "H100",
            [ForecastPoint(datetime(2026, 1, 1, 12, tzinfo=UTC), 812.5, 760.0, 871.2)],
            1024,
            None,
            datetime(2026, 1, 4, 15, tzinfo=UTC),
            None,
            None,
        )
    ]
)
