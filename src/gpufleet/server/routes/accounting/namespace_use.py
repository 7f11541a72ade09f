"""`/api/v1/gpu-aggregation/namespaces/use`: what namespaces have used, as the scheduler's shares and budgets count it."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.accounting.prices import price_of
from gpufleet.model.gpu_models import MODELS
from gpufleet.model.namespaces import Namespaces
from gpufleet.queueing.shares.budget import period_at
from gpufleet.runtime.settings.prices import Price
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.accounting.aggregation import PREFIX, CurrencyOf, cluster_name, no_currency
from gpufleet.server.routes.params import ClusterName
from gpufleet.store import Store

KUBERNETES = "k8s"
"""The source of the workloads that the scheduler places."""


class UseParams(msgspec.Struct):
    """The cluster and the half-life of the decay."""

    cluster: ClusterName = ""
    half_life: Annotated[
        float, Meta(ge=60, le=366 * 86400, description="Seconds after which use counts half.")
    ] = 7 * 86400.0


class PeriodUse(msgspec.Struct):
    """GPU-hours and cost since a period began."""

    gpu_hours: float
    cost: float


class NamespaceUse(msgspec.Struct):
    """The use of one namespace."""

    namespace: str
    decayed_gpu_hours: float
    """GPU-hours that count half after every half-life, at `until`."""
    day: PeriodUse
    week: PeriodUse
    month: PeriodUse


class Use(msgspec.Struct):
    """The use of all namespaces in finished hours."""

    cluster_name: str
    until: datetime | None
    """The end of the last accounted hour; null if there is none."""
    day_start: datetime
    week_start: datetime
    month_start: datetime
    namespaces: list[NamespaceUse]
    prices: dict[str, float]
    """The price of a GPU-hour now, by model; an empty name stands for all other models."""
    currency: str = ""
    """The unit of all costs; empty if none is configured."""


def namespace_use_routes(
    store: Store,
    default_cluster: str,
    prices: Mapping[str, Sequence[Price]],
    now: Callable[[], float] = time.time,
    currency_of: CurrencyOf = no_currency,
) -> list[Route]:
    """Return the route; `prices` are those of each cluster."""

    @get(f"{PREFIX}/namespaces/use", scope="filtered", example=_USE)
    async def namespace_use(query: UseParams, namespaces: Namespaces) -> Use:
        """Decayed use of each namespace, and its use and cost since the day, the week and the month began."""
        cluster = await cluster_name(store, default_cluster, query.cluster)
        moment = datetime.fromtimestamp(now(), UTC)
        last = await store.namespace_use.last_hour(cluster, int(now() // 3600))
        # Periods of the last accounted hour: just after midnight, that is the day before.
        at = moment if last is None else datetime.fromtimestamp(last * 3600, UTC)
        starts = [period_at(period, at)[0] for period in ("Day", "Week", "Month")]
        day, week, month = starts
        hours = dict(
            zip(("day", "week", "month"), (int(start.timestamp()) // 3600 for start in starts), strict=True)
        )
        found = (
            await store.namespace_use.sums(cluster, last + 1, query.half_life, hours, namespaces)
            if last is not None
            else []
        )
        return Use(
            cluster,
            None if last is None else datetime.fromtimestamp((last + 1) * 3600, UTC),
            day,
            week,
            month,
            [
                NamespaceUse(
                    each.namespace,
                    each.decayed,
                    **{name: PeriodUse(*amounts) for name, amounts in each.periods.items()},
                )
                for each in found
            ],
            _prices(prices.get(cluster, ()), int(now())),
            currency_of(cluster),
        )

    return [namespace_use]


def _prices(prices: Sequence[Price], at: int) -> dict[str, float]:
    """Return the price of each known model, as far as it differs from that of all others."""
    hour = at // 3600 * 3600
    other = price_of(prices, "", KUBERNETES, hour)
    found = {model.name: price_of(prices, model.name, KUBERNETES, hour) for model in MODELS}
    return {"": other} | {name: price for name, price in found.items() if price != other}


_USE = Use(
    "prod",
    datetime(2026, 10, 5, 13, tzinfo=UTC),
    datetime(2026, 10, 5, tzinfo=UTC),
    datetime(2026, 10, 5, tzinfo=UTC),
    datetime(2026, 10, 1, tzinfo=UTC),
    [
        NamespaceUse(
            "ml-training",
            512.25,
            PeriodUse(104.0, 364.0),
            PeriodUse(104.0, 364.0),
            PeriodUse(840.5, 2941.75),
        )
    ],
    {"": 3.5},
    "USD",
)
