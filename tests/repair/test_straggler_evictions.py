"""Stragglers are evicted with their gang only if their pods ask for it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from tests.repair.conftest import NAMESPACE, Cluster
from tests.segments import segmented

from gpufleet.kubernetes.annotations import EVICT_STRAGGLER
from gpufleet.kubernetes.client.resources import POD_DISRUPTION_BUDGETS
from gpufleet.repair.cluster_state import ClusterState
from gpufleet.repair.controller import Controller
from gpufleet.repair.straggler_evictions import StragglerEvictions
from gpufleet.repair.views import Policy, RepairRules
from gpufleet.runtime.settings import RepairSettings

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """A gpufleet server that has found train-0 ten minutes ago, after many others; it wants a token.

    Its answer of 172 KB arrives in many segments.
    """

    async def stragglers(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer secret" or request.query["cluster"] != "prod":
            return web.Response(status=401)
        since = (NOW - timedelta(minutes=10)).isoformat()
        row = {"namespace": "jobs", "pod": "train-0", "since": since, "message": "power 200 W", "rank": 0}
        others = [{**row, "pod": f"other-{number}"} for number in range(1500)]
        return web.json_response({"code": 0, "data": [*others, row]})

    app = web.Application()
    app.router.add_get("/api/stragglers", stragglers)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with segmented("127.0.0.1", runner.addresses[0][1], pause=0.0) as url:
        yield url
    await runner.cleanup()


@pytest.mark.parametrize(
    ("asked", "policy", "budget", "gone"),
    [
        ("300", Policy.DRAIN, None, {"train-0", "train-1"}),
        ("900", Policy.DRAIN, None, set()),
        ("", Policy.DRAIN, None, set()),
        ("300", Policy.CORDON, None, set()),
        ("300", Policy.DRAIN, 1, set()),
    ],
    ids=["asked", "has more time", "not asked", "policy cordon", "disruption budget"],
)
async def test_a_straggler_leaves_with_its_gang_if_it_asks_for_it(
    cluster: Cluster,
    server: str,
    tmp_path: Path,
    asked: str,
    policy: Policy,
    budget: int | None,
    gone: set[str],
) -> None:
    for name in ("a", "b"):
        await cluster.add_node(name)
    annotations = {EVICT_STRAGGLER: asked} if asked else {}
    await cluster.add_pod("train-0", "a", 0, gang="train", **annotations)
    await cluster.add_pod("train-1", "b", 0, gang="train")
    await cluster.add_pod("other", "a", 1, **annotations)
    if budget is not None:
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"scheduling.x-k8s.io/pod-group": "train"}}}
        body = {"metadata": {"name": "train", "namespace": "jobs"}, "spec": spec}
        made = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **body}
        await cluster.client.write_json("POST", POD_DISRUPTION_BUDGETS.path("jobs"), made)
    (tmp_path / "token").write_text("secret\n")
    settings = RepairSettings(server_url=server, server_cluster="prod", server_token_file=tmp_path / "token")
    state = ClusterState(cluster.client, NAMESPACE)
    controller = Controller(cluster.client, state, RepairRules(policy=policy), NAMESPACE, {})
    tasks = [asyncio.create_task(each.run()) for each in (*state.required(), *state.optional())]
    for reflector in (*state.required(), state.pod_budgets):
        await reflector.synced()
    await StragglerEvictions(settings, state, lambda: NOW, controller.evict_straggler).evict()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pods = await cluster.pods()
    left = {name for name, pod in pods.items() if pod.metadata.deletion_timestamp is None}
    assert {"train-0", "train-1", "other"} - left == gone
