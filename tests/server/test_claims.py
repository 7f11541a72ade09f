"""The routes about claims and leases, over an embedded API with a scheduler at work."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count

import httpx
import pytest
from tests.scheduler.stage import Stage, open_server, open_stage

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.listing import Listing
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import LEASES, Connection, KubeClient
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.claim_view import KubernetesClaimView
from gpufleet.server.routes.claims import claim_routes
from kubelite import KubeLite


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_server() as server, open_stage(server) as stage:
        yield stage


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
        clusters = Clusters(
            [Cluster(name, fleet := Fleet(name), Listing(fleet), metrics) for name in ("default", "slurm")]
        )
        hours = count(0, 3600)
        desk = KubernetesClaimView(stage.client, "default", clock=lambda: float(next(hours)))
        app = create_app(Api(routes=claim_routes(clusters, {"default": desk})))
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def test_claims_and_leases_show_who_holds_what(stage: Stage, client: httpx.AsyncClient) -> None:
    await stage.node("a")
    await stage.claim("two", 2)
    await stage.claim("idle")
    pod = await stage.pod("p", "two")
    await stage.schedule(pod)
    await stage.until(lambda: stage.desk.ledger.claims["default", "two"].status.phase == "Bound")
    body = (await client.get("/api/claims")).json()
    assert (body["code"], body["data"]["total"]) == (0, 2)
    two = body["data"]["data"][1]
    assert (two["name"], two["phase"], two["allocated"]) == ("two", "Bound", "a:0,1")
    assert two["allocations"][0]["podName"] == "p"
    bound = (await client.get("/api/claims?phase=Bound&namespace=default")).json()["data"]
    assert [row["name"] for row in bound["data"]] == ["two"]
    assert (await client.get("/api/claims?phase=")).json()["data"]["total"] == 2
    wrong = await client.get("/api/claims?phase=nonsense")
    assert (wrong.status_code, wrong.json()["message"]) == (
        400,
        "parameter phase: 'nonsense' is not valid; it takes one of Bound, Failed, Pending, Reserved",
    )
    leases = (await client.get("/api/leases?node=a")).json()["data"]
    assert [(row["name"], row["gpu"], row["foreign"]) for row in leases["data"]] == [
        ("gpu-a-0", 0, False),
        ("gpu-a-1", 1, False),
    ]
    assert leases["data"][0]["holders"][0]["podName"] == "p"
    page = (await client.get("/api/leases?pageNum=2&pageSize=1")).json()["data"]
    assert ([row["gpu"] for row in page["data"]], page["total"]) == ([1], 2)


async def test_explain_says_why_and_what_would_help(stage: Stage, client: httpx.AsyncClient) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("four", 4)
    await stage.pod("p", "four")
    body = (await client.get("/api/claims/default/four/explain")).json()
    assert body["data"]["waiting"] is True
    assert body["data"]["sentence"] == "0/1 nodes fit: 1 has fewer than 4 GPUs"
    assert "ask for 2 instead of 4 (then it fits on a)" in body["data"]["remedies"]
    missing = await client.get("/api/claims/default/none/explain")
    assert (missing.status_code, missing.json()["code"]) == (404, 404)


async def test_a_cluster_without_kubernetes_has_no_claims(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/claims?cluster=slurm")).json()["data"] == {"data": [], "total": 0}
    assert (await client.get("/api/leases?cluster=slurm")).json()["data"]["total"] == 0
    assert (await client.get("/api/claims/a/b/explain?cluster=slurm")).status_code == 404
    assert (await client.get("/api/claims?cluster=nowhere")).status_code == 404


async def test_a_cluster_without_our_kinds_has_no_claims_and_shows_its_leases() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url)) as api:
        lease = new_lease("default", "a", 0, {"uid-of-p": LeaseHolder(pod="p")}, "", datetime.now(UTC))
        await api.create(LEASES, lease)
        async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
            cluster = Cluster("bare", fleet := Fleet("bare"), Listing(fleet), metrics)
            routes = claim_routes(Clusters([cluster]), {"bare": KubernetesClaimView(api, "default")})
            transport = httpx.ASGITransport(create_app(Api(routes=routes)))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                assert (await client.get("/api/claims")).json()["data"] == {"data": [], "total": 0}
                leases = (await client.get("/api/leases")).json()["data"]
                assert [row["name"] for row in leases["data"]] == ["gpu-a-0"]
                why = await client.get("/api/claims/default/x/explain")
                assert (why.status_code, why.json()["message"]) == (
                    404,
                    "this cluster has no GpuClaims: the CRDs of chart gpu-scheduler are not installed",
                )


async def test_claims_of_gangs_are_found_with_the_size_that_they_say(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    size = {"gpu.scheduling/gang-size": "4"}
    await stage.claim("alone")
    await stage.claim("one", spec={"gangRef": "quartet"}, annotations=size)
    await stage.claim("two", spec={"gangRef": "pair"})
    found = (await client.get("/api/claims?gang=*")).json()["data"]["data"]
    assert [(row["name"], row["gang"], row["gangSize"]) for row in found] == [
        ("one", "quartet", 4),
        ("two", "pair", None),
    ]
    pair = (await client.get("/api/claims?gang=pair")).json()["data"]
    assert [row["name"] for row in pair["data"]] == ["two"]
