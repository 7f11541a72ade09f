import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable

import pynvml  # noqa: F401 - imported before the clock of a deadline runs
import pytest
from tests.shim.nvml import NvmlShim, machine, uuid

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
async def patient(nvml_shim: NvmlShim, clock: Clock) -> AsyncIterator[DeadlineReader]:
    reader = DeadlineReader(
        NvmlReader, deadline=0.5, first_pause=10, longest_pause=40, max_stuck=3, now=clock
    )
    yield reader
    nvml_shim.unhang()
    await eventually(lambda: reader.stuck == 0)
    await reader.close()


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - a thread that ends tells nobody
            await asyncio.sleep(0.01)


def driver_threads() -> int:
    return sum(thread.name == "gpu-driver" for thread in threading.enumerate())


async def test_answers_come_through(patient: DeadlineReader, nvml_shim: NvmlShim) -> None:
    nvml_shim.run(1, os.getpid(), 4096)
    assert len(await patient.inventory()) == 8
    assert [reading.uuid for reading in await patient.readings()] == [uuid(n) for n in range(8)]
    assert [row.pid for row in await patient.processes()] == [os.getpid()]
    assert await patient.describe() == ("NVML 13.580.95, driver 580.95.05", False)
    assert patient.silent_since is None


async def test_a_hanging_call_ends_at_its_deadline_and_says_since_when(
    patient: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    await patient.readings()
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="does not answer since 2023-11-14T22:13:20"):
        await patient.readings()
    assert patient.silent_since == 1_700_000_000.0
    assert patient.stuck == 1


async def test_while_it_waits_for_the_next_try_nothing_is_asked_and_the_answer_is_quick(
    patient: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="next try in 10 s"):
        await patient.readings()
    threads = driver_threads()
    clock.time += 4
    for _ in range(50):
        with pytest.raises(DevicesUnavailable, match=r"since 2023-11-14T22:13:20.*next try in 6 s"):
            await patient.readings()
    assert driver_threads() == threads


async def test_a_fresh_worker_answers_once_the_driver_does_again(
    patient: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable):
        await patient.readings()
    nvml_shim.unhang()
    await eventually(lambda: patient.stuck == 0)
    assert len(await patient.readings()) == 8, "a thread that came back is a sign of life: no need to wait"
    assert patient.silent_since is None


async def test_threads_left_behind_are_bounded_however_long_the_driver_hangs(
    patient: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    before = driver_threads()
    for _ in range(6):
        with pytest.raises(DevicesUnavailable):
            await patient.readings()
        clock.time += 1000
    assert patient.stuck == 3
    assert driver_threads() == before + 3
    with pytest.raises(DevicesUnavailable, match="restart this process"):
        await patient.readings()


@pytest.mark.parametrize(("longest", "pauses"), [(40, [10, 20, 40]), (15, [10, 15, 15])])
async def test_pauses_double_up_to_the_longest(
    nvml_shim: NvmlShim, clock: Clock, longest: float, pauses: list[int]
) -> None:
    patient = DeadlineReader(NvmlReader, deadline=0.5, first_pause=10, longest_pause=longest, now=clock)
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    for pause in pauses:
        with pytest.raises(DevicesUnavailable, match=f"since 2023-11-14T22:13:20.*next try in {pause} s"):
            await patient.readings()
        clock.time += pause
    nvml_shim.unhang()
    await eventually(lambda: patient.stuck == 0)


async def test_a_driver_that_hangs_when_it_is_opened_does_not_block_either(
    patient: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    nvml_shim.hang("nvmlInitWithFlags")
    with pytest.raises(DevicesUnavailable, match="does not answer"):
        await patient.inventory()


async def test_waiting_for_events_holds_up_no_reading(patient: DeadlineReader, nvml_shim: NvmlShim) -> None:
    await patient.events(0)
    waiting = asyncio.create_task(patient.events(5))
    await patient.readings()
    assert not waiting.done()
    nvml_shim.xid(2, 48)
    assert [event.code for event in await waiting] == [48]


async def test_the_loop_keeps_turning_while_the_driver_hangs(
    patient: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    asking = asyncio.create_task(patient.readings())
    turns = 0
    while not asking.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 5
    with pytest.raises(DevicesUnavailable):
        await asking


async def test_a_gpu_that_disappears_is_a_fault_and_not_a_smaller_machine(
    patient: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    assert len(await patient.inventory()) == 8
    nvml_shim.lose(7)
    lost = (await patient.inventory())[7]
    assert lost.fault is not None
    assert lost.model == "NVIDIA H100 80GB HBM3"
    nvml_shim.describe(machine(6))
    devices = await patient.inventory()
    assert [device.fault is not None for device in devices] == [False] * 6 + [True, True]
    nvml_shim.describe(machine(8))
    assert all(device.fault is None for device in await patient.inventory())


async def test_a_driver_that_goes_away_is_opened_anew_when_it_is_back(
    patient: DeadlineReader, nvml_shim: NvmlShim
) -> None:
    await patient.readings()
    nvml_shim.fail("nvmlDeviceGetCount_v2", 9)
    with pytest.raises(DevicesUnavailable, match="Driver Not Loaded"):
        await patient.readings()
    nvml_shim.unset("fail.nvmlDeviceGetCount_v2")
    assert len(await patient.readings()) == 8


async def test_a_cancellation_that_comes_with_the_answer_is_not_lost() -> None:
    reader = DeadlineReader(SimulatedReader)
    await reader.inventory()

    async def ask_forever() -> None:
        while True:
            await reader.inventory()

    for pause in range(200):
        asking = asyncio.create_task(ask_forever())
        await asyncio.sleep(0.0002 * (pause % 10))
        asking.cancel()
        done, _ = await asyncio.wait([asking], timeout=2)
        assert done
    await reader.close()


async def test_a_driver_that_refuses_is_not_called_silent(
    patient: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="does not answer"):
        await patient.readings()
    nvml_shim.fail("nvmlInitWithFlags", 9)
    nvml_shim.unhang()
    await eventually(lambda: patient.stuck == 0)
    with pytest.raises(DevicesUnavailable, match="Driver Not Loaded"):
        await patient.readings()
    assert patient.silent_since is None


async def test_a_clock_that_is_set_back_does_not_put_off_the_next_try(
    patient: DeadlineReader, nvml_shim: NvmlShim, clock: Clock
) -> None:
    nvml_shim.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnavailable, match="next try in 10 s"):
        await patient.readings()
    clock.time -= 86_400
    assert len(await patient.inventory()) == 8
