"""The simulated fleet behind its APIs, read by the Kubernetes, Slurm and Docker sources."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.waiting import wait_until

from gpufleet.demo.fake_servers import FakeServers
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.objects.identities import COST_CENTER
from gpufleet.demo.player import Player
from gpufleet.demo.simulation.hardware import BUILT, DAY
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.fleet.overview import overview
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import DockerSettings, KubernetesSettings, SlurmSettings
from gpufleet.sources.docker import DockerSource
from gpufleet.sources.kubernetes import KubernetesSource
from gpufleet.sources.slurm.source import SlurmSource
from kubelite import DirectStorage, KubeLite

NOW = BUILT + 300 * DAY + 12_345.0
SIMULATION = Simulation(seed=3, nodes=32, gpus=8)


@asynccontextmanager
async def shown(at: float, keep: float = DAY) -> AsyncIterator[tuple[KubeLite, Player]]:
    """Start an API that shows the fleet at a time."""
    async with KubeLite() as server:
        storage = DirectStorage(server)
        storage.put(definitions())
        player = Player(SIMULATION, storage, keep=keep)
        await player.start(at)
        yield server, player


@asynccontextmanager
async def followed(server: KubeLite, at: float) -> AsyncIterator[Fleet]:
    """Return the fleet as the sources read it."""
    fleet = Fleet("demo", clock=lambda: at, simulated=True)
    async with (
        FakeServers(SIMULATION, lambda: at) as servers,
        KubeClient(Connection(server.url, token=server.token), annotations=(COST_CENTER,)) as client,
    ):
        source = KubernetesSource(client, fleet, fault_taints=KubernetesSettings().fault_taints)
        slurm = SlurmSource(SlurmSettings(url=servers.url), fleet, clock=lambda: at)
        docker = DockerSource(DockerSettings(url=servers.url), fleet, clock=lambda: at)
        for other in (slurm, docker):
            await other.refresh()
            await other.close()
        task = asyncio.create_task(source.run())
        try:
            await asyncio.wait_for(source.synced(), 20)
            jobs = ("kubeflow.org/v1", "PyTorchJob")
            await wait_until(lambda: (found := source.states().get(jobs)) and found.objects)
            yield fleet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def contents(server: KubeLite) -> dict[tuple[str, str, str], Any]:
    """Return every object without its resource version."""
    found = {}
    for collection, objects in server.store.collections():
        for (namespace, name), entry in objects.entries.items():
            metadata = {k: v for k, v in entry.object["metadata"].items() if k != "resourceVersion"}
            found[collection, namespace, name] = {**entry.object, "metadata": metadata}
    return {key: item for key, item in found.items() if key[0] not in _CREATED_BY_THE_SERVER}


_CREATED_BY_THE_SERVER = {
    "namespaces",
    "scheduling.k8s.io/priorityclasses",
    "apiextensions.k8s.io/customresourcedefinitions",
}


async def test_the_sources_see_the_allocations_of_the_simulation() -> None:
    async with shown(NOW) as (server, _), followed(server, NOW) as fleet:
        held = {
            (h.node, gpu, h.pod_uid) for h in allocation_periods(SIMULATION, NOW, NOW + 1) for gpu in h.held
        }
        views = fleet.views()
        seen = {
            (name, gpu, uid)
            for name, view in views.items()
            for gpu, uids in view.holders.items()
            for uid in uids
        }
        assert seen == held
        expected = Counter(
            h.workload_uid for h in allocation_periods(SIMULATION, NOW, NOW + 1) for _ in h.held
        )
        running = {w.uid: w.gpus for w in fleet.workloads().values() if w.gpus and w.status is Status.RUNNING}
        assert running == expected
        assert any(w.status is Status.PENDING and w.requested for w in fleet.workloads().values())
        assert any(w.status is Status.COMPLETED for w in fleet.workloads().values())
        assert any(w.status is Status.FAILED for w in fleet.workloads().values())


async def test_the_overview_counts_faulty_nodes_and_skips_the_cordoned_one() -> None:
    async with shown(NOW) as (server, _), followed(server, NOW) as fleet:
        result = overview(fleet)
        assert (result.nodes, result.faulty) == (32, 2), "one node is down, one has lost a GPU"
        assert result.idle + result.partial + result.busy == result.healthy == 30
        hardware = SIMULATION.hardware
        usable = {
            machine.name
            for machine in hardware.machines
            if not hardware.is_down(machine, NOW)
            and hardware.lost_gpu(machine, NOW) is None
            and not hardware.is_cordoned(machine)
        }
        periods = allocation_periods(SIMULATION, NOW, NOW + 1)
        held = {(h.node, gpu) for h in periods if h.node in usable for gpu in h.held}
        assert result.allocation_rate == pytest.approx(len(held) / (29 * 8))


async def test_the_fleet_records_the_allocation_periods_of_the_simulation() -> None:
    async with shown(NOW) as (server, _), followed(server, NOW) as fleet:
        fleet.put_readings(SIMULATION.readings_at(NOW))
        fleet.start_accounting()
        written = {period.pod_uid: period for period in fleet.allocation_periods.drain()}
        expected = {
            h.pod_uid: h for h in allocation_periods(SIMULATION, NOW - 100 * DAY, NOW) if h.pod_uid in written
        }
        current = {h.pod_uid for h in allocation_periods(SIMULATION, NOW, NOW + 1)}
        assert current <= expected.keys() == written.keys()
        assert written == expected


async def test_updates_and_a_direct_start_give_the_same_objects() -> None:
    later = NOW + 8 * 3600
    async with shown(NOW) as (stepwise, player), shown(later) as (direct, _):
        at = NOW
        while at < later:
            at = min(at + 400.0, later)
            await player.update(at)
        assert contents(stepwise) == contents(direct)


async def test_an_update_without_changes_writes_nothing() -> None:
    async with shown(NOW) as (server, player):
        before = server.store.version
        assert await player.update(NOW) == 0
        assert server.store.version == before


async def test_changes_by_users_stay() -> None:
    async with (
        shown(NOW) as (server, player),
        KubeClient(Connection(server.url, token=server.token)) as client,
    ):
        name = SIMULATION.hardware.machines[1].name
        await client.write_json(
            "PATCH",
            f"/api/v1/nodes/{name}",
            {"spec": {"unschedulable": True}},
            "application/merge-patch+json",
        )
        for minutes in range(1, 30):
            await player.update(NOW + 60 * minutes)
        assert (await client.read_json(f"/api/v1/nodes/{name}"))["spec"]["unschedulable"] is True


@pytest.mark.parametrize("size", [(1, 1), (2, 16), (9, 3)])
async def test_unusual_fleet_sizes_work(size: tuple[int, int]) -> None:
    simulation = Simulation(5, *size)
    async with KubeLite() as server:
        storage = DirectStorage(server)
        storage.put(definitions())
        player = Player(simulation, storage, keep=DAY)
        await player.start(NOW)
        await player.update(NOW + 40 * DAY)
        assert len(server.store.collection("nodes").entries) == sum(
            machine.source == "k8s" for machine in simulation.hardware.machines
        )
