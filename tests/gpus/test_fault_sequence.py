"""Reader, topology and health tracker together on the NVML shim, as the agent uses them."""

import asyncio
import threading
import time

import pynvml  # noqa: F401 - imported before the clock of a deadline runs
import pytest
from tests.shim.nvml import NvmlShim, uuid
from tests.waiting import wait_until

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.topology import GpuPosition, gpu_positions
from gpufleet.model.device import DeviceReading
from gpufleet.model.node import Health


async def check(reader: DeadlineReader, tracker: HealthTracker) -> list[Health]:
    at = time.time()
    try:
        tracker.observe_devices(await reader.inventory(), at)
        tracker.observe_readings(await reader.readings())
        tracker.observe_events(await reader.events(0))
    except DevicesUnavailable as error:
        tracker.mark_unresponsive(str(error), at)
    return [tracker.verdict(uuid(n)).health for n in range(8)]


async def test_faults_are_detected_and_recovered_one_after_another(nvml_shim: NvmlShim) -> None:
    reader, tracker = DeadlineReader(NvmlReader, deadline=0.5), HealthTracker()
    healthy, bad, unknown = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN
    assert await check(reader, tracker) == [healthy] * 8

    nvml_shim.xid(2, 48)
    assert await check(reader, tracker) == [healthy, healthy, bad, *[healthy] * 5]

    nvml_shim.set("2.field.83", 10)  # reset: the energy counter starts again
    assert await check(reader, tracker) == [healthy] * 8

    nvml_shim.lose(6)
    assert await check(reader, tracker) == [*[healthy] * 6, bad, healthy]
    assert gpu_positions(await reader.inventory())[uuid(6)] == GpuPosition("nvlink-group-0", 0)

    nvml_shim.xid(6, 79)
    assert await check(reader, tracker) == [bad] * 8

    nvml_shim.find_again(6)
    assert await check(reader, tracker) == [healthy] * 8

    nvml_shim.hang("nvmlDeviceGetTemperature")
    assert await check(reader, tracker) == [unknown] * 8
    assert "has not answered since" in tracker.verdict(uuid(0)).reason

    nvml_shim.unhang()
    await wait_until(lambda: not reader.stuck)
    assert await check(reader, tracker) == [healthy] * 8
    await reader.close()


async def test_a_cancelled_call_does_not_affect_later_calls(nvml_shim: NvmlShim) -> None:
    entered = threading.Event()

    class AnnouncedReader(NvmlReader):
        def readings(self) -> tuple[DeviceReading, ...]:
            entered.set()
            return super().readings()

    reader = DeadlineReader(AnnouncedReader, deadline=5)
    await reader.readings()
    nvml_shim.hang("nvmlDeviceGetTemperature")
    entered.clear()
    pending = asyncio.create_task(reader.readings())
    await wait_until(entered.is_set)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    nvml_shim.unhang()
    assert len(await reader.readings()) == 8
    await reader.close()
