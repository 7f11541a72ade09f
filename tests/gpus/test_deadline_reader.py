import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pynvml  # noqa: F401 - imported before the clock of a deadline runs
import pytest
from tests.shim.nvml import NvmlShim, machine, uuid
from tests.waiting import wait_until

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.drivers.simulated import SimulatedReader


class Clock:
    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reader(nvml_shim: NvmlShim, clock: Clock) -> AsyncIterator[DeadlineReader]:
    reader = DeadlineReader(NvmlReader, deadline=0.5, min_backoff=10, max_backoff=40, max_stuck=3, now=clock)
    yield reader
    nvml_shim.unhang()
    await wait_until(lambda: reader.stuck == 0)
    await reader.close()


def driver_threads() -> int:
    return sum(thread.name == "gpu-driver" for thread in threading.enumerate())


async def test_results_are_passed_through(reader: DeadlineReader, nvml_shim: NvmlShim) -> None:
    nvml_shim.run(1, os.getpid(), 4096)
    assert len(await reader.inventory()) == 8
    assert [reading.uuid for reading in await reader.readings()] == [uuid(n) for n in range(8)]
    assert [row.pid for row in await reader.processes()] == [os.getpid()]
    assert await reader.describe() == ("NVML 13.580.95, driver 580.95.05", False)
    assert reader.silent_since is None


async def test_a_hanging_call_ends_at_its_deadline_with_the_time_of_the_first_failure(
    reader: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    await reader.readings()
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="has not answered since 2023-11-14T22:13:20"):
        await reader.readings()
    assert reader.silent_since == 1_700_000_000.0
    assert reader.stuck == 1


async def test_during_backoff_calls_fail_immediately(
    reader: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="retrying in 10 s"):
        await reader.readings()
    threads = driver_threads()
    clock.time += 4
    for _ in range(50):
        with pytest.raises(DevicesUnavailable, match=r"since 2023-11-14T22:13:20.*retrying in 6 s"):
            await reader.readings()
    assert driver_threads() == threads


async def test_a_new_thread_answers_once_the_driver_works_again(
    reader: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable):
        await reader.readings()
    nvml_shim.unhang()
    await wait_until(lambda: reader.stuck == 0)
    assert len(await reader.readings()) == 8, "a thread that returned ends the backoff"
    assert reader.silent_since is None


async def test_the_number_of_abandoned_threads_is_limited(
    reader: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    before = driver_threads()
    for _ in range(6):
        with pytest.raises(DevicesUnavailable):
            await reader.readings()
        clock.time += 1000
    assert reader.stuck == 3
    assert driver_threads() == before + 3
    with pytest.raises(DevicesUnavailable, match="restart this process"):
        await reader.readings()


@pytest.mark.parametrize(("longest", "pauses"), [(40, [10, 20, 40]), (15, [10, 15, 15])])
async def test_backoff_doubles_up_to_its_maximum(
    nvml_shim: NvmlShim, clock: Clock, longest: float, pauses: list[int]
) -> None:
    reader = DeadlineReader(NvmlReader, deadline=0.5, min_backoff=10, max_backoff=longest, now=clock)
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    for pause in pauses:
        with pytest.raises(DevicesUnavailable, match=f"since 2023-11-14T22:13:20.*retrying in {pause} s"):
            await reader.readings()
        clock.time += pause
    nvml_shim.unhang()
    await wait_until(lambda: reader.stuck == 0)


async def test_a_driver_that_hangs_on_open_does_not_block(
    reader: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    nvml_shim.hang("nvmlInitWithFlags")
    with pytest.raises(DevicesUnavailable, match="has not answered"):
        await reader.inventory()


async def test_waiting_for_events_does_not_delay_readings(
    reader: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    await reader.events(0)
    waiting = asyncio.create_task(reader.events(5))
    await reader.readings()
    assert not waiting.done()
    nvml_shim.xid(2, 48)
    assert [event.code for event in await waiting] == [48]


async def test_the_event_loop_keeps_running_while_the_driver_hangs(
    reader: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    pending = asyncio.create_task(reader.readings())
    turns = 0
    while not pending.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 5
    with pytest.raises(DevicesUnavailable):
        await pending


async def test_a_gpu_that_disappears_is_a_fault_and_not_a_smaller_machine(
    reader: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    assert len(await reader.inventory()) == 8
    nvml_shim.lose(7)
    lost = (await reader.inventory())[7]
    assert lost.fault is not None
    assert lost.model == "NVIDIA H100 80GB HBM3"
    nvml_shim.describe(machine(6))
    devices = await reader.inventory()
    assert [device.fault is not None for device in devices] == [False] * 6 + [True, True]
    nvml_shim.describe(machine(8))
    assert all(device.fault is None for device in await reader.inventory())


async def test_a_driver_that_was_unloaded_is_reopened(reader: DeadlineReader, nvml_shim: NvmlShim) -> None:
    await reader.readings()
    nvml_shim.fail("nvmlDeviceGetCount_v2", 9)
    with pytest.raises(DevicesUnavailable, match="Driver Not Loaded"):
        await reader.readings()
    nvml_shim.unset("fail.nvmlDeviceGetCount_v2")
    assert len(await reader.readings()) == 8


async def test_a_cancellation_that_arrives_with_the_result_is_not_lost() -> None:
    reader = DeadlineReader(SimulatedReader)
    await reader.inventory()

    async def ask_forever() -> None:
        while True:
            await reader.inventory()

    for pause in range(200):
        pending = asyncio.create_task(ask_forever())
        await asyncio.sleep(0.0002 * (pause % 10))
        pending.cancel()
        done, _ = await asyncio.wait([pending], timeout=2)
        assert done
    await reader.close()


async def test_a_driver_that_returns_errors_is_not_silent(
    reader: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="has not answered"):
        await reader.readings()
    nvml_shim.fail("nvmlInitWithFlags", 9)
    nvml_shim.unhang()
    await wait_until(lambda: reader.stuck == 0)
    with pytest.raises(DevicesUnavailable, match="Driver Not Loaded"):
        await reader.readings()
    assert reader.silent_since is None


async def test_a_clock_set_back_does_not_delay_the_next_attempt(
    reader: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="retrying in 10 s"):
        await reader.readings()
    clock.time -= 86_400
    assert len(await reader.inventory()) == 8
