"""A cluster with Prometheus as its only source, over a real Prometheus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.exporters.samples import exporter, scrape_config
from tests.prometheus_fixture import free_port, running_prometheus

from gpufleet.fleet import metric_nodes
from gpufleet.runtime.settings import MetricsSettings, Settings, StoreSettings, load_settings
from gpufleet.server.app import Api, create_app
from gpufleet.server.wiring.assemble import open_components

ROW = 'Hostname="{node}",modelName="NVIDIA H100 80GB HBM3",gpu="{gpu}",UUID="GPU-{node}-{gpu}"'


def page(node: str, gpus: int) -> str:
    rows = [ROW.format(node=node, gpu=gpu) for gpu in range(gpus)]
    return "\n".join(
        f"DCGM_FI_DEV_GPU_UTIL{{{row}}} {90 - gpu}\nDCGM_FI_DEV_POWER_USAGE{{{row}}} {400 + gpu}"
        for gpu, row in enumerate(rows)
    )


@pytest.fixture
def pages() -> dict[str, str]:
    return {"a": page("node-a", 2), "b": page("node-b", 2)}


@pytest.fixture
def settings(store_settings: StoreSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = load_settings({}, {}).replace(store_settings)
    return settings.replace(replace(settings[MetricsSettings], refresh=0.2))


@asynccontextmanager
async def served(settings: Settings, pages: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose only source is a Prometheus that scrapes these pages."""
    async with AsyncExitStack() as exit_stack:
        target = exit_stack.enter_context(exporter(pages))
        url = exit_stack.enter_context(running_prometheus(scrape_config(target, pages)))
        yield await opened(settings.replace(replace(settings[MetricsSettings], url=url)), exit_stack)


async def opened(settings: Settings, exit_stack: AsyncExitStack) -> httpx.AsyncClient:
    components = await open_components(settings, exit_stack)
    app = create_app(Api(routes=components.routes, metrics=components.metrics))
    transport = httpx.ASGITransport(app)
    return await exit_stack.enter_async_context(
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
    )


async def data(http: httpx.AsyncClient, path: str, **params: object) -> Any:
    answer = await http.get(path, params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def until(http: httpx.AsyncClient, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the nodes by name once they are as expected."""
    nodes: dict[str, Any] = {}
    for _ in range(150):
        nodes = {row["name"]: row for row in (await data(http, "/api/nodes"))["data"]}
        if enough(nodes):
            return nodes
        await asyncio.sleep(0.2)
    raise AssertionError(f"after 30 s there are {nodes}")


async def test_the_nodes_and_gpus_of_its_series_make_up_the_fleet(
    settings: Settings, pages: dict[str, str]
) -> None:
    async with served(settings, pages) as http:
        await check_fleet(http)


async def check_fleet(http: httpx.AsyncClient) -> None:
    nodes = await until(http, lambda nodes: [row["utilization"] for row in nodes.values()] == [0.895] * 2)
    seen = {(row["node_name"], row["gpu_index"]) for row in await data(http, "/api/v1/gpu/metrics")}
    assert seen == {("node-a", 0), ("node-a", 1), ("node-b", 0), ("node-b", 1)}
    assert {
        (row["state"], row["source"], row["gpuAllocated"], row["gpuTotal"]) for row in nodes.values()
    } == {("unknown", "metrics", None, 2)}
    assert [row["name"] for row in (await data(http, "/api/nodes", state="unknown"))["data"]] == list(nodes)

    heatmap = await data(http, "/api/clusters/gpuHeatmap")
    for quantity, top in (("utilization", 90.0), ("power", 401.0)):
        points = heatmap[quantity]["data"]
        assert {(point["nodeName"], point["deviceId"]) for point in points} == seen
        assert points[0]["value"] == top
    gpu_map = await data(http, "/api/v1/gpu/map")
    assert (gpu_map["nodes"], gpu_map["counts"], gpu_map["marks"]) == (["node-a", "node-b"], [2, 2], "pppp")
    assert gpu_map["values"] == [90, 89, 90, 89]

    overview = await data(http, "/api/clusters/overview")
    assert (overview["totalNodes"], overview["healthyNodes"], overview["totalGpus"]) == (2, 2, 4)
    assert (overview["fullyIdleNodes"], overview["partiallyIdleNodes"], overview["busyNodes"]) == (0, 0, 0)
    assert (overview["allocationRate"], overview["allocatedGpus"], overview["utilization"]) == (None,) * 3
    assert "does not say which GPUs are allocated" in overview["note"]

    detail = await data(http, "/api/nodes/node-a")
    assert [(gpu["index"], gpu["uuid"], gpu["utilization"]) for gpu in detail["gpus"]] == [
        (0, "GPU-node-a-0", 0.9),
        (1, "GPU-node-a-1", 0.89),
    ]
    text = (await http.get("/metrics")).text
    assert 'gpufleet_nodes{cluster="default",state="unknown"} 2.0' in text
    assert 'gpufleet_gpus{cluster="default",state="allocated"}' not in text


async def test_a_node_that_is_no_longer_scraped_becomes_faulty_and_then_disappears(
    settings: Settings, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_nodes, "STALE", 1.0)
    monkeypatch.setattr(metric_nodes, "FORGOTTEN", 4.0)
    async with served(settings, pages) as http:
        await check_removal(http, pages)


async def check_removal(http: httpx.AsyncClient, pages: dict[str, str]) -> None:
    await until(http, lambda nodes: [row["utilization"] for row in nodes.values()] == [0.895] * 2)
    pages["b"] = ""
    nodes = await until(http, lambda nodes: nodes.get("node-b", {}).get("state") == "faulty")
    assert nodes["node-b"]["fault"].startswith("no readings since 2")
    assert (nodes["node-b"]["ready"], nodes["node-b"]["gpuTotal"]) == (False, 2)
    nodes = await until(http, lambda nodes: "node-b" not in nodes)
    assert nodes["node-a"]["state"] == "unknown"


async def test_a_metric_source_that_was_never_reached_is_not_an_empty_cluster(settings: Settings) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with AsyncExitStack() as exit_stack:
        http = await opened(settings.replace(replace(settings[MetricsSettings], url=url)), exit_stack)
        answer = await http.get("/api/nodes")
        assert answer.status_code == 503
        assert answer.json()["message"].startswith("nothing is known of cluster default yet: ")
