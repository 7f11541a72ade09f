"""The FOCUS file of a month agrees with the month's report."""

import csv
import io
from collections.abc import AsyncIterator
from decimal import Decimal

import httpx
import pytest
from tests.server.aggregation.conftest import record_known_hours
from tests.server.aggregation.test_aggregation import START

from gpufleet.focus.columns import NAMES
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.accounting.focus import focus_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.store import Store

MONTH = f"{START:%Y-%m}"


@pytest.fixture
async def api(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    await record_known_hours(store)
    routes = [
        *focus_routes(store, "prod", lambda cluster: "EUR"),
        *report_routes(store, "prod", currency_of=lambda cluster: "EUR"),
    ]
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    base = "http://127.0.0.1/api/v1/gpu-aggregation"
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield client


async def test_the_rows_of_a_month_add_up_to_its_report(api: httpx.AsyncClient) -> None:
    answer = await api.get("/focus", params={"period": MONTH})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert tuple(rows[0]) == NAMES
    report = (await api.get("/report", params={"period": MONTH, "group_by": "workload"})).json()["data"]
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(str(report["totals"]["cost"]))
    hours = sum(Decimal(row["ConsumedQuantity"]) for row in rows)
    assert hours == Decimal(str(report["totals"]["allocated_gpu_hours"]))
    energy = sum(Decimal(row["x_EnergyKwh"]) for row in rows)
    assert abs(energy - Decimal(report["totals"]["energy_kwh"])) < Decimal("1e-9")
    by_name = {row["x_WorkloadName"]: row for row in rows}
    for group in report["rows"]:
        if group["row"] == "group":
            assert Decimal(by_name[group["name"]]["BilledCost"]) == Decimal(str(group["cost"]))
    assert by_name["bert"]["x_GpuModels"] == "NVIDIA_H200"
    assert by_name["bert"]["x_Nodes"] == "a"
    assert by_name[""]["ConsumedQuantity"] == "2"  # kube-system, which is excluded


async def test_a_month_without_use_is_a_header(api: httpx.AsyncClient) -> None:
    answer = await api.get("/focus", params={"period": "2001-02"})
    assert answer.text == ",".join(NAMES) + "\r\n"


async def test_a_cluster_without_a_currency_is_refused(store: Store) -> None:
    transport = httpx.ASGITransport(create_app(Api(routes=focus_routes(store, "prod"))))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/api/v1/gpu-aggregation/focus", params={"period": MONTH})
    assert answer.status_code == 400
    assert "accounting.currency of cluster prod is not set" in answer.text


@pytest.mark.parametrize("period", ["2026", "2026-13", "2026-10-01", "2026-10..2026-11"])
async def test_only_a_month_is_a_billing_period(api: httpx.AsyncClient, period: str) -> None:
    assert (await api.get("/focus", params={"period": period})).status_code == 400
