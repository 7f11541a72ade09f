"""`/api/v1/gpu-aggregation/focus`: cost and usage of a month as a FOCUS file."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse

from gpufleet.accounting.report import ReportPeriod, period_of
from gpufleet.focus import csv_file
from gpufleet.focus.columns import VERSION
from gpufleet.focus.rows import ChargeDay, check_currency, focus_rows
from gpufleet.model.namespaces import Namespaces
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.accounting.aggregation import PREFIX, CurrencyOf, cluster_name, no_currency
from gpufleet.server.routes.params import ClusterName
from gpufleet.store import Store


class FocusParams(msgspec.Struct):
    """The month of a FOCUS file."""

    period: Annotated[
        str, Meta(pattern=r"^\d{4}-\d{2}(?!\n)$", description="a month, such as 2026-10, in UTC.")
    ]
    cluster: ClusterName = ""


def focus_routes(store: Store, default_cluster: str, currency_of: CurrencyOf = no_currency) -> list[Route]:
    """Return the route of the billing export."""

    @get(f"{PREFIX}/focus", scope="filtered", media_type="text/csv")
    async def focus(query: FocusParams, namespaces: Namespaces) -> StreamingResponse:
        """Cost and usage of a month in the format of FOCUS (CSV): one row per workload and day."""
        cluster = await cluster_name(store, default_cluster, query.cluster)
        month = period_of(query.period)
        currency = currency_of(cluster)
        check_currency(cluster, currency)
        first = await _day(store, cluster, currency, month, 0, namespaces)  # errors still have a status here
        return StreamingResponse(
            _lines(first, store, cluster, currency, month, namespaces),
            media_type="text/csv",
            headers={
                "cache-control": "private, no-store",
                "content-disposition": f'attachment; filename="focus-{month.name}.csv"',
                "x-focus-version": VERSION,
            },
        )

    return [focus]


async def _lines(
    first: bytes, store: Store, cluster: str, currency: str, month: ReportPeriod, namespaces: Namespaces
) -> AsyncIterator[bytes]:
    yield csv_file.header() + first
    for number in range(1, (month.end - month.start).days):
        yield await _day(store, cluster, currency, month, number, namespaces)


async def _day(
    store: Store, cluster: str, currency: str, month: ReportPeriod, number: int, namespaces: Namespaces
) -> bytes:
    """Return the lines of one day of the month."""
    start = month.start + timedelta(days=number)
    hour = month.first + 24 * number
    day = ChargeDay(
        cluster=cluster,
        currency=currency,
        month_start=month.start,
        month_end=month.end,
        start=start,
        end=start + timedelta(days=1),
    )
    uses = await store.workload_uses.of_day(cluster, hour, namespaces)
    total = await store.workload_uses.total(cluster, hour, namespaces)
    return csv_file.encode(focus_rows(day, uses, total))
