"""One period of accounting: hours, report, CSV and waste show the same figures."""

import csv
import io

import httpx
import pytest
from tests.server.aggregation.test_aggregation import get
from tests.server.aggregation.test_report import DAY


@pytest.mark.parametrize("group_by", ["namespace", "workload"])
async def test_hours_report_and_csv_show_the_same(http: httpx.AsyncClient, group_by: str) -> None:
    made = await get(http, "/report", period=DAY, group_by=group_by)
    span = {"start_time": f"{DAY}T00:00:00Z", "end_time": f"{DAY}T23:00:00Z"}
    hours = await get(http, "/cluster/hourly-stats", **span)
    totals = made["totals"]

    def whole(field: str) -> float:
        return float(sum(hour[field] for hour in hours))

    assert totals["capacity_gpu_hours"] == whole("capacity_gpu_hours")
    assert totals["allocated_gpu_hours"] == whole("allocated_gpu_hours")
    assert totals["idle_gpu_hours"] == whole("idle_gpu_hours")
    assert totals["cost"] == pytest.approx(whole("cost"))
    assert totals["energy_kwh"] == pytest.approx(whole("energy_kwh"))
    rows = [row["energy_kwh"] for row in made["rows"] if row["row"] != "unallocated"]
    assert totals["energy_kwh"] == pytest.approx(sum(rows))
    assert totals["allocation_rate"] == 100 * whole("allocated_gpu_hours") / whole("capacity_gpu_hours")
    assert sum(row["share"] for row in made["rows"]) == pytest.approx(100)

    params = {"period": DAY, "group_by": group_by}
    text = (await http.get("/report", params={**params, "format": "csv"})).text
    for row, line in zip(made["rows"], csv.DictReader(io.StringIO(text)), strict=True):
        for field in ("gpu_hours", "share", "idle_gpu_hours", "cost"):
            assert float(line[field]) == row[field]
        assert line["energy_kwh"] == ("" if row["energy_kwh"] is None else str(row["energy_kwh"]))
        assert row["share"] == round(100 * row["gpu_hours"] / totals["capacity_gpu_hours"], 4)


async def test_waste_is_the_idle_part_of_the_report(http: httpx.AsyncClient) -> None:
    made = await get(http, "/report", period=DAY, group_by="workload")
    span = {"start_time": f"{DAY}T00:00:00Z", "end_time": f"{DAY}T23:00:00Z"}
    waste = {row["workload_name"]: row for row in (await get(http, "/waste", **span))["data"]}
    for row in made["rows"]:
        if row["row"] == "group" and row["idle_gpu_hours"]:
            found = waste.pop(row["name"])
            assert found["idle_gpu_hours"] == row["idle_gpu_hours"]
            assert found["idle_share"] == round(100 * row["idle_gpu_hours"] / row["gpu_hours"], 4)
            assert found["energy_kwh"] == row["energy_kwh"] > 0
            assert found["idle_cost"] == pytest.approx(row["cost"] * found["idle_share"] / 100)
    assert not waste
