import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.gpus.drivers.detect import open_reader
from gpufleet.gpus.drivers.simulated import SimulatedReader
from gpufleet.gpus.topology import GpuPosition, gpu_positions


class Clock:
    def __init__(self, time: float) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time


def test_simulated_gpus_are_marked() -> None:
    reader = open_reader("simulated")
    assert reader.simulated is True
    assert "simulated" in reader.name
    assert all("Simulated" in (device.model or "") for device in reader.inventory())


def test_the_same_seed_and_moment_give_the_same_machine() -> None:
    one, other, third = (SimulatedReader(seed=seed, now=Clock(5000.0)) for seed in (7, 7, 8))
    assert one.inventory() == other.inventory()
    assert one.readings() == other.readings()
    assert one.readings() != third.readings()
    assert set(gpu_positions(one.inventory()).values()) == {GpuPosition("nvlink-group-0", 900)}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.floats(1.7e9, 2e9))
def test_readings_are_plausible(seed: int, at: float) -> None:
    for reading in SimulatedReader(seed=seed, now=Clock(at)).readings():
        assert 0 <= (reading.utilization_percent or 0) <= 100
        assert reading.power_watts is not None
        assert reading.power_limit_watts is not None
        assert 0 < reading.power_watts <= reading.power_limit_watts
        assert reading.memory_used_bytes is not None
        assert reading.memory_free_bytes is not None
        assert reading.memory_used_bytes + reading.memory_free_bytes == reading.memory_total_bytes
        assert 20 <= (reading.temperature_celsius or 0) <= 90


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_energy_is_the_sum_of_power_over_time(seed: int) -> None:
    clock = Clock(1_700_000_000.0)
    reader = SimulatedReader(count=3, seed=seed, now=clock)
    before, drawn = reader.readings(), [0.0] * 3
    for _ in range(600):
        clock.time += 0.5
        drawn = [
            sum_ + (reading.power_watts or 0) for sum_, reading in zip(drawn, reader.readings(), strict=True)
        ]
        clock.time += 0.5
    for first, last, joules in zip(before, reader.readings(), drawn, strict=True):
        assert last.energy_joules is not None
        assert first.energy_joules is not None
        assert last.energy_joules - first.energy_joules == pytest.approx(joules, rel=0.001, abs=1)


def test_only_gpus_in_use_have_a_process_and_users_need_identify() -> None:
    reader = SimulatedReader(count=64, seed=1, now=Clock(5000.0))
    used = {reading.index for reading in reader.readings() if reading.memory_used_bytes}
    assert 0 < len(used) < 64
    assert {row.index for row in reader.processes()} == used
    assert {row.user for row in reader.processes()} == {None}
    assert {row.user for row in reader.processes(identify=True)} == {"simulated"}


def test_an_xid_is_reported_once_when_it_is_due() -> None:
    clock = Clock(100.0)
    reader = SimulatedReader(now=clock, xids=((150.0, 3, 79),))
    assert reader.events(0) == ()
    clock.time = 160.0
    (event,) = reader.events(0)
    assert (event.code, event.at, event.uuid) == (79, 150.0, reader.inventory()[3].uuid)
    assert reader.events(0) == ()
