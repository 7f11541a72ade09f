"""Compare all views of one instant of a running server: the demo and a real cluster pass the same test.

`check_live` compares what is now: overview, nodes, GPUs, map, workloads, consumers, snapshot, `/metrics` and the
expressions of Grafana's dashboard. `check_accounts` compares what was: hours, report, CSV and waste.
Both fail with the name of the figure that differs.
"""

import csv
import io
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from charts.reference import CHARTS
from pytest import approx  # noqa: PT013  (used in every line)
from tests.prometheus_fixture import binaries

Json = Any
PREFIX = "/api/v1/gpu-aggregation"
SUMS = ("allocated_gpu_hours", "idle_gpu_hours", "cost", "energy_kwh")
_ROUNDED = 1e-6
GRAFANA = {
    "GPUs": "totalGpus",
    "Allocated (of schedulable GPUs)": "allocationRate",
    "Idle while allocated": "idleGpus",
}
"""Panels with one number, and the field of the overview that must be the same."""


@dataclass
class Site:
    """A server under test."""

    url: str
    headers: Mapping[str, str]
    cluster: str

    def text(self, path: str, **params: object) -> str:
        answer = httpx.get(self.url + path, params=params, headers=dict(self.headers), timeout=30)  # type: ignore[arg-type]
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.text

    def get(self, path: str, **params: object) -> Json:
        return json.loads(self.text(path, cluster=self.cluster, **params))["data"]

    def rows(self, path: str, **params: object) -> list[Json]:
        found: list[Json] = self.get(path, pageSize=1000, **params)["data"]
        return found


def _at_one_instant(read: Callable[[], Json], mark: Callable[[], Json]) -> Json:
    """Read until the mark is the same before and after it."""
    for _ in range(30):
        before = mark()
        found = read()
        if mark() == before:
            return before, found
    raise AssertionError("the server changed with every reading")


def check_live(site: Site) -> Json:
    """Compare all live views, and return the overview that they agree with."""

    def read() -> dict[str, Json]:
        nodes = site.rows("/api/nodes")
        return {
            "nodes": nodes,
            "gpus": [gpu for node in nodes for gpu in site.get(f"/api/nodes/{node['name']}")["gpus"]],
            "workloads": site.rows("/api/workloads", status="Running"),
            "consumers": site.rows("/api/clusters/consumers"),
            "map": site.get("/api/v1/gpu/map"),
            "heatmap": site.get("/api/clusters/gpuHeatmap"),
            "metrics": site.text("/metrics"),
        }

    overview, seen = _at_one_instant(read, lambda: site.get("/api/clusters/overview"))
    nodes, gpus = seen["nodes"], seen["gpus"]
    held = [gpu for gpu in gpus if gpu["holders"]]
    measured = [gpu["utilization"] for gpu in held if gpu["utilization"] is not None]
    instances = sum(len(gpu["holders"]) - 1 for gpu in held)
    """Holders that share a GPU count as one GPU in the totals, and each in its workload."""
    figures = {
        "totalNodes": [len(nodes)],
        "totalGpus": [sum(node["gpuTotal"] for node in nodes), len(gpus), sum(seen["map"]["counts"])],
        "allocatedGpus": [
            sum(node["gpuAllocated"] for node in nodes),
            len(held),
            sum(row["gpuAllocated"] for row in seen["workloads"]) - instances,
            sum(row["stat"]["gpuRequest"] for row in seen["consumers"]) - instances,
        ],
        "faultyNodes": [sum(bool(node["fault"]) for node in nodes)],
        "busyNodes": [sum(node["state"] == "busy" for node in nodes)],
        "measuredGpus": [len(measured)],
        "idleGpus": [sum(value < 0.05 for value in measured)],
    }
    for name, values in figures.items():
        assert values == [overview[name]] * len(values), (name, overview[name], values)
    assert overview["utilization"] == approx(sum(measured) / len(measured), abs=2e-4)
    rate = overview["schedulableAllocatedGpus"] / overview["schedulableGpus"]
    assert overview["allocationRate"] == approx(rate, abs=1e-4)
    usable = [node for node in nodes if not node["fault"] and not node["cordoned"]]
    assert sum(node["gpuTotal"] for node in usable) >= overview["schedulableGpus"]
    _check_map(seen["map"], nodes, overview)
    _check_metrics(seen["metrics"], overview, site.cluster)
    return overview


