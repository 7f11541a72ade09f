"""Pods of users on a simulated fleet: kubelets tend them, and the simulation keeps off their GPUs."""

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
    """A fleet that is shown, a client of its API, and a clock that a test moves."""

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
            self.no_gpu_is_leased_to_two()

    async def pod(self, name: str, namespace: str = "default") -> Any:
        return await self.client.read_json(f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def bring(self, node: str, gpus: tuple[int, ...] = (), command: tuple[str, ...] = ()) -> None:
        """A user's pod, bound to a node and with leases of its GPUs, as the scheduler leaves it."""
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

    async def give_back(self, node: str, gpus: tuple[int, ...]) -> None:
        for gpu in gpus:
            path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/gpu-{node}-{gpu}"
            await self.client.write_json("DELETE", path, {})

    def leases(self) -> dict[tuple[str, int], str]:
        entries = self.server.store.collection("coordination.k8s.io/leases").entries.values()
        found = [read_lease(msgspec.convert(entry.object, Lease)) for entry in entries]
        return {(lease.node, lease.gpu): next(iter(lease.holders)) for lease in found if lease}

    def no_gpu_is_leased_to_two(self) -> None:
        """What runs by the simulation's own account has no GPU that a guest's lease names."""
        machines = SIMULATION.hardware.machines
        mine = {
            (position.node, gpu)
            for run in self.player.runs(self.at, self.at)
            if run.bound <= self.at < run.ended and run.uid not in self.user_pods()
            for position in run.slot.positions
            for gpu in position.gpus
        }
        taken = {(machines[node].name, gpu) for node, gpu in self.player.user_pods.gpu_holders}
        assert not {(machines[node].name, gpu) for node, gpu in mine} & taken

    def user_pods(self) -> set[str]:
        return {run.uid for run in self.player.user_pods.runs()}


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with KubeLite() as server, KubeClient(Connection(server.url)) as client:
        storage = DirectStorage(server)
        storage.put(definitions())
        player = Player(SIMULATION, storage, keep=DAY)
        await player.start(NOW)
        yield Stage(server, player, client)


def free_gpus() -> tuple[str, tuple[int, ...]]:
    """GPUs of a node that no run has for the next hour."""
    held = {(h.node, gpu) for h in allocation_periods(SIMULATION, NOW, NOW + 3600) for gpu in h.held}
    faulty = SIMULATION.hardware.faulty
    for machine in SIMULATION.hardware.machines:
        gpus = tuple(gpu for gpu in range(machine.gpus) if (machine.name, gpu) not in held)
        well = machine.number not in (*(faulty.broken or ()), *(faulty.xid or ()), faulty.cordoned)
        if machine.source == "k8s" and gpus and well:
            return machine.name, gpus
    raise AssertionError("the fleet is full")


def coming(kind: str = "") -> Run:
    """A run with a claim that gets its GPUs within the next hours and keeps them for a while."""
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


async def test_a_bound_pod_is_created_runs_and_ends_by_itself() -> None:
    async with stage() as played:
        node, _ = free_gpus()
        await played.bring(node, command=("sleep", "60"))
        due = played.player.update_user_pods(NOW)
        pod = await played.pod("mine")
        assert pod["status"]["phase"] == "Pending"
        assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
        assert due == NOW + IMAGE_PULL_SECONDS
        assert played.player.update_user_pods(due) == due + 60
        pod = await played.pod("mine")
        assert pod["status"]["phase"] == "Running"
        assert pod["status"]["containerStatuses"][0]["ready"] is True
        assert played.player.update_user_pods(due + 60) is None
        assert (await played.pod("mine"))["status"]["phase"] == "Succeeded"


async def test_a_deleted_pod_goes() -> None:
    async with stage() as played:
        await played.bring(free_gpus()[0])
        await played.until(NOW + 30)
        await played.client.write_json("DELETE", "/api/v1/namespaces/default/pods/mine", {})
        assert (await played.pod("mine"))["metadata"]["deletionTimestamp"]
        played.player.update_user_pods(NOW + 31)
        with pytest.raises(ObjectNotFound):
            await played.pod("mine")


async def test_gpus_of_a_guest_show_a_load_and_are_reported_in_use() -> None:
    async with stage() as played:
        node, gpus = free_gpus()
        await played.bring(node, gpus)
        await played.until(NOW + 60)
        runs = list(played.player.runs(played.at, played.at))
        readings = SIMULATION.readings_at(played.at, runs)
        rows = [row for row, gpu in enumerate(readings.gpus) if gpu.ref.node == node]
        used = [readings.value(rows[gpu], Quantity.UTILIZATION) for gpu in gpus]
        assert all(value is not None and value > 10 for value in used)
        assert {
            p.gpu.index for p in SIMULATION.processes_at(played.at, runs).rows if p.gpu.node == node
        } >= set(gpus)
        path = f"/apis/gpu.scheduling/v1/gpunodestatuses/{node}"
        (uid,) = played.user_pods()
        devices = (await played.client.read_json(path))["status"]["devices"]
        assert all(devices[gpu]["inUseBy"] == [uid] for gpu in gpus)
        await played.give_back(node, gpus)
        played.player.update_user_pods(played.at)
        devices = (await played.client.read_json(path))["status"]["devices"]
        assert all(devices[gpu]["inUseBy"] == [] for gpu in gpus)


async def test_a_run_waits_for_gpus_that_a_guest_has_and_begins_when_they_are_free() -> None:
    async with stage() as played:
        run = coming()
        position = run.slot.positions[0]
        node = SIMULATION.hardware.machines[position.node].name
        await played.until(run.slot.cell_start(run.number) - 10)
        played.lease(node, position.gpus[:1])
        pod = pods_of(run)[0]
        await played.until(run.bound + 600)
        status = (await played.pod(pod.name, run.team.namespace))["status"]
        assert status["phase"] == "Pending", "it took GPUs that somebody has"
        assert played.leases()[node, position.gpus[0]] == UID
        await played.give_back(node, position.gpus[:1])
        await played.until(run.bound + 700)
        shown = await played.pod(pod.name, run.team.namespace)
        assert shown["status"]["phase"] == "Running"
        scheduled = next(c for c in shown["status"]["conditions"] if c["type"] == "PodScheduled")
        assert scheduled["lastTransitionTime"] > status["conditions"][0]["lastTransitionTime"]
        assert played.leases()[node, position.gpus[0]] == pod.uid
        begun = next(each for each in played.player.runs(played.at, played.at) if each.uid == run.uid)
        assert run.bound + 600 <= begun.bound <= run.bound + 700


async def test_a_run_whose_time_is_over_before_it_got_gpus_is_withdrawn() -> None:
    async with stage() as played:
        run = coming()
        position = run.slot.positions[0]
        node = SIMULATION.hardware.machines[position.node].name
        await played.until(run.slot.cell_start(run.number) - 10, step=60)
        played.lease(node, position.gpus[:1])
        await played.until(run.ended + 30, step=600)
        with pytest.raises(ObjectNotFound):
            await played.pod(pods_of(run)[0].name, run.team.namespace)


@pytest.mark.parametrize(("kind", "comes_again"), [("PyTorchJob", True), ("Pod", False)])
async def test_a_pod_of_the_simulation_that_is_deleted(kind: str, comes_again: bool) -> None:
    async with stage() as played:
        runs = [r for r in SIMULATION.runs(NOW, NOW) if r.kind == kind and r.started < NOW]
        run = next(run for run in runs if run.ended > NOW + 600)
        pod = pods_of(run)[0]
        node = SIMULATION.hardware.machines[pod.position.node].name
        path = f"/api/v1/namespaces/{run.team.namespace}/pods/{pod.name}"
        await played.client.write_json("DELETE", path, {})
        played.player.update_user_pods(NOW + 1)
        with pytest.raises(ObjectNotFound):
            await played.client.read_json(path)
        await played.until(NOW + 60)
        if comes_again:
            shown = await played.client.read_json(path)
            assert shown["status"]["phase"] == "Running"
            assert moment(shown["status"]["startTime"]) >= NOW, "it had no GPUs in between"
        else:
            with pytest.raises(ObjectNotFound):
                await played.client.read_json(path)
        assert ((node, pod.position.gpus[0]) in played.leases()) == comes_again
        assert any(each.uid == run.uid for each in played.player.runs(NOW, NOW + 60)) == comes_again


@pytest.mark.parametrize("ids", ["", "none", "0,", "0,x", "99", "\u00b2", "9" * 5_000])
async def test_an_allocation_that_a_user_wrote_wrongly_does_no_harm(ids: str) -> None:
    node, gpus = free_gpus()
    async with stage() as here:
        await here.bring(node, gpus[:1])
        await here.until(NOW + IMAGE_PULL_SECONDS + 15)
        assert len(here.user_pods()) == 1
        note = {"metadata": {"annotations": {"gpu.scheduling/allocated": f"{node}:{ids}"}}}
        path = "/api/v1/namespaces/default/pods/mine"
        await here.client.write_json("PATCH", path, note, "application/merge-patch+json")
        assert here.user_pods() == set()


async def test_a_lease_without_a_spec_is_taken_and_means_nothing() -> None:
    async with stage() as here:
        lease = {"metadata": {"name": "bare"}}
        await here.client.write_json("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
        assert here.player.user_pods.gpu_holders == {}


async def test_a_guest_with_an_empty_command_has_a_process_all_the_same() -> None:
    node, gpus = free_gpus()
    async with stage() as here:
        await here.bring(node, gpus[:1], command=(" ",))
        await here.until(NOW + IMAGE_PULL_SECONDS + 15)
        runs = list(here.player.runs(here.at, here.at))
        shown = {process.gpu: process.name for process in SIMULATION.processes_at(here.at, runs).rows}
        assert shown[GpuRef(node, gpus[0])] == "main"
