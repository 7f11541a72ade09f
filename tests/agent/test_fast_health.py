"""Faults are noticed and published between two reads of the GPUs, without a read for every change of the load."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
from tests.agent.conftest import Cluster
from tests.shim.nvml import NvmlShim
from tests.waiting import wait_until

from gpufleet.agent.monitor import Monitor
from gpufleet.agent.pod_processes import OrphanAge, orphans
from gpufleet.agent.status_publisher import BURST, StatusPublisher
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.processes import ProcessTable
from gpufleet.kubernetes.annotations import ALLOCATED
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus

FAULTS: dict[str, Callable[[NvmlShim], None]] = {
    "nvlink-down": lambda shim: shim.set("0.link.3", "6 down"),
    "remap-failed": lambda shim: shim.set("1.field.145", 1),
    "remap-pending": lambda shim: shim.set("2.field.144", 1),
    "recovery-action": lambda shim: shim.set("3.field.230", 1),
    "fault": lambda shim: shim.lose(4),
    "fabric": lambda shim: shim.set("5.fabric", "1 0 0"),
    "ecc": lambda shim: shim.set("6.field.4", 1),
    "pcie-width": lambda shim: shim.set("7.pcie_width", 8),
    "driver-mismatch": lambda shim: shim.fail("nvmlDeviceGetCount_v2", 18),
}


@pytest.fixture
async def ports() -> dict[str, str]:
    return {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "ACTIVE"}


@pytest.fixture
async def monitor(nvml_shim: NvmlShim, ports: dict[str, str]) -> AsyncIterator[Monitor]:
    reader = DeadlineReader(NvmlReader, deadline=5.0)
    yield Monitor(reader, HealthTracker(), ports=lambda: dict(ports))
    await reader.close()


def signals(monitor: Monitor) -> set[str]:
    return {each.finding.key for each in monitor.observation.findings}


@pytest.mark.parametrize("signal", FAULTS)
async def test_a_fault_that_the_driver_shows_is_noticed_between_two_reads(
    signal: str, monitor: Monitor, nvml_shim: NvmlShim
) -> None:
    await monitor.read()
    assert not await monitor.shows_fault()
    FAULTS[signal](nvml_shim)
    assert await monitor.shows_fault()
    await monitor.read()
    assert signal in signals(monitor)
    assert not await monitor.shows_fault(), "a known fault must not be read again and again"


async def test_load_does_not_look_like_a_fault(monitor: Monitor, nvml_shim: NvmlShim) -> None:
    await monitor.read()
    for key in ("temperature", "power_mw", "utilization", "sm_clock", "field.83", "field.3", "memory_used"):
        nvml_shim.set(f"2.{key}", 77)
    nvml_shim.set("2.pcie_generation", 5)
    nvml_shim.run(2, 4711, 1 << 30)
    assert not await monitor.shows_fault()


async def test_a_network_port_that_goes_down_is_noticed_also_while_the_driver_does_not_work(
    monitor: Monitor, nvml_shim: NvmlShim, ports: dict[str, str]
) -> None:
    nvml_shim.fail("nvmlDeviceGetCount_v2", 9)
    await monitor.read()
    assert not await monitor.shows_fault(), "a driver that is known not to work is retried by reads only"
    ports["mlx5_1/1"] = "DOWN"
    assert await monitor.shows_fault()
    await monitor.read()
    assert "rails" in signals(monitor)


async def test_a_released_driver_is_not_opened_for_health(monitor: Monitor, nvml_shim: NvmlShim) -> None:
    await monitor.read()
    await monitor.release(4e9)
    nvml_shim.lose(1)
    assert not await monitor.shows_fault()


def unhealthy(status: GpuNodeStatus) -> set[str]:
    return {each.signal for each in status.status.findings if each.severity == "Unhealthy"}


async def test_a_fault_is_published_long_before_the_next_read(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent(period=600.0):
        await cluster.until("node-a", lambda status: status.status.free == 8)
        nvml_shim.set("0.link.3", "6 down")
        await cluster.until("node-a", lambda status: unhealthy(status) == {"nvlink-down"})


async def test_processes_of_a_deleted_pod_are_a_finding_as_soon_as_they_are_old_enough(
    nvml_shim: NvmlShim, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufleet.agent.agent.OrphanAge", partial(OrphanAge, 0.5))
    monkeypatch.setattr("gpufleet.agent.agent.orphans", partial(orphans, proc=tmp_path / "proc"))
    monkeypatch.setattr(ProcessTable, "_details", lambda self, pid, identify: {"name": "python"})
    pods = "/api/v1/namespaces/jobs/pods"
    meta = {"name": "train", "annotations": {ALLOCATED: "node-a:2"}}
    spec = {"nodeName": "node-a", "containers": [{"name": "main", "image": "busybox"}]}
    made = await cluster.client.write_json("POST", pods, {"metadata": meta, "spec": spec})
    cgroup = tmp_path / "proc" / "4711" / "cgroup"
    cgroup.parent.mkdir(parents=True)
    cgroup.write_text(f"0::/kubepods/pod{made['metadata']['uid']}/main\n")
    nvml_shim.run(2, 4711, 1 << 30)
    async with cluster.agent(period=600.0):
        await cluster.until("node-a", lambda status: status.status.free == 7)
        await cluster.client.write_json("DELETE", f"{pods}/train", {"gracePeriodSeconds": 0})
        await cluster.until("node-a", lambda status: status.status.devices[2].draining_pods != ())
        await cluster.until("node-a", lambda status: unhealthy(status) == {"orphan-processes"})


async def test_a_fault_does_not_wait_behind_a_change_of_pods_for_which_there_is_no_token(
    cluster: Cluster,
) -> None:
    status = NodeGpus((DeviceStatus(0, health="Healthy", uuid="GPU-0"),), 1, 1)
    publisher = StatusPublisher(cluster.client, "node-a", lambda cordoned: status)
    tasks = [asyncio.create_task(publisher.watch.run()), asyncio.create_task(publisher.run())]

    def used_by(pod: str, bad: bool = False) -> NodeGpus:
        device = DeviceStatus(0, health="Unhealthy" if bad else "Healthy", uuid="GPU-0", in_use_by=(pod,))
        return NodeGpus((device,), 1, 0, int(bad))

    for written in range(1, BURST):
        await wait_until(partial(has_written, publisher, written))
        status = used_by(f"pod-{written}")
        publisher.wake()
    await wait_until(partial(has_written, publisher, BURST))
    status = used_by("the one for which there is no token")
    publisher.wake()
    await asyncio.sleep(0.1)  # it begins to wait for a token
    status = used_by("pod", bad=True)
    publisher.wake()
    await cluster.until("node-a", lambda found: found.status.unhealthy == 1, seconds=5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def has_written(publisher: StatusPublisher, times: int) -> bool:
    return publisher.writes == times
