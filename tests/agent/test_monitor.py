"""Reads and events on the NVML shim, without Kubernetes."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.shim.nvml import NvmlShim, uuid
from tests.waiting import wait_until

from gpufleet.agent.monitor import Monitor
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.kernel_log import KernelLog, parse_xid
from gpufleet.model.device import DeviceEvent, EventKind
from gpufleet.model.node import Health


@pytest.fixture
async def monitor(nvml_shim: NvmlShim) -> AsyncIterator[Monitor]:
    reader = DeadlineReader(NvmlReader, deadline=5.0)
    yield Monitor(reader, HealthTracker(), ports=dict)
    await reader.close()


async def test_the_text_of_the_kernel_log_decides_about_an_nvlink_error(
    monitor: Monitor, tmp_path: Path
) -> None:
    await monitor.read()
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    log = KernelLog(fifo, from_start=True, boot_time=lambda: 1_700_000_000.0)
    unhealthy = asyncio.Event()
    monitor.subscribe(
        lambda observation: (
            unhealthy.set() if observation.verdicts[uuid(3)].health is Health.UNHEALTHY else None
        )
    )
    reading = asyncio.create_task(monitor.watch_kernel_log(log))
    with fifo.open("wb", buffering=0) as writer:
        writer.write(
            b"4,1,5000000,-;NVRM: Xid (PCI:0000:13:00): 74, pid=1, NVLink: fatal error detected on link 2\n"
        )
        async with asyncio.timeout(10):
            await unhealthy.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    log.close()
    assert monitor.observation.verdicts[uuid(3)].reason == "XID 74: NVLink error"
    assert monitor.observation.xids == {(uuid(3), 74): 1}
    await monitor.handle([DeviceEvent(EventKind.XID, 74, 1.0, uuid=uuid(3))])
    assert monitor.observation.xids == {(uuid(3), 74): 1}  # NVML reports the same one


async def test_an_xid_is_counted_for_its_gpu_and_codes_are_bounded(monitor: Monitor) -> None:
    await monitor.read()
    events = [DeviceEvent(EventKind.XID, code, 1.0, uuid=uuid(1)) for code in [13, 13, *range(200, 300)]]
    await monitor.handle(events)
    assert monitor.observation.xids[uuid(1), 13] == 2
    assert len(monitor.observation.xids) == 64


async def test_an_xid_in_the_kernel_log_is_counted_also_where_nvml_has_no_events(
    nvml_shim: NvmlShim, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, calls = DeadlineReader(NvmlReader, deadline=5.0), 0
    events = reader.events

    async def counted(wait: float) -> tuple[DeviceEvent, ...]:
        nonlocal calls
        calls += 1
        return await events(wait)

    monkeypatch.setattr(reader, "events", counted)
    monitor = Monitor(reader, HealthTracker(), ports=dict)
    nvml_shim.fail("nvmlDeviceRegisterEvents", 3)
    await monitor.read()
    listening = asyncio.create_task(monitor.watch_driver(wait=0.01))
    await wait_until(lambda: calls >= 3)
    event = parse_xid("NVRM: Xid (PCI:0000:13:00): 48, DBE", 1.0)
    assert event is not None
    await monitor.handle([event], from_kernel_log=True)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert monitor.observation.xids == {(uuid(3), 48): 1}
    await reader.close()


async def test_an_infiniband_port_that_goes_down_makes_the_node_unhealthy(nvml_shim: NvmlShim) -> None:
    states = {"mlx5_0/1": "ACTIVE"}
    reader = DeadlineReader(NvmlReader, deadline=5.0)
    monitor = Monitor(reader, HealthTracker(), ports=lambda: states)
    await monitor.read()
    states = {"mlx5_0/1": "DOWN"}
    observation = await monitor.read()
    assert {verdict.health for verdict in observation.verdicts.values()} == {Health.UNHEALTHY}
    await reader.close()


async def test_one_reading_that_fails_does_not_stop_the_rest(monitor: Monitor, nvml_shim: NvmlShim) -> None:
    nvml_shim.fail("nvmlDeviceGetTemperature", 3, gpu=2)
    observation = await monitor.read()
    assert [reading.temperature_celsius for reading in observation.readings] == [
        40,
        41,
        None,
        43,
        44,
        45,
        46,
        47,
    ]
    assert observation.readings[2].power_watts == 102.5


async def test_a_flood_of_the_same_error_is_one_line(monitor: Monitor) -> None:
    await monitor.read()
    flood = [DeviceEvent(EventKind.XID, 31, 1.0, uuid=uuid(1), message=f"{n}") for n in range(1000)]
    with capture_logs() as lines:
        await monitor.handle([*flood, DeviceEvent(EventKind.XID, 31, 1.0, uuid=uuid(2))])
    logged = [(line["gpu"], line["times"]) for line in lines if line["event"] == "gpu_error"]
    assert logged == [(uuid(1), 1000), (uuid(2), 1)]
    assert monitor.observation.xids[uuid(1), 31] == 1000


async def test_errors_in_quick_succession_cause_one_read(monitor: Monitor, tmp_path: Path) -> None:
    await monitor.read()
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    log = KernelLog(fifo, from_start=True, boot_time=lambda: 1_700_000_000.0)
    reading = asyncio.create_task(monitor.watch_kernel_log(log, pause=60.0))
    with fifo.open("wb", buffering=0) as writer:
        for number in range(20):
            writer.write(b"4,%d,5000000,-;NVRM: Xid (PCI:0000:13:00): 31, pid=1\n" % number)
            await wait_until(lambda: monitor.reads >= 2)
        for _ in range(3):  # reads take turns: one that an error causes comes before the last of these
            await monitor.read()
    assert monitor.reads == 2 + 3
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    log.close()


async def test_a_released_driver_is_closed_until_then(nvml_shim: NvmlShim) -> None:
    now = 1000.0
    opened = 0

    def open_reader() -> NvmlReader:
        nonlocal opened
        opened += 1
        return NvmlReader()

    reader = DeadlineReader(open_reader, deadline=5.0)
    monitor = Monitor(reader, HealthTracker(), ports=dict, clock=lambda: now)
    await monitor.read()
    reads = monitor.reads
    await monitor.release(1060.0)
    nvml_shim.lose(2)  # a GPU is lost while it is reset
    assert (await monitor.read()).verdicts[uuid(2)].health is Health.HEALTHY
    assert (monitor.reads, opened) == (reads, 1)
    nvml_shim.find_again(2)
    now = 1061.0
    await monitor.read()
    assert (monitor.reads, opened) == (reads + 1, 2)
    await reader.close()
