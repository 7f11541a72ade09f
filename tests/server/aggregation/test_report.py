"""Reports add up, in every form; waste lists the worst first."""

import csv
import dataclasses
import io
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import msgspec
import pytest
from tests.accounting.histories import HOUR, PLAN, STEP, Prometheus, Server, Time, World, pod
from tests.server.aggregation.test_aggregation import FIRST, START, get, rejection

from gpufleet.accounting.fault_costs import Fault, FaultCosts, fault_costs
from gpufleet.accounting.report import period_of, report
from gpufleet.accounting.report_series import by_day
from gpufleet.client import types
from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.node import FleetNode
from gpufleet.model.statistics import UsageAmount, UsageSum, UsageTotals
from gpufleet.model.workload import OwnerRef
from gpufleet.runtime.settings.prices import prices_by_model
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.accounting.aggregation import aggregation_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.store import Store
from gpufleet.terminal.report import text_report

MONTH, DAY = f"{START:%Y-%m}", f"{START:%Y-%m-%d}"


@pytest.mark.parametrize("group_by", ["namespace", "workload", "label:team", "annotation:cost-center"])
@pytest.mark.parametrize("period", [MONTH, DAY])
async def test_the_rows_of_a_report_add_up_to_the_cluster(
    http: httpx.AsyncClient, group_by: str, period: str
) -> None:
    report = await get(http, "/report", period=period, group_by=group_by)
    totals, rows = report["totals"], report["rows"]
    assert totals["capacity_gpu_hours"] == 16.0
    assert totals["allocated_gpu_hours"] == 11.0
    assert (totals["idle_gpu_hours"], totals["cost"]) == (2.0, 38.5)
    assert report["hours_accounted"] == 1.9972  # from ten seconds after the hour on
    assert sum(row["gpu_hours"] for row in rows) == 16.0
    assert sum(row["gpu_hours"] for row in rows if row["row"] != "unallocated") == 11.0
    assert sum(row["idle_gpu_hours"] for row in rows) == 2.0
    assert sum(row["cost"] for row in rows) == 38.5
    assert [row["row"] for row in rows[-2:]] == ["unattributed", "unallocated"]


@pytest.mark.parametrize("group_by", ["namespace", "workload", "label:team"])
@pytest.mark.parametrize("period", [MONTH, DAY])
async def test_cost_and_energy_over_time_add_up_to_the_totals(
    http: httpx.AsyncClient, group_by: str, period: str
) -> None:
    report = await get(http, "/report", period=period, group_by=group_by, series=1)
    lines, totals = report["series"]["lines"], report["totals"]
    assert sum(sum(line["cost"]) for line in lines) == pytest.approx(totals["cost"])
    assert sum(lines[0]["cost"]) == pytest.approx(report["rows"][0]["cost"])
    energy = [value for line in lines for value in line["energy_kwh"]]
    known = [value for value in energy if value is not None]
    assert sum(known) == pytest.approx(totals["energy_kwh"] or 0.0)


async def test_a_report_of_one_namespace_has_its_workloads_only(http: httpx.AsyncClient) -> None:
    whole = await get(http, "/report", period=MONTH)
    report = await get(http, "/report", period=MONTH, group_by="workload", namespace="ml", series=3)
    groups = [row for row in report["rows"] if row["row"] == "group"]
    assert {row["namespace"] for row in groups} == {"ml"}
    assert sum(row["gpu_hours"] for row in groups) == report["totals"]["allocated_gpu_hours"] == 7.0
    assert report["totals"]["capacity_gpu_hours"] == whole["totals"]["capacity_gpu_hours"]
    assert {line["namespace"] for line in report["series"]["lines"]} == {"ml"}