def _check_map(found: Json, nodes: list[Json], overview: Json) -> None:
    """Every node has as many held GPUs on the map as in the list, except that an unhealthy one is only unhealthy."""
    by_name = {node["name"]: node for node in nodes}
    first = free = 0
    for name, count in zip(found["nodes"], found["counts"], strict=True):
        mine, node = found["marks"][first : first + count], by_name[name]
        held = mine.count("h") + mine.count("p")
        assert held <= node["gpuAllocated"] <= held + mine.count("x"), name
        assert not mine.count("x") or node["fault"], name
        free += 0 if node["fault"] else mine.count("f") + mine.count("d")
        first += count
    assert free == overview["schedulableGpus"] - overview["schedulableAllocatedGpus"]


def _check_metrics(text: str, overview: Json, cluster: str) -> None:
    pattern = r'^gpufleet_gpus{cluster="([^"]+)",state="([^"]+)"} (\S+)$'
    found = {state: float(value) for name, state, value in re.findall(pattern, text, re.M) if name == cluster}
    assert found["all"] == overview["totalGpus"]
    assert found["allocated"] == overview["allocatedGpus"]
    assert found["schedulable"] == overview["schedulableGpus"]
    assert found["schedulable_allocated"] == overview["schedulableAllocatedGpus"]
    assert found["idle"] == overview["idleGpus"]
    series = [
        {"series": f'gpufleet_gpus{{cluster="{cluster}",state="{state}"}}', "values": f"{value}x2"}
        for state, value in found.items()
    ]
    expressions = []
    for panel in json.loads((CHARTS / "gpufleet" / "dashboards" / "fleet.json").read_text())["panels"]:
        if panel["type"] == "stat" and panel["title"] in GRAFANA:
            field, query = GRAFANA[panel["title"]], panel["targets"][0]["expr"].replace("$cluster", cluster)
            value = overview[field]
            if field == "allocationRate":  # the overview is rounded
                query, value = f"round({query}, 0.0001)", round(value, 4)
            expected = [{"labels": "{}", "value": value}]
            expressions.append({"expr": query, "eval_time": "1m", "exp_samples": expected})
    assert len(expressions) == len(GRAFANA)
    with tempfile.TemporaryDirectory() as folder:
        test = {"interval": "1m", "input_series": series, "promql_expr_test": expressions}
        (Path(folder) / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
        command = [str(binaries().promtool), "test", "rules", "test.yaml"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def check_accounts(site: Site, day: str) -> Json:
    """Compare all views of the hours of a day, and return the totals that they agree with."""
    span = {"start_time": f"{day}T00:00:00Z", "end_time": f"{day}T23:00:00Z"}

    def read() -> dict[str, Json]:
        return {
            "namespaces": site.get(f"{PREFIX}/namespaces/hourly-stats", **span),
            "workloads": _pages(site, f"{PREFIX}/workloads/hourly-stats", **span),
            "report": site.get(f"{PREFIX}/report", period=day),
            "by workload": site.get(f"{PREFIX}/report", period=day, group_by="workload"),
            "csv": site.text(f"{PREFIX}/report", cluster=site.cluster, period=day, format="csv"),
            "waste": _pages(site, f"{PREFIX}/waste", **span),
        }

    hours, seen = _at_one_instant(read, lambda: site.get(f"{PREFIX}/cluster/hourly-stats", **span))
    assert hours, f"no hours on {day}"
    report, totals = seen["report"], seen["report"]["totals"]
    for hour in hours:
        _check_hour(hour, seen["namespaces"], seen["workloads"])
    assert totals["capacity_gpu_hours"] == approx(sum(hour["capacity_gpu_hours"] for hour in hours))
    for field in SUMS:
        assert totals[field] == _about(hours, field), field
        for grouped in (report, seen["by workload"]):
            rows = [{**row, "allocated_gpu_hours": row["gpu_hours"]} for row in _allocated(grouped)]
            assert totals[field] == _about(rows, field), (field, grouped["group_by"])
    rate = 100 * totals["allocated_gpu_hours"] / totals["capacity_gpu_hours"]
    assert totals["allocation_rate"] == approx(rate, abs=1e-3)
    assert report["hours_accounted"] == approx(sum(hour["observed_share"] for hour in hours), abs=1e-3)
    _check_csv(report, seen["csv"])
    _check_waste(seen["by workload"], seen["waste"])
    return totals


def _check_hour(hour: Json, namespaces: list[Json], workloads: list[Json]) -> None:
    """Namespaces are at most the cluster (the rest is unattributed), and have what their workloads have."""
    when = hour["stat_hour"]
    spaces = [row for row in namespaces if row["stat_hour"] == when]
    mine = [row for row in workloads if row["stat_hour"] == when]
    rate = 100 * hour["allocated_gpu_hours"] / hour["capacity_gpu_hours"] if hour["capacity_gpu_hours"] else 0
    assert hour["allocation_rate"] == approx(rate, abs=1e-3), when
    for field in SUMS:
        assert _sum(spaces, field) <= (hour[field] or 0) + _ROUNDED * len(spaces), (when, field)
        for space in spaces:
            of_space = [row for row in mine if row["namespace"] == space["namespace"]]
            assert space[field] or approx(_sum(of_space, field), abs=1e-6) == 0, (when, field, space)


def _check_csv(report: Json, text: str) -> None:
    """CSV has every digit of the report and the unit of the cost."""
    capacity = report["totals"]["capacity_gpu_hours"]
    assert sum(row["share"] for row in report["rows"]) == approx(100, abs=0.01)
    for row, line in zip(report["rows"], csv.DictReader(io.StringIO(text)), strict=True):
        for field in ("gpu_hours", "share", "idle_gpu_hours", "cost", "energy_kwh", "avg_utilization"):
            assert line[field] == ("" if row[field] is None else str(row[field])), (row["name"], field)
        assert row["share"] == approx(100 * row["gpu_hours"] / capacity, abs=1e-3)
        assert line.get("currency", "") == row.get("currency", "") == report["currency"]


def _check_waste(report: Json, waste: list[Json]) -> None:
    found = {(row["namespace"], row["workload_name"], row["owner_uid"]): row for row in waste}
    for row in report["rows"]:
        if row["row"] != "group" or not row["idle_gpu_hours"]:
            continue
        idle = found.pop((row["namespace"], row["name"], row["uid"]))
        assert idle["idle_gpu_hours"] == row["idle_gpu_hours"]
        assert idle["allocated_gpu_hours"] == row["gpu_hours"]
        assert idle["idle_share"] == approx(100 * row["idle_gpu_hours"] / row["gpu_hours"], abs=1e-3)
        assert idle["idle_cost"] == approx(row["cost"] * row["idle_gpu_hours"] / row["gpu_hours"], abs=1e-5)
        assert idle["energy_kwh"] == row["energy_kwh"]
        assert idle.get("currency", "") == report["currency"]
    assert not found, "waste of workloads that are not in the report"


def _allocated(report: Json) -> list[Json]:
    return [row for row in report["rows"] if row["row"] != "unallocated"]


def _sum(rows: list[Json], field: str) -> float:
    return float(sum(row[field] or 0 for row in rows))


def _about(rows: list[Json], field: str) -> Json:
    """Return the sum of a field; each cost is rounded to a millionth of its unit."""
    return approx(_sum(rows, field), abs=_ROUNDED * (len(rows) + 1))


def _pages(site: Site, path: str, **params: object) -> list[Json]:
    rows: list[Json] = []
    for page in range(1, 1000):
        found = site.get(path, page=page, page_size=1000, **params)
        rows += found["data"]
        if len(rows) >= found["total"]:
            break
    return rows
