"""User pods on a simulated fleet: kubelets run them, and the simulation avoids their GPUs."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.objects.identities import pods_of
from gpufleet.demo.player import Player
from gpufleet.demo.simulation.hardware import BUILT, DAY
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run
from gpufleet.demo.user_pods import IMAGE_PULL_SECONDS
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.kubernetes.leases import LeaseHolder, new_lease, read_lease
from gpufleet.kubernetes.objects import Lease
from gpufleet.model.reading import GpuRef, Quantity
from kubelite import DirectStorage, KubeLite

NOW = BUILT + 300 * DAY + 12_345.0
SIMULATION = Simulation(seed=5, nodes=16, gpus=4)
UID = "4c25e476-bb45-4163-be42-e67ad5ce7ef9"


class Stage:
    """A fleet behind an API, a client for it, and a clock that a test moves."""

    def __init__(self, server: KubeLite, player: Player, client: KubeClient) -> None:
        self.at = NOW
        self.server = server
        self.player = player
        self.client = client
        self.storage = DirectStorage(server)

    async def until(self, at: float, step: float = 15.0) -> None:
        while self.at < at:
            self.at = min(self.at + step, at)
            self.player.update_user_pods(self.at)
            await self.player.update(self.at)
            self.assert_no_gpu_is_used_twice()

    async def pod(self, name: str, namespace: str = "default") -> Any:
        return await self.client.read_json(f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def create_pod(self, node: str, gpus: tuple[int, ...] = (), command: tuple[str, ...] = ()) -> None:
        """Create a user pod that is bound to a node and has leases of its GPUs."""
        ids = ",".join(map(str, gpus))
        uid = (
            await self.client.write_json(
                "POST",
                "/api/v1/namespaces/default/pods",
                {
                    "metadata": {
                        "name": "mine",
                        "annotations": {"gpu.scheduling/allocated": f"{node}:{ids}"} if gpus else {},
                    },
                    "spec": {
                        "nodeName": node,
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": "busybox", "command": list(command)}],
                    },
                },
            )
        )["metadata"]["uid"]
        self.lease(node, gpus, uid)

    def lease(self, node: str, gpus: tuple[int, ...], uid: str = UID) -> None:
        for gpu in gpus:
            lease = new_lease("default", node, gpu, {uid: LeaseHolder(pod="mine")}, "", datetime.now(UTC))
            made = msgspec.to_builtins(lease) | {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self.storage.put([made])

    async def delete_leases(self, node: str, gpus: tuple[int, ...]) -> None:
        for gpu in gpus:
            path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/gpu-{node}-{gpu}"
            await self.client.write_json("DELETE", path, {})

    def leases(self) -> dict[tuple[str, int], str]:
        entries = self.server.store.collection("coordination.k8s.io/leases").entries.values()
        found = [read_lease(msgspec.convert(entry.object, Lease)) for entry in entries]
        return {(lease.node, lease.gpu): next(iter(lease.holders)) for lease in found if lease}

    def lease_holders(self, node: str, gpu: int) -> set[str]:
        entries = self.server.store.collection("coordination.k8s.io/leases").entries.values()
        found = [read_lease(msgspec.convert(entry.object, Lease)) for entry in entries]
        return {
            uid
            for lease in found
            if lease and (lease.node, lease.gpu) == (node, gpu)
            for uid in lease.holders
        }

    def assert_no_gpu_is_used_twice(self) -> None:
        """Check that no run of the simulation uses a GPU that is leased to a user pod."""
        machines = SIMULATION.hardware.machines
        simulated = {
            (position.node, gpu)
            for run in self.player.runs(self.at, self.at)
            if run.bound <= self.at < run.ended and run.uid not in self.user_pods()
            for position in run.slot.positions
            for gpu in position.gpus
        }
        leased = {(machines[node].name, gpu) for node, gpu in self.player.user_pods.gpu_holders}
        assert not {(machines[node].name, gpu) for node, gpu in simulated} & leased

    def user_pods(self) -> set[str]:
        return {run.uid for run in self.player.user_pods.runs()}


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        storage = DirectStorage(server)
        storage.put(definitions())
        player = Player(SIMULATION, storage, keep=DAY)
        await player.start(NOW)
        yield Stage(server, player, client)


def free_gpus() -> tuple[str, tuple[int, ...]]:
    """Return GPUs of one node that no run uses in the next hour."""
    held = {(h.node, gpu) for h in allocation_periods(SIMULATION, NOW, NOW + 3600) for gpu in h.held}
    faulty = SIMULATION.hardware.faulty
    for machine in SIMULATION.hardware.machines:
        gpus = tuple(gpu for gpu in range(machine.gpus) if (machine.name, gpu) not in held)
        healthy = machine.number not in (*(faulty.broken or ()), *(faulty.xid or ()), faulty.cordoned)
        if machine.source == "k8s" and gpus and healthy:
            return machine.name, gpus
    raise AssertionError("no free GPUs")


def next_run(kind: str = "") -> Run:
    """Return a run that gets its GPUs within the next hours and keeps them for a while."""
    runs = [
        run
        for run in SIMULATION.runs(NOW, NOW + 12 * 3600)
        if run.slot.role.source == "k8s" and run.kind == (kind or run.kind) and run.slot.role.finishes
    ]
    return min(
        (run for run in runs if NOW + 60 < run.bound < math.inf and run.ended > run.bound + 2400),
        key=lambda run: run.bound,
    )


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_a_bound_pod_starts_runs_and_finishes() -> None:
    async with open_stage() as stage:
        node, _ = free_gpus()
        await stage.create_pod(node, command=("sleep", "60"))
        due = stage.player.update_user_pods(NOW)
        pod = await stage.pod("mine")
        assert pod["status"]["phase"] == "Pending"
        assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
        assert due == NOW + IMAGE_PULL_SECONDS
        assert stage.player.update_user_pods(due) == due + 60
        pod = await stage.pod("mine")
        assert pod["status"]["phase"] == "Running"
        assert pod["status"]["containerStatuses"][0]["ready"] is True
        assert stage.player.update_user_pods(due + 60) is None
        assert (await stage.pod("mine"))["status"]["phase"] == "Succeeded"


async def test_a_deleted_pod_is_removed() -> None:
    async with open_stage() as stage:
        await stage.create_pod(free_gpus()[0])
        await stage.until(NOW + 30)
        await stage.client.write_json("DELETE", "/api/v1/namespaces/default/pods/mine", {})
        assert (await stage.pod("mine"))["metadata"]["deletionTimestamp"]
        stage.player.update_user_pods(NOW + 31)
        with pytest.raises(ObjectNotFound):
            await stage.pod("mine")


async def test_gpus_of_a_user_pod_show_a_load_and_are_reported_in_use() -> None:
    async with open_stage() as stage:
        node, gpus = free_gpus()
        await stage.create_pod(node, gpus)
        await stage.until(NOW + 60)
        runs = list(stage.player.runs(stage.at, stage.at))
        readings = SIMULATION.readings_at(stage.at, runs)
        rows = [row for row, gpu in enumerate(readings.gpus) if gpu.ref.node == node]
        used = [readings.value(rows[gpu], Quantity.UTILIZATION) for gpu in gpus]
        assert all(value is not None and value > 10 for value in used)
        assert {
            p.gpu.index for p in SIMULATION.processes_at(stage.at, runs).rows if p.gpu.node == node
        } >= set(gpus)
        path = f"/apis/gpu.scheduling/v1/gpunodestatuses/{node}"
        (uid,) = stage.user_pods()
        devices = (await stage.client.read_json(path))["status"]["devices"]
        assert all(devices[gpu]["inUseBy"] == [uid] for gpu in gpus)
        await stage.delete_leases(node, gpus)
        stage.player.update_user_pods(stage.at)
        devices = (await stage.client.read_json(path))["status"]["devices"]
        assert all("inUseBy" not in devices[gpu] for gpu in gpus)


async def test_a_run_waits_for_gpus_of_a_user_pod_and_starts_when_they_are_free() -> None:
    async with open_stage() as stage:
        run = next_run()
        position = run.slot.positions[0]
        node = SIMULATION.hardware.machines[position.node].name
        await stage.until(run.slot.cell_start(run.number) - 10)
        stage.lease(node, position.gpus[:1])
        pod = pods_of(run)[0]
        await stage.until(run.bound + 600)
        status = (await stage.pod(pod.name, run.team.namespace))["status"]
        assert status["phase"] == "Pending", "it took GPUs of a user pod"
        assert stage.leases()[node, position.gpus[0]] == UID
        await stage.delete_leases(node, position.gpus[:1])
        await stage.until(run.bound + 700)
        shown = await stage.pod(pod.name, run.team.namespace)
        assert shown["status"]["phase"] == "Running"
        scheduled = next(c for c in shown["status"]["conditions"] if c["type"] == "PodScheduled")
        assert scheduled["lastTransitionTime"] > status["conditions"][0]["lastTransitionTime"]
        assert stage.leases()[node, position.gpus[0]] == pod.uid
        started = next(each for each in stage.player.runs(stage.at, stage.at) if each.uid == run.uid)
        assert run.bound + 600 <= started.bound <= run.bound + 700


async def test_a_run_that_never_got_gpus_is_cancelled() -> None:
    async with open_stage() as stage:
        run = next_run()
        position = run.slot.positions[0]
        node = SIMULATION.hardware.machines[position.node].name
        await stage.until(run.slot.cell_start(run.number) - 10, step=60)
        stage.lease(node, position.gpus[:1])
        await stage.until(run.ended + 30, step=600)
        with pytest.raises(ObjectNotFound):
            await stage.pod(pods_of(run)[0].name, run.team.namespace)


@pytest.mark.parametrize(("kind", "is_recreated"), [("PyTorchJob", True), ("Pod", False)])
async def test_a_deleted_pod_of_the_simulation_is_recreated_if_it_has_a_controller(
    kind: str, is_recreated: bool
) -> None:
    async with open_stage() as stage:
        runs = [r for r in SIMULATION.runs(NOW, NOW) if r.kind == kind and r.started < NOW]
        run = next(run for run in runs if run.ended > NOW + 600)
        pod = pods_of(run)[0]
        node = SIMULATION.hardware.machines[pod.position.node].name
        path = f"/api/v1/namespaces/{run.team.namespace}/pods/{pod.name}"
        await stage.client.write_json("DELETE", path, {})
        stage.player.update_user_pods(NOW + 1)
        with pytest.raises(ObjectNotFound):
            await stage.client.read_json(path)
        await stage.until(NOW + 60)
        if is_recreated:
            shown = await stage.client.read_json(path)
            assert shown["status"]["phase"] == "Running"
            assert moment(shown["status"]["startTime"]) >= NOW, "it had no GPUs in between"
        else:
            with pytest.raises(ObjectNotFound):
                await stage.client.read_json(path)
        assert (pod.uid in stage.lease_holders(node, pod.position.gpus[0])) == is_recreated
        assert any(each.uid == run.uid for each in stage.player.runs(NOW, NOW + 60)) == is_recreated


@pytest.mark.parametrize("ids", ["", "none", "0,", "0,x", "99", "\u00b2", "9" * 5_000])
async def test_an_invalid_allocation_annotation_is_ignored(ids: str) -> None:
    node, gpus = free_gpus()
    async with open_stage() as stage:
        await stage.create_pod(node, gpus[:1])
        await stage.until(NOW + IMAGE_PULL_SECONDS + 15)
        assert len(stage.user_pods()) == 1
        note = {"metadata": {"annotations": {"gpu.scheduling/allocated": f"{node}:{ids}"}}}
        path = "/api/v1/namespaces/default/pods/mine"
        await stage.client.write_json("PATCH", path, note, "application/merge-patch+json")
        assert stage.user_pods() == set()


async def test_a_lease_without_a_spec_is_ignored() -> None:
    async with open_stage() as stage:
        lease = {"metadata": {"name": "bare"}}
        await stage.client.write_json("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
        assert stage.player.user_pods.gpu_holders == {}


async def test_a_user_pod_with_an_empty_command_has_a_process() -> None:
    node, gpus = free_gpus()
    async with open_stage() as stage:
        await stage.create_pod(node, gpus[:1], command=(" ",))
        await stage.until(NOW + IMAGE_PULL_SECONDS + 15)
        runs = list(stage.player.runs(stage.at, stage.at))
        shown = {process.gpu: process.name for process in SIMULATION.processes_at(stage.at, runs).rows}
        assert shown[GpuRef(node, gpus[0])] == "main"