async def test_the_runs_of_a_workload_are_merged_whatever_number_of_groups_is_asked_for(store: Store) -> None:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=HOUR - 9000.0)
    for number in range(4):  # three runs of one job in one namespace, and one of the same name in another
        job = OwnerRef(f"run-{number}", "Job", "train")
        namespace = "ml" if number < 3 else "prod"
        gpus = (number,)
        world.pods[f"p{number}"] = pod(
            f"p{number}", "a", 1, HOUR + 0.0, held=gpus, owner=job, namespace=namespace
        )
    world.pods["big"] = pod("big", "a", 2, HOUR + 0.0, held=(6, 7))
    time = Time(HOUR + 0.0)
    used = {("a", gpu, HOUR + minute * STEP): 10.0 * gpu for gpu in range(8) for minute in range(12)}
    server = Server(world, store, Prometheus(used), time)
    await server.round()
    server.watch(HOUR + 3700.0)
    await server.round()
    transport = httpx.ASGITransport(create_app(Api(routes=report_routes(store, "prod", time))))
    base = "http://127.0.0.1/api/v1/gpu-aggregation"
    by_workload: dict[str, Any] = {"period": DAY, "group_by": "workload", "series": 2}
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        merged = await get(client, "/report", **by_workload, merge_runs="true", groups=1)
        runs = await get(client, "/report", **by_workload, namespace="ml", workload="Job/train", groups=1)
        absent = await get(client, "/report", **by_workload, namespace="ml", workload="Job/none")
    job, others = merged["rows"][:2]
    assert (job["namespace"], job["name"], job["runs"], job["uid"]) == ("ml", "train", 3, "")
    assert (job["gpu_hours"], job["avg_utilization"]) == (3.0, 10.0)
    assert (others["name"], others["gpu_hours"]) == ("2 others", 3.0)
    assert sum(merged["series"]["lines"][0]["gpu_hours"]) == 3.0
    assert [row["name"] for row in runs["rows"][:2]] == ["train", "2 others"]
    assert (runs["totals"]["allocated_gpu_hours"], runs["totals"]["avg_utilization"]) == (3.0, 10.0)
    assert sum(row["gpu_hours"] for row in runs["rows"][:2]) == 3.0
    assert [sum(line["gpu_hours"]) for line in runs["series"]["lines"]] == [1.0, 1.0, 1.0]
    assert absent["totals"]["allocated_gpu_hours"] == 0.0
    assert [row["row"] for row in absent["rows"]] == ["unattributed", "unallocated"]


async def test_what_an_excluded_namespace_had_is_unattributed(http: httpx.AsyncClient) -> None:
    report = await get(http, "/report", period=MONTH)
    hours = {row["name"]: row["gpu_hours"] for row in report["rows"]}
    assert hours == {"ml": 7.0, "prod": 2.0, "unattributed": 2.0, "unallocated": 5.0}


async def test_a_report_comes_as_csv_if_that_is_asked_for(http: httpx.AsyncClient) -> None:
    params = {"period": MONTH, "group_by": "workload"}
    for answer in (
        await http.get("/report", params={**params, "format": "csv"}),
        await http.get("/report", params=params, headers={"accept": "text/csv"}),
    ):
        assert answer.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [row["name"] for row in rows] == ["bert", "idle", "unattributed", "unallocated"]
        assert sum(float(row["gpu_hours"]) for row in rows) == 16.0
    answer = await http.get("/report", params=params, headers={"accept": "text/html,*/*"})
    assert answer.headers["content-type"].startswith("application/json"), "the dashboard is the page to print"


async def test_days_from_one_to_another_make_a_report_too(http: httpx.AsyncClient) -> None:
    days = f"{START - timedelta(days=3):%Y-%m-%d}..{DAY}"
    report = await get(http, "/report", period=days)
    assert (report["period"], report["hours_in_period"], report["hours_accounted"]) == (days, 96, 1.9972)
    assert report["rows"] == (await get(http, "/report", period=DAY))["rows"]


@pytest.mark.parametrize("group_by", ["namespace", "workload", "label:team", "annotation:cost-center"])
@pytest.mark.parametrize(("period", "step", "steps"), [(DAY, "hour", 2), (MONTH, "day", 1)])
async def test_the_lines_of_a_report_stack_up_to_its_total(
    http: httpx.AsyncClient, group_by: str, period: str, step: str, steps: int
) -> None:
    report = await get(http, "/report", period=period, group_by=group_by, series=1)
    series = report["series"]
    assert (series["step"], len(series["times"])) == (step, steps)
    first, others = series["lines"]
    group = report["rows"][0]
    assert (first["name"], first["namespace"], first["uid"]) == tuple(
        group[name] for name in ("name", "namespace", "uid")
    )
    assert sum(first["gpu_hours"]) == group["gpu_hours"]
    assert (others["row"], others["name"]) == ("others", "others")
    assert sum(first["gpu_hours"]) + sum(others["gpu_hours"]) == report["totals"]["allocated_gpu_hours"]


async def test_groups_beyond_the_largest_are_one_row(http: httpx.AsyncClient) -> None:
    whole = await get(http, "/report", period=MONTH)
    short = await get(http, "/report", period=MONTH, groups=1)
    assert [row["row"] for row in short["rows"]] == ["group", "others", "unattributed", "unallocated"]
    assert (short["rows"][1]["name"], short["rows"][1]["gpu_hours"]) == ("1 other", 2.0)
    assert short["totals"] == whole["totals"]
    for field in ("gpu_hours", "idle_gpu_hours", "cost"):
        assert sum(row[field] for row in short["rows"]) == sum(row[field] for row in whole["rows"])
    assert (await get(http, "/report", period=MONTH, groups=2))["rows"] == whole["rows"]


