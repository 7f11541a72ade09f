"""Accounting as the server wires it: over a real API, a real database, one server of two."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from gpufleet.errors import SettingsError
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.runtime.settings import (
    AccountingSettings,
    KubernetesSettings,
    Settings,
    StoreSettings,
    load_settings,
)
from gpufleet.server.wiring.accounting import rollup_plan, snapshot_step
from gpufleet.server.wiring.assemble import open_components
from gpufleet.store import Store
from kubelite import KubeLite

GPU = "nvidia.com/gpu"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        amounts = {GPU: "4", "cpu": "8"}
        node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "a"},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await client.write_json("POST", "/api/v1/nodes", node)
        await client.write_json("PUT", "/api/v1/nodes/a/status", node)
        server.write_kubeconfig(tmp_path / "kubeconfig")
        yield client


@pytest.fixture
def settings(store_settings: StoreSettings, tmp_path: Path, api: KubeClient) -> Settings:
    kube = replace(load_settings({}, {})[KubernetesSettings], kubeconfig=tmp_path / "kubeconfig")
    return load_settings({}, {}).replace(store_settings, kube)


def pod(name: str) -> dict[str, Any]:
    limits = {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i", "resources": limits}]},
    }


async def held(store: Store) -> list[tuple[int, bool]]:
    rows = await store.allocation_periods.overlapping("default", 0.0, 1e12)
    return [(row.gpus, bool(row.end)) for row in rows]


async def test_one_of_two_servers_writes_and_ended_workloads_come_back(
    settings: Settings, api: KubeClient
) -> None:
    async with AsyncExitStack() as exit_stack:
        first = await open_components(settings, exit_stack)
        await open_components(settings, exit_stack)
        await api.write_json("POST", "/api/v1/namespaces/default/pods", pod("p"))
        assert await wait_until(lambda: held(first.store)) == [(2, False)]
        for source in ("snapshots", "hours"):
            line = f'gpufleet_refresh_age_seconds{{cluster="default",source="{source}"}} '
            assert line in first.metrics.exposition().decode()
        capacities = await first.store.capacity_periods.overlapping("default", 0.0, 1e12)
        assert [(row.node, row.gpus) for row in capacities] == [("a", 4)]
        await api.write_json("DELETE", "/api/v1/namespaces/default/pods/p", {"gracePeriodSeconds": 0})

        async def over() -> bool:
            return await held(first.store) == [(2, True)]

        await wait_until(over)
        await wait_until(lambda: first.store.ended.newest("default", 10))
    async with AsyncExitStack() as exit_stack:
        later = await open_components(settings, exit_stack)
        (ended,) = later.clusters.default.fleet.ended().values()
        assert ended.workload.name == "p"


def test_a_period_that_does_not_fit_into_an_hour_is_refused() -> None:
    assert snapshot_step(AccountingSettings(snapshot_period=600.0)) == 600
    with pytest.raises(SettingsError, match="must divide an hour evenly"):
        snapshot_step(AccountingSettings(snapshot_period=420.0))


def test_a_label_key_that_is_named_twice_counts_once() -> None:
    plan = rollup_plan(AccountingSettings(label_keys=("team", "app", "team"), annotation_keys=("cc", "cc")))
    assert (plan.label_keys, plan.annotation_keys) == (("team", "app"), ("cc",))
