"""The clusters of a server, opened over real APIs and a real database."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from tests.kubernetes.faulty_server import FaultyServer, status
from tests.waiting import wait_until

from gpufleet.errors import NotFound, Unavailable
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.runtime.settings import (
    KubernetesSettings,
    Settings,
    SlurmSettings,
    StoreSettings,
    load_settings,
)
from gpufleet.server.app import Api, create_app
from gpufleet.server.wiring.assemble import open_components
from gpufleet.server.wiring.clusters import has_kubernetes
from kubelite import KubeLite, User

ROW = {"metric": "loss", "value": 1.5, "timestamp": 1_700_000_000_000}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Path]:
    """The kubeconfig of an API with one node."""
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
        await client.write_json("POST", "/api/v1/nodes", node)
        server.write_kubeconfig(tmp_path / "kubeconfig")
        yield tmp_path / "kubeconfig"


@pytest.fixture
def settings(store_settings: StoreSettings) -> Settings:
    return load_settings({}, {}).replace(store_settings)


def with_kubeconfigs(settings: Settings, **kubeconfigs: Path) -> Settings:
    """The settings with a cluster for each kubeconfig."""
    return settings.with_clusters(
        {
            name: settings.replace(replace(settings[KubernetesSettings], kubeconfig=path))
            for name, path in kubeconfigs.items()
        }
    )


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def unreachable(folder: Path, port: int | None = None) -> Path:
    """Write the kubeconfig of an API that does not listen, or not yet."""
    port = port or free_port()
    path = folder / "nowhere"
    path.write_text(
        f"clusters: [{{name: n, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
        "contexts: [{name: n, context: {cluster: n, user: n}}]\n"
        "users: [{name: n, user: {token: t}}]\ncurrent-context: n\n"
    )
    return path


async def test_a_cluster_is_complete_when_the_server_starts(settings: Settings, api: Path) -> None:
    async with AsyncExitStack() as exit_stack:
        components = await open_components(with_kubeconfigs(settings, here=api), exit_stack)
        assert components.clusters.default.name == "here"
        assert list(components.clusters.default.fleet.views()) == ["a"]
        assert await components.probes["kubernetes"]() == "1 nodes, 0 pods"
        assert await components.probes["metrics"]() == "reads embedded"
        assert (await components.probes["store"]()).startswith("PostgreSQL ")
        assert "kubernetes/here" in components.background.running()
        with pytest.raises(NotFound, match="there are: here"):
            components.clusters.get("elsewhere")


async def test_an_unreachable_api_affects_only_its_own_cluster(
    settings: Settings, api: Path, tmp_path: Path
) -> None:
    async with AsyncExitStack() as exit_stack:
        components = await open_components(
            with_kubeconfigs(settings, here=api, away=unreachable(tmp_path)), exit_stack
        )
        assert list(components.clusters.get("here").fleet.views()) == ["a"]
        assert list(components.clusters.synced("here").fleet.views()) == ["a"]
        with pytest.raises(Unavailable, match=r"nothing is known of cluster away yet: .* no connection to"):
            components.clusters.synced("away")
        with pytest.raises(Unavailable, match="cluster away: "):
            await components.probes["kubernetes"]()


async def test_a_missing_permission_is_reported_with_its_remedy(settings: Settings, tmp_path: Path) -> None:
    server, port = FaultyServer(), free_port()
    server.refuse = lambda request: status(403, "Forbidden") if request.path == "/api/v1/nodes" else None
    async with AsyncExitStack() as exit_stack:
        await exit_stack.enter_async_context(server.serving(port=port))
        components = await open_components(
            with_kubeconfigs(settings, shut=unreachable(tmp_path, port)), exit_stack
        )
        app = create_app(Api(routes=components.routes, metrics=components.metrics))
        transport = httpx.ASGITransport(app)
        http = await exit_stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://here")
        )
        answer = await http.get("/api/nodes")
        needed = (
            "Forbidden on demand; the account needs the verbs list and watch on nodes, "
            "which the ClusterRole of chart gpufleet grants"
        )
        assert answer.status_code == 503
        assert answer.json()["message"].endswith(needed)
        with pytest.raises(Unavailable, match=needed):
            await components.probes["kubernetes"]()
        server.refuse = lambda request: None

        async def answered() -> bool:
            return (await http.get("/api/nodes")).status_code == 200

        await wait_until(answered, 60)


async def test_without_an_api_there_is_one_empty_cluster(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with AsyncExitStack() as exit_stack:
        components = await open_components(settings, exit_stack)
        assert [cluster.name for cluster in components.clusters] == ["default"]
        assert "kubernetes" not in components.probes


def test_an_api_comes_from_the_settings_the_pod_or_kubectls_config(tmp_path: Path) -> None:
    nothing = KubernetesSettings()
    assert not has_kubernetes(nothing, {"HOME": str(tmp_path)})
    assert has_kubernetes(replace(nothing, context="prod"), {"HOME": str(tmp_path)})
    assert has_kubernetes(nothing, {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").touch()
    assert has_kubernetes(nothing, {"HOME": str(tmp_path)})


STORED = ("/api/v1/gpu-aggregation/", "/api/v1/report", "/api/forecast")
"""Routes that read what was recorded: it is there, whether or not the cluster can be reached now."""


async def live_paths(http: httpx.AsyncClient) -> list[str]:
    """Return a request for each GET route with the parameter `cluster`, except those of stored data."""
    paths = []
    for path, operations in (await http.get("/openapi.json")).json()["paths"].items():
        parameters = operations.get("get", {}).get("parameters", [])
        if path.startswith(STORED) or not any(each["name"] == "cluster" for each in parameters):
            continue
        required = [each["name"] for each in parameters if each["in"] == "query" and each.get("required")]
        needed = {name: "2" if name == "end" else "1" for name in required}
        path = re.sub(r"{[^}]+}", "unknown", path)
        paths.append(f"{path}?{urlencode(needed)}")
    return paths


async def test_a_cluster_that_was_never_reached_is_not_an_empty_one(
    settings: Settings, tmp_path: Path
) -> None:
    port = free_port()
    async with AsyncExitStack() as exit_stack:
        components = await open_components(
            with_kubeconfigs(settings, late=unreachable(tmp_path, port)), exit_stack
        )
        app = create_app(Api(routes=components.routes, metrics=components.metrics))
        transport = httpx.ASGITransport(app)
        http = await exit_stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://here")
        )
        paths = await live_paths(http)
        assert len(paths) > 15
        for path in paths:
            answer = await http.get(path)
            assert (path, answer.status_code) == (path, 503), answer.text
            assert "nothing is known of cluster late yet: " in answer.text
        reported = await http.post("/api/workloads/job/trainingPerformance", json=[ROW])
        assert reported.status_code == 503, "the workload may exist"
        assert "gpufleet_nodes{" not in (await http.get("/metrics")).text

        server = await exit_stack.enter_async_context(KubeLite(port=port, tokens={"t": User()}))
        client = await exit_stack.enter_async_context(KubeClient(Connection(server.url, token=server.token)))
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
        await client.write_json("POST", "/api/v1/nodes", node)

        async def known() -> bool:
            return (await http.get("/api/nodes")).status_code != 503

        await wait_until(known, 60)
        lists = [path for path in paths if "unknown" not in path and "/api/events" not in path]
        assert {path: (await http.get(path)).status_code for path in lists} == dict.fromkeys(lists, 200)
        assert 'gpufleet_nodes{cluster="late"' in (await http.get("/metrics")).text


async def test_a_cluster_of_another_kind_has_no_claims_of_kubectls_own_cluster(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    unreachable(tmp_path).rename(tmp_path / ".kube" / "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    slurm = settings.replace(SlurmSettings(enabled=True, bin=tmp_path))
    async with AsyncExitStack() as exit_stack:
        components = await open_components(slurm, exit_stack)
        app = create_app(Api(routes=components.routes, metrics=components.metrics))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            claims, why = await http.get("/api/claims"), await http.get("/api/claims/ml/train/explain")
    for answer in (claims, why):
        assert (answer.status_code, "slurm" in answer.text.lower()) == (503, True), answer.text


async def test_debug_vars_show_queues_and_caches(settings: Settings, api: Path) -> None:
    async with AsyncExitStack() as exit_stack:
        components = await open_components(with_kubeconfigs(settings, here=api), exit_stack)
        app = create_app(
            Api(routes=components.routes, metrics=components.metrics, debug_counts=components.debug_counts)
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await http.get("/api/v1/gpu/metrics")
            seen = (await http.get("/debug/vars")).json()
    assert seen["reflector_caches"]["here"]["Node"] == 1
    assert seen["event_queues"] == {"clients": 0, "changes": 0}
    assert seen["prepared_answers"]["gpu_metrics"] == {"answers": 1, "bytes": 2}
    assert (seen["reading_caches"], seen["readings"]) == ({}, {"here": 0})


async def test_failed_reads_are_counted_for_each_source_when_they_happen(
    settings: Settings, tmp_path: Path
) -> None:
    slurm = settings.replace(SlurmSettings(enabled=True, bin=tmp_path))
    nowhere = replace(settings[KubernetesSettings], kubeconfig=unreachable(tmp_path))
    both = settings.with_clusters({"jobs": slurm, "pods": settings.replace(nowhere)})
    async with AsyncExitStack() as exit_stack:
        components = await open_components(both, exit_stack)
        before = components.metrics.exposition().decode()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await components.probes["slurm"]()
        text = components.metrics.exposition().decode()
    assert 'gpufleet_source_errors_total{cluster="jobs",source="slurm"} 1.0' in text
    count = r'gpufleet_source_errors_total{cluster="pods",source="kubernetes"} ([1-9])'
    assert re.search(count, before), before


async def test_empty_gpu_metrics_say_that_no_metric_source_is_configured(
    settings: Settings, api: Path
) -> None:
    async with AsyncExitStack() as exit_stack:
        components = await open_components(with_kubeconfigs(settings, here=api), exit_stack)
        transport = httpx.ASGITransport(create_app(Api(routes=components.routes)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            answer = (await http.get("/api/v1/gpu/metrics")).json()
    assert answer["data"] == []
    assert answer["message"].startswith("No GPU metrics: no metric source is configured")


async def test_an_unquoted_quantity_counts_as_on_a_real_api_server(settings: Settings, api: Path) -> None:
    async with AsyncExitStack() as exit_stack:
        client = await exit_stack.enter_async_context(
            KubeClient.from_settings(replace(settings[KubernetesSettings], kubeconfig=api))
        )
        container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "a", "containers": [container]},
        }
        path = "/api/v1/namespaces/default/pods"
        await client.write_json("POST", path, pod)
        stored = await client.read_json(f"{path}/p")
        components = await open_components(with_kubeconfigs(settings, here=api), exit_stack)
        workloads = components.clusters.default.fleet.workloads()
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    assert stored["spec"]["containers"][0]["resources"] == resources
    assert [(each.name, each.gpus) for each in workloads.values()] == [("p", 1)]