async def test_a_report_without_groups_or_without_data_has_no_lines(http: httpx.AsyncClient) -> None:
    plain = await get(http, "/report", period=MONTH)
    assert "series" not in plain
    empty = await get(http, "/report", period="2001-02", series=7)
    assert empty["series"] == {"step": "day", "times": [], "lines": []}


async def test_a_month_without_data_is_an_empty_report(http: httpx.AsyncClient) -> None:
    report = await get(http, "/report", period="2001-02")
    assert (report["hours_accounted"], report["hours_in_period"]) == (0, 28 * 24)
    assert [row["gpu_hours"] for row in report["rows"]] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ({}, "period is missing; it takes a month (2026-10), a day"),
        ({"period": "2026-13"}, "a month such as 2026-10"),
        ({"period": "soon"}, "period"),
        ({"period": f"{DAY}.."}, "period"),
        ({"period": "2026-10-05..2026-10-04"}, "ends before it begins"),
        ({"period": "2024-01..2026-10"}, "at most 400 days"),
        ({"period": MONTH, "series": "51"}, "series"),
        ({"period": MONTH, "group_by": "team"}, "label:KEY"),
        ({"period": MONTH, "group_by": "label:"}, "label:KEY"),
        ({"period": MONTH, "format": "html"}, "csv, json"),
        ({"period": MONTH, "merge_runs": "true"}, "need group_by=workload"),
        ({"period": MONTH, "group_by": "workload", "workload": "Job/train"}, "needs a namespace"),
        ({"period": MONTH, "group_by": "workload", "workload": "train"}, "workload"),
    ],
)
async def test_an_invalid_report_is_rejected(
    http: httpx.AsyncClient, parameters: dict[str, str], part: str
) -> None:
    status, sentence = await rejection(http, "/report", **parameters)
    assert status == 400
    assert part in sentence


async def test_a_report_says_what_faults_cost_until_now(store: Store, http: httpx.AsyncClient) -> None:
    asked: list[tuple[float, float]] = []

    def costs(start: float, end: float) -> FaultCosts:
        asked.append((start, end))
        return fault_costs([Fault("gpu-1", "H200", "xid-79", 8, start, start + 7200)], 4, start, end)

    routes = report_routes(store, "prod", lambda: HOUR + 7300.0, faults={"prod": costs})
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    base = "http://127.0.0.1/api/v1/gpu-aggregation"
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        report = await get(client, "/report", period=MONTH)
    assert asked[0] == (period_of(MONTH).start.timestamp(), HOUR + 7300.0)
    assert (report["faults"]["lost_gpu_hours"], report["faults"]["mean_hours_to_repair"]) == (16.0, 2.0)
    assert report["faults"]["by_cause"] == {"xid-79": 16.0}
    text = text_report(msgspec.convert(report, types.Report))
    assert "Faults: 1 began, 0 open, 16.0 GPU-hours lost" in text
    assert "  by node: gpu-1 16.0" in text
    assert "faults" not in await get(http, "/report", period=MONTH), "a cluster without agents has none"


async def test_waste_lists_workloads_with_idle_gpus(http: httpx.AsyncClient) -> None:
    page = await get(http, "/waste")
    (row,) = page["data"]
    assert (row["workload_name"], row["idle_gpu_hours"], row["idle_share"]) == ("idle", 2.0, 100.0)
    assert (row["idle_cost"], page["total"]) == (7.0, 1)
    past = await get(http, "/waste", page=5)
    assert (past["data"], past["total"]) == ([], 1)
    before = await get(http, "/waste", end_time="2001-01-01T00:00:00Z")
    assert before["data"] == []
    status, _ = await rejection(http, "/waste", start_time=FIRST, end_time="2001-01-01T00:00:00Z")
    assert status == 400
    assert HOUR


async def test_a_fully_allocated_cluster_has_exactly_zero_unallocated(store: Store) -> None:
    world = World()
    # a third of an hour, which no decimal fraction is
    for number in range(4):
        node = f"n{number}"
        world.nodes[node] = FleetNode(name=node, gpu_count=331, gpu_model="H200", created=HOUR + 2400.0)
        world.pods[node] = pod(node, node, 331, HOUR + 2400.0, namespace=f"team{number}")
    time = Time(HOUR + 2400.0)
    server = Server(
        world, store, Prometheus(), time, dataclasses.replace(PLAN, prices=prices_by_model({"H200": 3.1}))
    )
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    day = HOUR // 3600 - HOUR // 3600 % 24
    totals = await store.usage.totals("prod", day, day + 24)
    assert totals.capacity == totals.allocated == 4 * 331 * GPU_HOUR // 3
    made = report(
        "prod",
        period_of("2021-05"),
        "namespace",
        totals,
        await store.usage.by_namespace("prod", day, day + 24),
    )
    assert "-0" not in str(msgspec.json.encode(made.rows))


