"""What a caller who is limited to a namespace sees of hours, snapshots, reports and waste.

In each of the two known hours, `mine` holds two and a half GPUs and the other team three and a half of ten.
"""

import csv
import io
from typing import Any

import httpx
import pytest
from tests.server.scope.conftest import SECRET, as_caller
from tests.server.scope.test_every_route import DAY, HOURS, HOURS_NOW, WEEK

PREFIX = "/api/v1/gpu-aggregation"
GROUPS = ("namespace", "workload", "label:team", "annotation:cost-center")
SUMS = ("allocated_gpu_count", "allocated_gpu_hours", "idle_gpu_hours", "cost", "avg_utilization")


async def data(http: httpx.AsyncClient, path: str, caller: str = "mine") -> Any:
    answer = await http.get(PREFIX + path, headers=as_caller(caller))
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def sums(row: dict[str, Any]) -> list[float]:
    return [row[name] for name in SUMS]


async def test_names_are_those_of_the_callers_namespaces(http: httpx.AsyncClient) -> None:
    assert await data(http, "/namespaces") == ["mine"]
    values = "/dimension-values?dimension_type=label&dimension_key=team"
    assert await data(http, values) == ["blue"]
    assert await data(http, values, "both") == await data(http, values, "all")
    assert await data(http, "/dimension-values?dimension_type=label&dimension_key=unknown") == []


@pytest.mark.parametrize("hours", [HOURS, HOURS_NOW])
async def test_the_hours_of_the_cluster_are_the_sum_of_the_visible_namespaces(
    http: httpx.AsyncClient, hours: str
) -> None:
    rows = await data(http, f"/cluster/hourly-stats?{hours}")
    full = await data(http, f"/cluster/hourly-stats?{hours}", "all")
    parts = await data(http, f"/namespaces/hourly-stats?{hours}")
    assert len(rows) == len(full) == (2 if hours == HOURS else 3)
    for row, whole, part in zip(rows, full, parts, strict=True):
        assert part["namespace"] == "mine"
        assert sums(row) == pytest.approx(sums(part), abs=2e-4)
        assert (row["p95_utilization"], row["stat_hour"]) == (part["p95_utilization"], part["stat_hour"])
        assert row["capacity_gpu_hours"] == whole["capacity_gpu_hours"]
        assert row["allocation_rate"] == pytest.approx(
            100 * row["allocated_gpu_hours"] / row["capacity_gpu_hours"]
        )
    assert rows[0]["allocated_gpu_count"] == pytest.approx(2.5)
    both = await data(http, f"/cluster/hourly-stats?{hours}", "both")
    for row, whole in zip(both, full, strict=True):
        assert sums(row) == pytest.approx(sums(whole), abs=2e-4)
    page = await data(http, f"/cluster/hourly-stats?{hours}&page=2&page_size=1")
    assert (page["total"], page["data"]) == (len(rows), rows[1:2])


@pytest.mark.parametrize("hours", [HOURS, HOURS_NOW])
async def test_the_hours_of_labels_count_the_visible_workloads(http: httpx.AsyncClient, hours: str) -> None:
    path = f"/labels/hourly-stats?{hours}&dimension_type=label&dimension_key=team"
    rows, full, both = [await data(http, path, caller) for caller in ("mine", "all", "both")]
    assert {row["dimension_value"] for row in rows} == {"blue"}
    wanted = [row for row in full if row["dimension_value"] == "blue"]
    assert [sums(row) for row in rows] == [pytest.approx(sums(row), abs=2e-4) for row in wanted]
    keys = ("id", "dimension_value", "stat_hour", "active_workload_count")
    assert [[row[key] for key in keys] for row in rows] == [[row[key] for key in keys] for row in wanted]
    assert [sums(row) for row in both] == [pytest.approx(sums(row), abs=2e-4) for row in full]
    page = await data(http, f"{path}&page=1&page_size=1")
    assert (page["total"], page["data"]) == (len(rows), rows[:1])
    assert await data(http, f"{path}&dimension_value={SECRET}-team") == []


