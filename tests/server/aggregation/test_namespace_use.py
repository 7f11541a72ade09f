"""The use of namespaces, by which the scheduler shares GPUs, comes from the same hours as reports."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest
from tests.accounting.histories import HOUR, Server
from tests.server.aggregation.test_aggregation import START, get

from gpufleet.runtime.settings.prices import prices_by_model
from gpufleet.scheduler.queues.use_reader import parse
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.accounting.namespace_use import namespace_use_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.store import Store

LATER = HOUR + 7300.0


@pytest.fixture
async def use(store: Store, recorded: Server) -> AsyncIterator[httpx.AsyncClient]:
    prices = {"prod": prices_by_model({"NVIDIA H200": 3.5, "": 1.0})}
    routes = [
        *namespace_use_routes(store, "prod", prices, now=lambda: LATER),
        *report_routes(store, "prod", now=lambda: LATER),
    ]
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1/api/v1/gpu-aggregation"
    ) as client:
        yield client


async def test_the_use_of_a_month_is_that_of_the_report(use: httpx.AsyncClient) -> None:
    report = await get(use, "/report", period=f"{START:%Y-%m}")
    billed = {row["name"]: (row["gpu_hours"], row["cost"]) for row in report["rows"] if row["row"] == "group"}
    answer = await get(use, "/namespaces/use")
    assert billed
    assert {
        each["namespace"]: (each["month"]["gpu_hours"], each["month"]["cost"])
        for each in answer["namespaces"]
    } == billed
    assert datetime.fromisoformat(answer["until"]) == datetime.fromtimestamp(HOUR + 7200, UTC)


async def test_use_counts_half_after_each_half_life(use: httpx.AsyncClient) -> None:
    slow = await get(use, "/namespaces/use", half_life=366 * 86400)
    fast = await get(use, "/namespaces/use", half_life=3600)
    for long, short in zip(slow["namespaces"], fast["namespaces"], strict=True):
        used = long["month"]["gpu_hours"]
        assert long["decayed_gpu_hours"] == pytest.approx(used, rel=0.001)
        # Half an hour and one and a half hours old.
        assert used * 2**-1.5 <= short["decayed_gpu_hours"] <= used * 2**-0.5


async def test_prices_are_those_of_accounting(use: httpx.AsyncClient) -> None:
    prices = (await get(use, "/namespaces/use"))["prices"]
    assert prices[""] == 1.0
    assert prices["NVIDIA_H200"] == 3.5


async def test_the_scheduler_understands_the_response(use: httpx.AsyncClient) -> None:
    answer = await use.get("/namespaces/use")
    reading = parse(answer.content, datetime.fromtimestamp(LATER, UTC))
    assert reading.until == HOUR + 7200
    assert reading.decayed.keys() == {"ml", "prod"}
    assert reading.periods["Month"]["ml"].gpu_hours == 7.0
    assert reading.prices[""] == 1.0
