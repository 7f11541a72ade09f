"""The clusters of a server, opened over real APIs and a real database."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.cli.cluster_parts import names_an_api
from gpufleet.cli.wiring import open_parts
from gpufleet.errors import NotFound, Unavailable
from gpufleet.kube import Connection, KubeClient
from gpufleet.kubelite import KubeLite
from gpufleet.settings import KubernetesSettings, Settings, StoreSettings, load_settings


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Path]:
    """The kubeconfig of an API with one node."""
    async with KubeLite() as server, KubeClient(Connection(server.url)) as client:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
        await client.write_json("POST", "/api/v1/nodes", node)
        server.write_kubeconfig(tmp_path / "kubeconfig")
        yield tmp_path / "kubeconfig"


@pytest.fixture
def settings(store_settings: StoreSettings) -> Settings:
    return load_settings({}, {}).replace(store_settings)


def on(settings: Settings, **kubeconfigs: Path) -> Settings:
    """The settings with a cluster for each kubeconfig."""
    return settings.with_clusters(
        {
            name: settings.replace(replace(settings[KubernetesSettings], kubeconfig=path))
            for name, path in kubeconfigs.items()
        }
    )


def nowhere(folder: Path) -> Path:
    """A kubeconfig of an API that nobody serves."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    path = folder / "nowhere"
    path.write_text(
        f"clusters: [{{name: n, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
        "contexts: [{name: n, context: {cluster: n, user: n}}]\n"
        "users: [{name: n, user: {}}]\ncurrent-context: n\n"
    )
    return path


async def test_a_cluster_is_complete_when_the_server_starts(settings: Settings, api: Path) -> None:
    async with AsyncExitStack() as closing:
        parts = await open_parts(on(settings, here=api), closing)
        assert parts.clusters.default.name == "here"
        assert list(parts.clusters.default.fleet.views()) == ["a"]
        assert await parts.probes["kubernetes"]() == "1 nodes, 0 pods"
        assert await parts.probes["metrics"]() == "reads embedded"
        assert (await parts.probes["store"]()).startswith("PostgreSQL ")
        assert "kubernetes of here" in parts.background.running()
        with pytest.raises(NotFound, match="there are: here"):
            parts.clusters.get("elsewhere")


async def test_an_api_that_is_away_costs_only_its_own_cluster(
    settings: Settings, api: Path, tmp_path: Path
) -> None:
    async with AsyncExitStack() as closing:
        parts = await open_parts(on(settings, here=api, away=nowhere(tmp_path)), closing)
        assert list(parts.clusters.get("here").fleet.views()) == ["a"]
        assert list(parts.clusters.get("away").fleet.views()) == []
        with pytest.raises(Unavailable, match="cluster away: "):
            await parts.probes["kubernetes"]()


async def test_without_an_api_there_is_one_empty_cluster(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with AsyncExitStack() as closing:
        parts = await open_parts(settings, closing)
        assert [cluster.name for cluster in parts.clusters] == ["default"]
        assert "kubernetes" not in parts.probes


def test_an_api_is_named_by_a_setting_by_the_pod_or_by_kubectls_own_file(tmp_path: Path) -> None:
    nothing = KubernetesSettings()
    assert not names_an_api(nothing, {"HOME": str(tmp_path)})
    assert names_an_api(replace(nothing, context="prod"), {"HOME": str(tmp_path)})
    assert names_an_api(nothing, {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").touch()
    assert names_an_api(nothing, {"HOME": str(tmp_path)})