async def test_pages_of_workload_hours_are_those_of_the_visible_namespaces(http: httpx.AsyncClient) -> None:
    for more in ("", "&order_by=utilization", "&order_direction=desc", "&include_current=true"):
        path = f"/workloads/hourly-stats?{HOURS}{more}&page_size=1000"
        mine, both, full = [await data(http, path, caller) for caller in ("mine", "both", "all")]
        assert both == full
        assert mine["data"] == [row for row in full["data"] if row["namespace"] == "mine"]
        assert mine["total"] == len(mine["data"]) == (6 if "current" in more else 4)
    for filters in (f"namespace={SECRET}", f"dimension_key=team&dimension_value={SECRET}-team"):
        page = await data(http, f"/workloads/hourly-stats?{HOURS}&{filters}")
        assert (page["total"], page["data"]) == (0, [])
    named = await data(http, f"/workloads/hourly-stats?{HOURS}&workload_name={SECRET}-bert", "mine")
    assert named["total"] == 0
    labelled = f"/workloads/hourly-stats?{HOURS}&dimension_key=team"
    assert await data(http, labelled, "both") == await data(http, labelled, "all")
    assert await data(http, f"/namespaces/hourly-stats?{HOURS}&namespace={SECRET}") == []


async def test_a_snapshot_counts_the_visible_namespaces(http: httpx.AsyncClient) -> None:
    mine, both, full = [await data(http, "/snapshots/latest", caller) for caller in ("mine", "both", "all")]
    assert list(mine["allocation_details"]["namespaces"]) == ["mine"]
    assert mine["allocation_details"]["labels"] == mine["allocation_details"]["annotations"] == {}
    assert mine["allocated_gpu_count"] == 2.5
    assert (mine["id"], mine["total_gpu_capacity"]) == (full["id"], full["total_gpu_capacity"])
    assert both["allocation_details"]["namespaces"] == full["allocation_details"]["namespaces"]
    assert both["allocated_gpu_count"] == full["allocated_gpu_count"]
    listed = await data(http, "/snapshots?details=true")
    assert listed[-1] == mine
    assert await data(http, "/snapshots") == [{**row, "allocation_details": {}} for row in listed]


@pytest.mark.parametrize("period", [DAY, WEEK])
async def test_a_report_adds_up_over_the_visible_namespaces(http: httpx.AsyncClient, period: str) -> None:
    for group in GROUPS:
        path = f"/report?period={period}&group_by={group}&series=5"
        mine, both, full = [await data(http, path, caller) for caller in ("mine", "both", "all")]
        assert mine["totals"]["allocated_gpu_hours"] == pytest.approx(5.0, rel=0.01)
        assert mine["totals"]["cost"] < full["totals"]["cost"]
        assert mine["totals"]["capacity_gpu_hours"] == full["totals"]["capacity_gpu_hours"]
        rows = {row["name"]: row for row in mine["rows"]}
        assert rows["unattributed"]["gpu_hours"] == 0
        assert rows["other namespaces and unallocated"]["row"] == "unallocated"
        assert sum(row["gpu_hours"] for row in mine["rows"]) == pytest.approx(
            mine["totals"]["capacity_gpu_hours"]
        )
        lines = mine["series"]["lines"]
        assert sum(sum(line["gpu_hours"]) for line in lines) == pytest.approx(
            mine["totals"]["allocated_gpu_hours"]
        )
        assert {line["row"] for line in lines} == {"group"}
        assert mine["series"]["times"] == full["series"]["times"]
        assert both["rows"][:-1] == full["rows"][:-1]
        assert both["totals"] == pytest.approx(full["totals"], abs=2e-4)  # rounded in other places
        assert both["series"] == full["series"]


async def test_a_report_as_csv_says_what_it_is_limited_to(http: httpx.AsyncClient) -> None:
    path = f"{PREFIX}/report?period={DAY}"
    table = await http.get(f"{path}&format=csv", headers=as_caller("mine"))
    assert table.headers["x-gpufleet-scope"] == "mine"
    rows = csv.DictReader(io.StringIO(table.text))
    assert [row["name"] for row in rows] == ["mine", "unattributed", "other namespaces and unallocated"]


async def test_waste_lists_the_visible_workloads(http: httpx.AsyncClient) -> None:
    path = f"/waste?{HOURS.replace('2030-01-01', DAY)}"
    mine, both, full = [await data(http, path, caller) for caller in ("mine", "both", "all")]
    assert both == full
    assert [row["workload_name"] for row in mine["data"]] == ["mine-half"]
    assert (mine["total"], full["total"]) == (1, 3)
    assert (await data(http, f"{path}&page=9"))["total"] == 1
