"""A running server whose Kubernetes API has objects of a hostile user of one namespace.

What a user may create costs about as much as harmless objects of the same number do in the same run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from tests.attacks.conftest import Target, max_probe_seconds
from tests.attacks.test_upstreams import serving
from tests.waiting import wait_until

from gpufleet.kubernetes.crds.generate import definitions
from kubelite import KubeLite

pytestmark = pytest.mark.long
Manifest = dict[str, Any]


def pod(name: str, owner: Manifest | None = None, **annotations: str) -> Manifest:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    return {
        "metadata": {
            "name": name,
            "annotations": annotations,
            "ownerReferences": [owner] if owner else [],
        },
        "spec": {"containers": [{"name": "c", "image": "i", "resources": limits}]},
    }


class Api:
    """Writes objects like a user."""

    def __init__(self, server: KubeLite, session: aiohttp.ClientSession, folder: Path) -> None:
        self.server, self._session, self.folder = server, session, folder

    async def post(self, path: str, body: Manifest) -> Manifest:
        async with self._session.post(self.server.url + path, json=body) as answer:
            assert answer.status in (200, 201), await answer.text()
            made: Manifest = await answer.json()
            return made

    async def create(self, namespace: str, *pods: Manifest) -> list[Manifest]:
        return [await self.post(f"/api/v1/namespaces/{namespace}/pods", each) for each in pods]

    async def delete(self, namespace: str, names: list[str]) -> None:
        for name in names:
            url = f"{self.server.url}/api/v1/namespaces/{namespace}/pods/{name}"
            async with self._session.delete(url, json={"gracePeriodSeconds": 0}) as answer:
                assert answer.status == 200, await answer.text()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with KubeLite() as server, aiohttp.ClientSession(headers=server.headers) as session:
        api = Api(server, session, tmp_path)
        for definition in definitions():
            await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        for namespace in ("a", "zz"):
            await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        server.write_kubeconfig(tmp_path / "kubeconfig")
        yield api


@asynccontextmanager
async def started(api: Api, database: str) -> AsyncIterator[tuple[httpx.AsyncClient, Target, float]]:
    """Run a server until it is ready; yield a client and the CPU seconds that it took."""
    context = serving(api.folder, database, "--kubeconfig", "kubeconfig")
    target = await asyncio.to_thread(context.__enter__)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{target.port}", timeout=60) as http:

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await wait_until(ready, 60)
            used = target.process.cpu_times()
            yield http, target, used.user + used.system
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def total(http: httpx.AsyncClient, **query: str) -> int:
    found: int = (await http.get("/api/workloads", params=query)).json()["data"]["total"]
    return found


async def slowest_probe(http: httpx.AsyncClient, until: Callable[[], bool]) -> float:
    slowest = 0.0
    while not until():
        begun = time.monotonic()
        assert (await http.get("/livez")).status_code == 200
        slowest = max(slowest, time.monotonic() - begun)
        await asyncio.sleep(0.01)
    return slowest


async def test_pods_that_own_one_another_cost_as_much_as_others(api: Api, postgres_url: str) -> None:
    number = 1500
    names = [f"p{9999 - each}" for each in range(number)]  # the list has the bottom of the chain first
    await api.create("a", *(pod(name) for name in names))
    async with started(api, postgres_url) as (http, _, usual):
        assert await total(http) == number
    await api.delete("a", names)
    above: Manifest | None = None
    for name in names:
        (made,) = await api.create("a", pod(name, above))
        uid = made["metadata"]["uid"]
        above = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    async with started(api, postgres_url) as (http, _, attacked):
        assert attacked < usual * 1.1 + 0.1, (usual, attacked)  # the clock has a resolution of 0.01 s
        found = (await http.get("/api/workloads", params={"pageSize": "1"})).json()["data"]
        assert found["total"] == number - 10, "eleven levels are one workload"
        assert above is not None
        for path in ("", "/hierarchy"):
            assert (await http.get(f"/api/workloads/{above['uid']}{path}")).status_code == 200
        # A change of the top, while probes are answered.
        quiet = await slowest_probe(http, _after(1.0))
        async with aiohttp.ClientSession(
            headers={**api.server.headers, "Content-Type": "application/merge-patch+json"}
        ) as session:
            url = f"{api.server.url}/api/v1/namespaces/a/pods/{names[0]}"
            patch = {"metadata": {"ownerReferences": [{**above, "name": "other"}]}}
            async with session.patch(url, json=patch) as answer:
                assert answer.status == 200, await answer.text()
        assert await slowest_probe(http, _after(1.0)) < max(quiet * 3, 0.05, max_probe_seconds() / 20)


async def test_large_annotations_of_one_namespace_hide_no_other(api: Api, postgres_url: str) -> None:
    await api.create("zz", pod("mine", team="nlp"))
    async with started(api, postgres_url) as (http, _, usual):
        assert await total(http, namespace="zz") == 1
    large = "x" * 240_000
    await api.create("a", *(pod(f"p{number}", user=large, other="") for number in range(300)))
    async with started(api, postgres_url) as (http, target, attacked):
        assert await total(http, namespace="zz") == 1
        assert await total(http) == 301
        health = (await http.get("/api/healthz")).json()["data"]["dependencies"]["kubernetes"]
        assert health["state"] == "ok", health
        assert len((await http.get("/api/workloadMetadata")).content) < 100_000
        assert attacked < usual * 3 + 1, (usual, attacked)
        assert target.process.memory_info().rss < 400 << 20


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