def test_a_rest_that_rounds_to_zero_has_no_sign() -> None:
    group = UsageSum(name="ml", allocated=1, idle=0, cost=Decimal("10.00000000000001"), utilization=None)
    totals = UsageTotals(hours=1, capacity=1, allocated=1, cost=Decimal(10))
    made = report("prod", period_of("2026-10"), "namespace", totals, [group])
    assert b"-" not in msgspec.json.encode([row.cost for row in made.rows])


async def test_every_cost_has_the_configured_currency(store: Store, recorded: Server) -> None:
    now = lambda: HOUR + 7300.0  # noqa: E731
    routes = [
        *aggregation_routes(store, "prod", now, {"prod": "EUR"}.__getitem__),
        *report_routes(store, "prod", now, {"prod": "EUR"}.__getitem__),
    ]
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    base = "http://127.0.0.1/api/v1/gpu-aggregation"
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        span = {"start_time": FIRST, "end_time": FIRST}
        label = {"dimension_type": "label", "dimension_key": "team", **span}
        listed = [
            *await get(client, "/cluster/hourly-stats", **span),
            *await get(client, "/namespaces/hourly-stats", **span),
            *await get(client, "/labels/hourly-stats", **label),
            *(await get(client, "/workloads/hourly-stats", **span))["data"],
            *(await get(client, "/waste"))["data"],
            *(made := await get(client, "/report", period=MONTH))["rows"],
            made,
        ]
        assert [row["currency"] for row in listed] == ["EUR"] * len(listed)
        text = (await client.get("/report", params={"period": MONTH, "format": "csv"})).text
        assert {row["currency"] for row in csv.DictReader(io.StringIO(text))} == {"EUR"}


async def test_without_a_currency_costs_have_no_unit(http: httpx.AsyncClient) -> None:
    made = await get(http, "/report", period=MONTH)
    assert made["currency"] == ""
    assert not any("currency" in row for row in made["rows"])


@pytest.mark.parametrize("group_by", ["namespace", "workload", "label:team", "annotation:cost-center"])
async def test_days_in_a_time_zone_begin_at_its_midnight(http: httpx.AsyncClient, group_by: str) -> None:
    zone = "Etc/GMT+12" if START.hour < 12 else "Etc/GMT-12"  # another day than in UTC
    whole = await get(http, "/report", period=DAY, group_by=group_by, series=2)
    day = f"{START.astimezone(ZoneInfo(zone)):%Y-%m-%d}"
    zoned = await get(http, "/report", period=day, group_by=group_by, series=2, zone=zone)
    assert zoned["totals"] == pytest.approx(whole["totals"])
    assert zoned["rows"] == [pytest.approx(row) for row in whole["rows"]]
    assert zoned["start_time"] != whole["start_time"]
    month = await get(http, "/report", period=day[:7], group_by=group_by, series=2, zone=zone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    assert [datetime.fromisoformat(time) for time in month["series"]["times"]] == [midnight]
    lines = month["series"]["lines"]
    assert sum(sum(line["gpu_hours"]) for line in lines) == month["totals"]["allocated_gpu_hours"] == 11.0


async def test_waste_is_counted_in_days_of_a_time_zone(http: httpx.AsyncClient) -> None:
    span = {"start_time": f"{START:%Y-%m-%dT%H:%M:%SZ}", "end_time": f"{START:%Y-%m-%dT%H:%M:%SZ}"}
    plain = await get(http, "/waste", **span)
    zoned = await get(http, "/waste", **span, zone="Asia/Kolkata")
    assert zoned["data"] == plain["data"] != []


async def test_an_unknown_time_zone_is_rejected(http: httpx.AsyncClient) -> None:
    for name in ("Mars/Base", "../etc/passwd", "Europe"):
        answer = await http.get("/report", params={"period": DAY, "zone": name})
        assert answer.status_code == 400
        assert "parameter zone" in answer.text


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Europe/Berlin", "Asia/Kathmandu"])
def test_hours_are_added_to_the_days_of_their_period(zone: str) -> None:
    period = period_of("2026-03-28..2026-03-30", ZoneInfo(zone))
    hours = {hour: UsageAmount(1, Decimal(1)) for hour in range(period.first, period.after)}
    days = by_day(hours, ZoneInfo(zone))
    assert next(iter(days)) == period.first
    assert [amount.allocated for amount in days.values()] == ([24, 23, 24] if "Berlin" in zone else [24] * 3)
