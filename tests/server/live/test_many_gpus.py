"""Filters over many GPUs: the same rows, whether encoded in the event loop or in a thread."""

from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.live.gpus import FEW_ROWS, gpu_routes
from gpufleet.store import Store

NODES, GPUS, NOW = 320, 8, 1_800_000_000.0
SMALL = 30
"""Nodes held by the small namespace."""


@pytest.fixture
async def http(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    fleet = Fleet("prod", clock=lambda: NOW)
    for number in range(NODES):
        # exporters use another name for the first node
        aliases = ("z-10.0.0.1",) if number == 0 else ()
        fleet.put_node(FleetNode(name=f"n{number:03}", gpu_count=GPUS, aliases=aliases))
        fleet.put_pod(
            FleetPod(
                uid=f"p{number}",
                name=f"p{number}",
                namespace="small" if number < SMALL else "large",
                node=f"n{number:03}",
                gpus=4,
                held=(1, 3, 5, 7),
                phase=Status.RUNNING,
                bound=NOW - 60,
            )
        )
    names = ["z-10.0.0.1" if n == 0 else f"n{n:03}" for n in range(NODES)]
    rows = sorted((name, g, (n * GPUS + g) % 101.0) for n, name in enumerate(names) for g in range(GPUS))
    gpus = tuple(GpuIdentity(GpuRef(name, g), uuid=f"{name}-{g}") for name, g, _ in rows)
    values = {Quantity.UTILIZATION: np.array([value for _, _, value in rows])}
    fleet.put_readings(Readings(NOW, gpus, values, {Quantity.UTILIZATION: np.full(len(gpus), NOW)}))
    metrics = EmbeddedMetrics("prod", store.readings, store.training, MetricsSettings())
    clusters = Clusters([Cluster("prod", fleet, Listing(fleet), metrics)])
    transport = httpx.ASGITransport(create_app(Api(routes=gpu_routes(clusters))))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def expected(nodes: range, gpus: tuple[int, ...]) -> list[tuple[str, int, float]]:
    return [(f"n{node:03}", gpu, (node * GPUS + gpu) % 101.0) for node in nodes for gpu in gpus]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("node=n000", expected(range(1), tuple(range(GPUS)))),
        ("node=n007", expected(range(7, 8), tuple(range(GPUS)))),
        ("node=nowhere", []),
        ("namespace=small", expected(range(SMALL), (1, 3, 5, 7))),
        ("namespace=large", expected(range(SMALL, NODES), (1, 3, 5, 7))),
        ("namespace=small&node=n000", expected(range(1), (1, 3, 5, 7))),
        ("namespace=large&node=n000", []),
        ("workload=p9", expected(range(9, 10), (1, 3, 5, 7))),
        ("workload=p9&namespace=large", []),
        ("", expected(range(NODES), tuple(range(GPUS)))),
    ],
)
async def test_a_filter_finds_exactly_its_gpus_in_their_order(
    http: httpx.AsyncClient, query: str, rows: list[tuple[str, int, float]]
) -> None:
    body = (await http.get(f"/api/v1/gpu/metrics?{query}")).json()
    assert (body["success"], body["message"]) == (True, "GPU metrics retrieved successfully")
    found = [(row["node_name"], row["gpu_index"], row["utilization"]) for row in body["data"]]
    assert found == rows


async def test_a_large_filtered_answer_is_a_table_too(http: httpx.AsyncClient) -> None:
    assert len(expected(range(SMALL, NODES), (1, 3, 5, 7))) > FEW_ROWS
    answer = await http.get("/api/v1/gpu/metrics?namespace=large", headers={"accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert len(answer.text.splitlines()) == 1 + 4 * (NODES - SMALL)
