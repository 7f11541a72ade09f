"""The forecast rests on the time in which a server followed the cluster."""

import httpx
from tests.accounting.histories import HOUR, Prometheus, Server, Time, World, pod

from gpufleet.model.node import FleetNode
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.accounting.forecast import forecast_routes
from gpufleet.store import Store

DAY = 24 * 3600.0


async def test_workloads_that_are_older_than_accounting_do_not_look_like_growth(store: Store) -> None:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=HOUR - 30 * DAY)
    world.pods["old"] = pod("old", "a", 1, HOUR - 20 * DAY)  # those that ended meanwhile are not known
    world.pods["new"] = pod("new", "a", 7, HOUR - 60.0)
    time = Time(HOUR + 10.0)
    server = Server(world, store, Prometheus(), time)
    await server.round()
    for hours in range(8, 89, 8):
        server.watch(HOUR + 3600.0 * hours + 200)
        await server.round()
    app = create_app(Api(routes=forecast_routes(store, "prod", time)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        [group] = (await client.get("/api/forecast?days=3")).json()["data"]["data"]
    points = group["points"]
    assert len(points) == 72
    assert {(point["low"], point["expected"], point["high"]) for point in points} == {(8.0, 8.0, 8.0)}
