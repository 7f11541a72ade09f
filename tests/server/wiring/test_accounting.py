"""Accounting as the server wires it: over a real API, a real database, one server of two."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.waiting import wait_until

from gpufleet.cli import main
from gpufleet.errors import SettingsError, StoreUnavailable
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.runtime.settings import (
    AccountingSettings,
    KubernetesSettings,
    Settings,
    StoreSettings,
    load_settings,
)
from gpufleet.scheduler.queues.expected_order import QueueRules
from gpufleet.server.wiring import leader_health
from gpufleet.server.wiring.accounting import rollup_plan, snapshot_step
from gpufleet.server.wiring.assemble import open_components
from gpufleet.server.wiring.components import Components
from gpufleet.store import Store
from gpufleet.store.postgres.leadership import holder_name
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


async def test_health_and_metrics_show_who_leads_in_which_epoch_and_how_old_the_data_is(
    settings: Settings, api: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as exit_stack:
        first = await open_components(settings, exit_stack)
        second = await open_components(settings, exit_stack)
        servers = (first, second)

        async def led() -> bool:
            return " leads (epoch 1)" in await first.probes["accounting"]()

        await wait_until(led)
        for server in servers:
            message = await server.probes["accounting"]()
            assert message.startswith(f"{holder_name()} leads (epoch 1)")
            assert "gpufleet_accounting_epoch 1.0" in server.metrics.exposition().decode()
            assert "behind" in (clock := await server.probes["clock"]()) or "ahead" in clock
        numbers = [server.metrics.exposition().decode() for server in servers]
        assert sum("gpufleet_accounting_leader 1.0" in each for each in numbers) == 1
        assert "newest snapshot 0 min ago, last hour " in message

        database = first.store.database
        database.clock = "clock_timestamp() + interval '2 days'"
        monkeypatch.setattr(leader_health, "_PATIENCE", 0.0)
        with pytest.raises(StoreUnavailable, match="no server leads the accounting"):
            await first.probes["accounting"]()
        with pytest.raises(StoreUnavailable, match=r"clock is 172800\.0 s behind the database's clock"):
            await first.probes["clock"]()
        ahead = first.metrics.registry.get_sample_value("gpufleet_clock_ahead_seconds")
        assert ahead == pytest.approx(-172_800.0, abs=5.0)
        assert "gpufleet_pruning_held 1.0" in first.metrics.exposition().decode()


async def test_a_leader_that_stores_nothing_is_no_leader_that_writes(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_health, "_PATIENCE", 0.0)
    components = Components(settings, AsyncExitStack())
    components.store = store
    leader_health.watch_leader(components)
    await store.accounted.open("default", await store.database.now() - 600.0)
    async with store.leadership("accounting"):
        with pytest.raises(StoreUnavailable, match=r"but has stored nothing for 60[0-9] s"):
            await components.probes["accounting"]()
        await store.accounted.set_stored_until("default", await store.database.now())
        assert await components.probes["accounting"]() == f"{holder_name()} leads (epoch 1)"


async def test_queues_and_evictions_are_recorded_for_replays(
    settings: Settings, api: KubeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replay of the ledger has the GpuQueue, and knows that the second pod continues the evicted one."""
    for definition in definitions():
        if definition["spec"]["names"]["kind"] == "GpuQueue":
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            await api.write_json("POST", path, definition)
    queues = "/apis/gpu.scheduling/v1/gpuqueues"
    spec = {"namespaces": ["default"], "weight": 3, "limit": {"gpus": 2}}
    made = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuQueue",
        "metadata": {"name": "research"},
        "spec": spec,
    }
    await api.write_json("POST", queues, made)
    condition = {"type": "Ready", "status": "True", "reason": "Ready"}
    status = {"status": {"namespaces": ["default"], "conditions": [condition]}}
    monkeypatch.setattr("gpufleet.server.wiring.accounting._RECORD_RULES_EVERY", 0.1)
    async with AsyncExitStack() as exit_stack:
        store = (await open_components(settings, exit_stack)).store
        await asyncio.sleep(0.5)  # the scheduler writes the status of a new queue a moment later
        await api.write_json(
            "PATCH", f"{queues}/research/status", status, content_type="application/merge-patch+json"
        )

        async def recorded() -> list[Any]:
            rows = await store.queue_rules.overlapping("default", 0.0, 1e12)
            rules = [msgspec.json.decode(text, type=QueueRules) for _, text in rows]
            return [(each.quotas[0].limit, each.quotas[0].weight, each.namespaces) for each in rules]

        assert await wait_until(recorded) == [(2000, 3, {"default": "research"})]
        await api.write_json("POST", "/api/v1/namespaces/default/pods", pod("p"))
        await wait_until(lambda: held(store))
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "p"},
            "deleteOptions": {"gracePeriodSeconds": 0},
        }
        await api.write_json("POST", "/api/v1/namespaces/default/pods/p/eviction", eviction)

        async def interrupted() -> bool:
            rows = await store.allocation_periods.overlapping("default", 0.0, 1e12)
            return any(row.end and row.interrupted for row in rows)

        await wait_until(interrupted)
    capsys.readouterr()  # the log of the server
    monkeypatch.setenv("DATABASE_URL", str(settings[StoreSettings].url))
    words = ["simulate", "--from-ledger", "--since", "1h", "--quiet", "-o", "json"]
    assert await asyncio.to_thread(main, words) == 0
    [scenario] = json.loads(capsys.readouterr().out)["scenarios"]
    assert set(scenario["wait_by_queue"]) == {"research"}
    assert await asyncio.to_thread(main, [*words, "--quotas", "off", "--weight", "default=2"]) == 0
    [scenario] = json.loads(capsys.readouterr().out)["scenarios"]
    assert set(scenario["wait_by_queue"]) == {"default"}
    assert await asyncio.to_thread(main, [*words, "--weight", "reserch=2"]) != 0
    assert "no such queue; there are research" in capsys.readouterr().err


def test_a_period_that_does_not_fit_into_an_hour_is_refused() -> None:
    assert snapshot_step(AccountingSettings(snapshot_period=600.0)) == 600
    with pytest.raises(SettingsError, match="must divide an hour evenly"):
        snapshot_step(AccountingSettings(snapshot_period=420.0))


def test_a_label_key_that_is_named_twice_counts_once() -> None:
    plan = rollup_plan(AccountingSettings(label_keys=("team", "app", "team"), annotation_keys=("cc", "cc")))
    assert (plan.label_keys, plan.annotation_keys) == (("team", "app"), ("cc",))
