"""One model has one name in all views of the demo: nodes, GPUs, workloads, map, heat map, prices and filters."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from dashboard.tools.demo_process import Demo, running_demo

from gpufleet.accounting.prices import price_of
from gpufleet.cli.demo import demo_settings
from gpufleet.demo.simulation.hardware import MODELS
from gpufleet.model.gpu_models import canonical_model
from gpufleet.runtime.settings import AccountingSettings, load_settings

NAMES = {canonical_model(model.name) for model in MODELS}


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with running_demo(nodes=24, days=0.1) as found:
        yield found


def eventually(read: Callable[[], Any]) -> Any:
    """Return the first answer that is not empty: the first readings come some seconds after the start."""
    for _ in range(60):
        if found := read():
            return found
        time.sleep(0.5)
    raise AssertionError("no answer in 30 seconds")


def rows(demo: Demo, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = demo.get(path)["data"]
    return found


def test_all_views_of_the_demo_agree_on_model_names(demo: Demo) -> None:
    nodes = rows(demo, "api/nodes?pageSize=1000")
    by_node = {node["name"]: node["gpuModel"] for node in nodes}
    gpu_map = eventually(lambda: demo.get("api/v1/gpu/map"))
    metrics = eventually(lambda: demo.get("api/v1/gpu/metrics"))
    heat = eventually(lambda: demo.get("api/clusters/gpuHeatmap?topK=1000")["utilization"]["data"])
    views = {
        "map": dict(zip(gpu_map["nodes"], (gpu_map["models"][at] for at in gpu_map["modelOf"]), strict=True)),
        "metrics": {gpu["node_name"]: gpu["gpu_name"] for gpu in metrics},
        "heat map": {point["nodeName"]: point["gpuModel"] for point in heat},
        "node": {
            name: gpu["model"] for name in by_node for gpu in demo.get(f"api/nodes/{quote(name)}")["gpus"]
        },
    }
    assert set(by_node.values()) == NAMES
    for view, models in views.items():
        assert {name: by_node[name] for name in models} == models, view
    workloads = rows(demo, "api/workloads?pageSize=1000")
    assert {model for row in workloads for model in row["gpuAllocation"]} <= NAMES
    assert {model for row in workloads for model in row["gpuAllocation"]} == set(
        demo.get("api/workloadMetadata")["models"]
    )
    reports = demo.get_objects("/apis/gpu.scheduling/v1/gpunodestatuses")
    devices = [device for report in reports for device in report["status"]["devices"]]
    assert {canonical_model(device["model"]) for device in devices} <= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_filters_by_any_spelling_find_the_same(demo: Demo, name: str) -> None:
    spellings = (name, name.replace("_", "-"), name.replace("_", " ").lower())
    for path in ("api/nodes", "api/workloads"):
        found = [rows(demo, f"{path}?pageSize=1000&model={quote(each)}") for each in spellings]
        assert {row["name"] for row in found[0]} == {row["name"] for row in found[1]}
        assert {row["name"] for row in found[0]} == {row["name"] for row in found[2]}
    assert {node["gpuModel"] for node in rows(demo, f"api/nodes?model={quote(name)}")} == {name}


def test_every_model_of_the_demo_has_a_price() -> None:
    prices = demo_settings(load_settings({}, {}))[AccountingSettings].prices
    assert all(price_of(prices, name, "k8s", 0) > 0 for name in NAMES)


def test_waiting_workloads_of_the_demo_show_requests_and_reasons(demo: Demo) -> None:
    waiting = eventually(
        lambda: [row for row in rows(demo, "api/workloads?status=Pending") if row["waitingReason"]]
    )
    for row in waiting:
        detail = demo.get(f"api/workloads/{row['uid']}")
        assert row["gpuRequested"] > 0
        assert detail["gpuRequested"] == row["gpuRequested"]
        assert detail["gpuModelRequested"] == row["gpuModelRequested"]
        assert detail["waitingReason"]
    assert any(row["gpuModelRequested"] for row in waiting)
