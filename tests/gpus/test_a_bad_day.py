"""Reader, roster, topology and ledger together, on the shim, as the agent uses them."""

import asyncio
import time

import pynvml  # noqa: F401 - imported before the clock of a deadline runs
import pytest
from tests.shim.nvml import NvmlShim, uuid

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.topology import GpuPosition, places
from gpufleet.model.node import Health


async def look(reader: DeadlineReader, ledger: HealthTracker) -> list[Health]:
    at = time.time()
    try:
        ledger.see_devices(await reader.inventory(), at)
        ledger.see_readings(await reader.readings())
        ledger.see_events(await reader.events(0))
    except DevicesUnavailable as silence:
        ledger.see_silence(str(silence), at)
    return [ledger.verdict(uuid(n)).health for n in range(8)]


async def test_faults_are_noticed_and_recovered_from_one_after_the_other(nvml_shim: NvmlShim) -> None:
    reader, ledger = DeadlineReader(NvmlReader, deadline=0.5), HealthTracker()
    well, bad, unknown = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN
    assert await look(reader, ledger) == [well] * 8

    nvml_shim.xid(2, 48)
    assert await look(reader, ledger) == [well, well, bad, *[well] * 5]

    nvml_shim.set("2.field.83", 10)  # reset: the energy counter starts again
    assert await look(reader, ledger) == [well] * 8

    nvml_shim.lose(6)
    assert await look(reader, ledger) == [*[well] * 6, bad, well]
    assert places(await reader.inventory())[uuid(6)] == GpuPosition("nvlink-group-0", 0)

    nvml_shim.xid(6, 79)
    assert await look(reader, ledger) == [bad] * 8

    nvml_shim.find_again(6)
    assert await look(reader, ledger) == [well] * 8

    nvml_shim.hang("nvmlDeviceGetTemperature")
    assert await look(reader, ledger) == [unknown] * 8
    assert "does not answer since" in ledger.verdict(uuid(0)).reason

    nvml_shim.unhang()
    async with asyncio.timeout(10):
        while reader.stuck:  # noqa: ASYNC110 - a thread that ends tells nobody
            await asyncio.sleep(0.01)
    assert await look(reader, ledger) == [well] * 8
    assert [change.health for change in ledger.changes(uuid(6))] == [well, bad, bad, well, unknown, well]
    await reader.close()


async def test_an_answer_that_nobody_waits_for_any_more_disturbs_nobody(nvml_shim: NvmlShim) -> None:
    reader = DeadlineReader(NvmlReader, deadline=5)
    await reader.readings()
    nvml_shim.hang("nvmlDeviceGetTemperature")
    asking = asyncio.create_task(reader.readings())
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    nvml_shim.unhang()
    assert len(await reader.readings()) == 8
    await reader.close()
