"""The aggregation routes over a real store with two known hours."""

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.accounting.histories import HOUR, STEP, Prometheus, Server, Time, World, pod

from gpufleet.accounting.current_hour import CurrentHour
from gpufleet.model.node import FleetNode
from gpufleet.model.workload import OwnerRef
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.accounting.aggregation import aggregation_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.store import Store


@pytest.fixture
async def recorded(store: Store) -> Server:
    return await record_known_hours(store)


async def record_known_hours(store: Store) -> Server:
    """Record two hours of the cluster `prod`, with snapshots at their starts and ends."""
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=HOUR - 9000.0)
    job = OwnerRef("job", "PyTorchJob", "bert")
    facts = {"labels": {"team": "nlp"}, "annotations": {"cost-center": "cc-1"}}
    world.pods["p0"] = pod("p0", "a", 2, HOUR + 0.0, held=(0, 1), owner=job, **facts)
    world.pods["p1"] = pod("p1", "a", 2, HOUR + 1800.0, held=(2, 3), owner=job, **facts)
    world.pods["idle"] = pod("idle", "a", 1, HOUR + 0.0, held=(4,), namespace="prod")
    world.pods["system"] = pod("system", "a", 1, HOUR + 0.0, held=(5,), namespace="kube-system")
    busy = {("a", gpu, HOUR + m * STEP): 60.0 + gpu for gpu in range(4) for m in range(25)}
    idle = {("a", 4, HOUR + m * STEP): 1.0 for m in range(25)}
    watts = {("a", gpu, HOUR + m * STEP): 300.0 + gpu for gpu in range(6) for m in range(25)}
    time = Time(HOUR + 10.0)
    server = Server(world, store, Prometheus({**busy, **idle}, watts), time)
    await server.round()
    for seconds in (3610.0, 7250.0):
        server.watch(HOUR + seconds)
        await server.round()
    return server


@pytest.fixture
async def http(store: Store, recorded: Server) -> AsyncIterator[httpx.AsyncClient]:
    routes = [
        *aggregation_routes(
            store,
            "prod",
            lambda: HOUR + 7300.0,
            current={"prod": CurrentHour(recorded.account, store, lambda: HOUR + 7300.0)},
        ),
        *report_routes(store, "prod", lambda: HOUR + 7300.0),
    ]
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    base = "http://127.0.0.1/api/v1/gpu-aggregation"
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield client
