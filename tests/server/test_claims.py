"""The routes about claims and leases, over an embedded API with a scheduler at work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.scheduler.conftest import server, stage
from tests.scheduler.stage import Stage, open_server, open_stage

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.kubernetes import GPU_CLAIMS, LEASES, Connection, KubeClient
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.model.periods import AllocationPeriod
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.claim_view import ClaimView, WatchedState
from gpufleet.server.routes.scheduling.claims import claim_routes
from gpufleet.server.routes.scheduling.fit import fit_routes
from gpufleet.server.routes.scheduling.waiting import waiting_routes
from gpufleet.server.start_times import StartTimes
from gpufleet.sources.kubernetes import KubernetesSource
from kubelite import KubeLite

__all__ = ["server", "stage"]


@asynccontextmanager
async def watched(server: KubeLite) -> AsyncIterator[KubernetesSource]:
    """The source of a server, in sync with the API."""
    async with KubeClient(Connection(server.url, token=server.token)) as client:
        source = KubernetesSource(client, Fleet("default"))
        running = asyncio.create_task(source.run())
        try:
            await source.synced()
            yield source
        finally:
            running.cancel()
            await asyncio.wait([running])


class Unkept:
    """Keeps no calibration."""

    async def save(self, cluster: str, estimates: bytes) -> bool:
        return True

    async def load(self, cluster: str) -> bytes | None:
        return None


@asynccontextmanager
async def api(source: KubernetesSource) -> AsyncIterator[httpx.AsyncClient]:
    """The claim routes over two clusters, of which only `default` is on Kubernetes."""
    async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
        clusters = Clusters(
            [Cluster(name, fleet := Fleet(name), Listing(fleet), metrics) for name in ("default", "slurm")]
        )
        view = ClaimView(WatchedState(source).read)

        async def periods(start: float, end: float, limit: int) -> list[AllocationPeriod]:
            return []

        starts = {
            "default": StartTimes(
                "default", view.ledger, periods, Unkept(), lambda: list(source.gpu_queues.cache)
            )
        }
        views = {"default": view}
        routes = [
            *claim_routes(clusters, views, starts),
            *waiting_routes(clusters, starts),
            *fit_routes(clusters, views, starts),
        ]
        transport = httpx.ASGITransport(create_app(Api(routes=routes)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.fixture
async def source(server: KubeLite, stage: Stage) -> AsyncIterator[KubernetesSource]:
    async with watched(server) as source:
        yield source


@pytest.fixture
async def client(source: KubernetesSource) -> AsyncIterator[httpx.AsyncClient]:
    async with api(source) as client:
        yield client


async def rows(client: httpx.AsyncClient, path: str, count: int) -> list[Any]:
    """Poll a list until the watch has brought `count` rows."""
    async with asyncio.timeout(10):
        while True:
            page: dict[str, Any] = (await client.get(path)).json()["data"]
            if page["total"] == count:
                return list(page["data"])
            await asyncio.sleep(0.01)


async def test_claims_and_leases_show_who_holds_what(stage: Stage, client: httpx.AsyncClient) -> None:
    await stage.node("a")
    await stage.claim("two", 2)
    await stage.claim("idle")
    pod = await stage.pod("p", "two")
    await stage.schedule(pod)
    bound = await rows(client, "/api/claims?phase=Bound&namespace=default", 1)
    assert [row["name"] for row in bound] == ["two"]
    two = (await rows(client, "/api/claims", 2))[1]
    assert (two["name"], two["phase"], two["allocated"]) == ("two", "Bound", "a:0,1")
    assert two["allocations"][0]["podName"] == "p"
    assert (await client.get("/api/claims?phase=")).json()["data"]["total"] == 2
    wrong = await client.get("/api/claims?phase=nonsense")
    assert (wrong.status_code, wrong.json()["message"]) == (
        400,
        "parameter phase: 'nonsense' is not valid; it takes one of Bound, Failed, Pending, Reserved",
    )
    leases = await rows(client, "/api/leases?node=a", 2)
    assert [(row["name"], row["gpu"], row["foreign"]) for row in leases] == [
        ("gpu-a-0", 0, False),
        ("gpu-a-1", 1, False),
    ]
    assert leases[0]["holders"][0]["podName"] == "p"
    page = (await client.get("/api/leases?pageNum=2&pageSize=1")).json()["data"]
    assert ([row["gpu"] for row in page["data"]], page["total"]) == ([1], 2)


async def test_explain_says_why_and_what_would_help(
    stage: Stage, source: KubernetesSource, client: httpx.AsyncClient
) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("four", 4)
    await stage.pod("p", "four")
    await stage.until(lambda: len(source.pods.cache) == 1)
    await stage.until(lambda: [len(each.status.devices) for each in source.node_statuses.cache] == [2])
    await rows(client, "/api/claims", 1)
    body = (await client.get("/api/claims/default/four/explain")).json()
    assert body["data"]["waiting"] is True
    assert body["data"]["sentence"] == "0/1 nodes fit: 1 has fewer than 4 GPUs"
    assert "ask for 2 instead of 4 (then it fits on a)" in body["data"]["remedies"]
    missing = await client.get("/api/claims/default/none/explain")
    assert (missing.status_code, missing.json()["code"]) == (404, 404)


async def test_the_queue_says_when_units_are_expected_to_start(
    stage: Stage, source: KubernetesSource, client: httpx.AsyncClient
) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("two", 2)
    first = await stage.pod("first", "two")
    await stage.schedule(first)
    await stage.claim("next", 2)
    await stage.pod("second", "next")
    await stage.until(lambda: len(source.pods.cache) == 2)
    await stage.until(lambda: [len(each.status.devices) for each in source.node_statuses.cache] == [2])
    await rows(client, "/api/claims", 2)
    await rows(client, "/api/leases", 2)
    [unit] = (await client.get("/api/queue")).json()["data"]["data"]
    assert (unit["namespace"], unit["name"], unit["gpus"]) == ("default", "default/second", 2.0)
    found = unit["estimate"]
    assert (found["position"], found["waitsFor"]) == (1, "2 free GPUs")
    assert found["earliestStart"] <= found["expectedStart"] <= found["latestStart"]
    why = (await client.get("/api/claims/default/next/explain")).json()["data"]
    assert why["estimate"] == found
    what_if = (await client.get("/api/queue/estimate?gpus=1")).json()["data"]
    assert what_if["position"] == 2
    impossible = (await client.get("/api/queue/estimate?gpus=3")).json()["data"]
    assert impossible["expectedStart"] is None
    assert "there is none" in impossible["waitsFor"]
    assert (await client.get("/api/queue?cluster=slurm")).status_code == 404


async def test_leases_are_found_by_namespace_and_by_part_of_a_name(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    await stage.node("a", gpus=1)
    await stage.node("b", gpus=1)
    for name in ("first", "second"):
        await stage.claim(name)
        await stage.schedule(await stage.pod(f"pod-{name}", name))
    await rows(client, "/api/leases", 2)
    assert [row["node"] for row in await rows(client, "/api/leases?search=B", 1)] == ["b"]
    [lease] = await rows(client, "/api/leases?search=pod-fir", 1)
    assert lease["holders"][0]["claim"] == "first"
    await rows(client, "/api/leases?namespace=default", 2)
    await rows(client, "/api/leases?namespace=other", 0)
    await rows(client, "/api/leases?foreign=true", 0)
    await rows(client, "/api/leases?foreign=false&search=second", 1)


async def fit_of(client: httpx.AsyncClient, query: str) -> dict[str, Any]:
    answer = await client.get(f"/api/queue/fit?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    return found


async def test_what_would_fit_honours_taints_cpu_and_memory(
    stage: Stage, source: KubernetesSource, client: httpx.AsyncClient
) -> None:
    room: dict[str, Any] = {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "10"}}
    await stage.node("big", gpus=4, **room)
    await stage.node("small", gpus=2, **room)
    taint = {"spec": {"taints": [{"key": "team", "value": "nlp", "effect": "NoSchedule"}]}}
    await stage._patch("/api/v1/nodes/big", taint)
    await stage.until(lambda: len(source.nodes.cache) == 2)
    await stage.until(lambda: any(node.spec.taints for node in source.nodes.cache))
    await stage.until(
        lambda: sorted(len(each.status.devices) for each in source.node_statuses.cache) == [2, 4]
    )
    two = await fit_of(client, "gpus=2")
    assert (two["fits"], two["totalNodes"], two["nodes"]) == (True, 1, [{"name": "small", "free": 2}])
    four = await fit_of(client, "gpus=4")
    assert (four["fits"], four["estimate"]["position"]) == (False, 1)
    assert four["reasons"] == {
        "has fewer than 4 GPUs": 1,
        "has a taint that the pod does not tolerate": 1,
    }
    assert (await fit_of(client, "gpus=4&tolerations=team"))["nodes"] == [{"name": "big", "free": 4}]
    assert [node["name"] for node in (await fit_of(client, "gpus=1&tolerations=*"))["nodes"]] == [
        "small",
        "big",
    ]
    assert not (await fit_of(client, "gpus=1&cpu=9"))["fits"]
    assert not (await fit_of(client, "gpus=1&memory=33Gi"))["fits"]
    assert (await fit_of(client, "gpus=1&cpu=8&memory=32Gi"))["fits"]
    pods = await fit_of(client, "gpus=1&pods=3&cpu=3")
    assert (pods["fits"], pods["placed"], pods["sentence"]) == (False, 2, "2 of 3 pods fit now")
    wrong = await client.get("/api/queue/fit?cpu=lots")
    assert wrong.status_code == 400
    assert "parameter cpu: 'lots' is not valid" in wrong.json()["message"]
    assert (await client.get("/api/queue/fit?cluster=slurm")).status_code == 404


async def test_explain_counts_the_devices_of_resource_claims(server: KubeLite, stage: Stage) -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    for kind, scope in (("ResourceClaim", "Namespaced"), ("ResourceSlice", "Cluster")):
        names = {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind}
        spec = {"group": "resource.k8s.io", "scope": scope, "names": names, "versions": [version]}
        made = {"metadata": {"name": f"{names['plural']}.resource.k8s.io"}, "spec": spec}
        await stage.client.write_json("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
    await stage.node("a", gpus=1)
    device = {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}}}
    driver = {"driver": "gpu.nvidia.com", "nodeName": "a", "pool": {"name": "a"}, "devices": [device]}
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    await stage.client.write_json("POST", slices, {"metadata": {"name": "a"}, "spec": driver})
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    await stage.client.write_json("POST", claims, {"metadata": {"name": "theirs"}, "status": status})
    await stage.claim("one")
    await stage.pod("p", "one")
    async with watched(server) as source, api(source) as client:
        await stage.until(lambda: len(source.resource_claims.cache) == len(source.claims.cache) == 1)
        await stage.until(lambda: len(source.resource_slices.cache) == len(source.pods.cache) == 1)
        await stage.until(lambda: [len(each.status.devices) for each in source.node_statuses.cache] == [1])
        body = (await client.get("/api/claims/default/one/explain")).json()
    assert body["data"]["waiting"] is True
    assert body["data"]["sentence"] == "0/1 nodes fit: 1 has no free GPU"


async def test_a_cluster_without_kubernetes_has_no_claims(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/claims?cluster=slurm")).json()["data"] == {"data": [], "total": 0}
    assert (await client.get("/api/leases?cluster=slurm")).json()["data"]["total"] == 0
    assert (await client.get("/api/claims/a/b/explain?cluster=slurm")).status_code == 404
    assert (await client.get("/api/claims?cluster=nowhere")).status_code == 404


async def test_a_cluster_without_our_kinds_has_no_claims_and_shows_its_leases() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as kube:
        lease = new_lease("default", "a", 0, {"uid-of-p": LeaseHolder(pod="p")}, "", datetime.now(UTC))
        await kube.create(LEASES, lease)
        async with watched(server) as source, api(source) as client:
            assert (await client.get("/api/claims")).json()["data"] == {"data": [], "total": 0}
            leases = (await client.get("/api/leases")).json()["data"]
            assert [row["name"] for row in leases["data"]] == ["gpu-a-0"]
            why = await client.get("/api/claims/default/x/explain")
            assert (why.status_code, why.json()["message"]) == (
                404,
                "this cluster has no GpuClaims: the CRDs of chart gpu-scheduler are not installed",
            )


async def test_the_answers_come_from_the_watches_without_a_request_to_the_kubernetes_api() -> None:
    async with open_server() as server, open_stage(server) as stage:
        await stage.node("a", gpus=2)
        await stage.claim("four", 4)
        await stage.pod("p", "four")
        async with watched(server) as source, api(source) as client:
            await server.stop()
            assert [row["name"] for row in await rows(client, "/api/claims", 1)] == ["four"]
            assert (await client.get("/api/leases")).json()["data"]["total"] == 0
            body = (await client.get("/api/claims/default/four/explain")).json()
            assert body["data"]["sentence"] == "0/1 nodes fit: 1 has fewer than 4 GPUs"


async def test_deleted_claims_and_leases_disappear(stage: Stage, client: httpx.AsyncClient) -> None:
    await stage.node("a")
    await stage.claim("one")
    await stage.group("pair", 2)
    pod = await stage.pod("p", "one")
    await stage.schedule(pod)
    await rows(client, "/api/leases", 1)
    await stage.delete(pod)
    await stage.client.delete(GPU_CLAIMS, "one", "default")
    await rows(client, "/api/leases", 0)
    await rows(client, "/api/claims", 0)


async def test_claims_of_gangs_are_found_with_the_size_that_they_say(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    size = {"gpu.scheduling/gang-size": "4"}
    await stage.claim("alone")
    await stage.claim("one", spec={"gangRef": "quartet"}, annotations=size)
    await stage.claim("two", spec={"gangRef": "pair"})
    found = await rows(client, "/api/claims?gang=*", 2)
    assert [(row["name"], row["gang"], row["gangSize"]) for row in found] == [
        ("one", "quartet", 4),
        ("two", "pair", None),
    ]
    named = (await client.get("/api/claims?name=TW")).json()["data"]
    assert (named["total"], [row["name"] for row in named["data"]]) == (1, ["two"])
    pair = (await client.get("/api/claims?gang=pair")).json()["data"]
    assert [row["name"] for row in pair["data"]] == ["two"]
