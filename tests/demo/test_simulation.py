"""The simulated fleet is deterministic and consistent."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.simulation.hardware import BUILT, DAY, lost_gpu_index
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.training import training_points
from gpufleet.model.reading import FaultKind, Quantity

NOW = BUILT + 300 * DAY + 12_345.0
moments = st.floats(BUILT + 60 * DAY, BUILT + 700 * DAY).map(math.floor).map(float)
seeds = st.integers(0, 10_000)
sizes = st.tuples(st.integers(1, 40), st.integers(1, 16))


@pytest.fixture(scope="module")
def fleet() -> Simulation:
    """The fleet of `gpufleet demo` without options."""
    return Simulation(seed=1, nodes=32, gpus=8)


def test_the_same_seed_at_the_same_time_is_the_same_fleet(fleet: Simulation) -> None:
    twin, other = Simulation(1, 32, 8), Simulation(2, 32, 8)
    assert list(allocation_periods(twin, NOW - DAY, NOW)) == list(allocation_periods(fleet, NOW - DAY, NOW))
    assert list(allocation_periods(other, NOW - DAY, NOW)) != list(allocation_periods(fleet, NOW - DAY, NOW))
    first, second = fleet.readings_at(NOW), twin.readings_at(NOW)
    assert first.gpus == second.gpus
    for quantity, column in first.values.items():
        np.testing.assert_array_equal(column, second.values[quantity])


@settings(max_examples=40, deadline=None)
@given(seeds, sizes, moments)
def test_no_gpu_is_allocated_twice_and_no_faulty_gpu_at_all(
    seed: int, size: tuple[int, int], at: float
) -> None:
    fleet = Simulation(seed, *size)
    held = Counter((h.node, gpu) for h in allocation_periods(fleet, at, at + 1) for gpu in h.held)
    assert all(count == 1 for count in held.values())
    for machine in fleet.hardware.machines:
        mine = {gpu for node, gpu in held if node == machine.name}
        assert mine <= set(range(size[1]))
        if fleet.hardware.is_down(machine, at):
            assert not mine
        assert fleet.hardware.lost_gpu(machine, at) not in mine


@settings(max_examples=40, deadline=None)
@given(seeds, moments, st.floats(0, 40 * 3600), st.floats(0, 40 * 3600))
def test_allocated_time_adds_up_over_any_split(seed: int, start: float, first: float, then: float) -> None:
    fleet = Simulation(seed, 12, 8)
    middle, end = start + first, start + first + then

    def gpu_seconds(since: float, until: float) -> float:
        return sum(h.gpus * ((h.end or until) - h.start) for h in allocation_periods(fleet, since, until))

    whole = gpu_seconds(start, end)
    assert gpu_seconds(start, middle) + gpu_seconds(middle, end) == pytest.approx(whole, abs=0.01)
    assert whole <= 12 * 8 * (end - start) + 0.01


@settings(max_examples=30, deadline=None)
@given(seeds, moments)
def test_readings_are_plausible_and_missing_only_for_faulty_hardware(seed: int, at: float) -> None:
    fleet = Simulation(seed, 16, 8)
    readings = fleet.readings_at(at)
    held = {(h.node, gpu) for h in allocation_periods(fleet, at, at + 1) for gpu in h.held}
    machines = {machine.name: machine for machine in fleet.hardware.machines}
    assert list(readings.gpus) == sorted(readings.gpus, key=lambda gpu: gpu.ref)
    for row, gpu in enumerate(readings.gpus):
        machine = machines[gpu.ref.node]
        lost = fleet.hardware.lost_gpu(machine, at) == gpu.ref.index
        used = readings.value(row, Quantity.UTILIZATION)
        assert (used is None) == (lost or fleet.hardware.is_down(machine, at))
        assert lost == any(fault.kind is FaultKind.XID for fault in readings.faults.get(row, ()))
        if used is None:
            assert readings.sampled_at(row) is None
            continue
        assert 0 <= used <= 100
        assert used <= 1 or (gpu.ref.node, gpu.ref.index) in held
        power, limit = (readings.value(row, q) for q in (Quantity.POWER, Quantity.POWER_LIMIT))
        assert power is not None
        assert limit is not None
        assert machine.model.idle_watts <= power <= limit
        memory = [
            readings.value(row, q)
            for q in (Quantity.MEMORY_USED, Quantity.MEMORY_FREE, Quantity.MEMORY_TOTAL)
        ]
        assert memory[0] is not None
        assert memory[1] is not None
        assert memory[0] + memory[1] == memory[2] == machine.model.memory_bytes


@settings(max_examples=20, deadline=None)
@given(seeds, moments, st.lists(st.integers(0, 3600), min_size=1, max_size=6, unique=True))
def test_a_reading_does_not_depend_on_the_other_times_requested(
    seed: int, at: float, others: list[int]
) -> None:
    fleet = Simulation(seed, 9, 4)
    times = np.array(sorted({at, *(at + other for other in others)}))
    grid = fleet.measure(times)
    alone = fleet.readings_at(at).values
    column = int(np.flatnonzero(times == at)[0])
    for quantity, values in alone.items():
        np.testing.assert_array_equal(grid[quantity][:, column], values)


def test_the_default_fleet_has_every_kind_of_workload_and_gpu(fleet: Simulation) -> None:
    week = list(fleet.runs(NOW - 7 * DAY, NOW))
    kinds = {"PyTorchJob", "Job", "CronJob", "Deployment", "StatefulSet", "DaemonSet", "Pod"}
    assert {run.kind for run in week} == kinds | {"SlurmJob", "Container"}
    assert Counter(machine.source for machine in fleet.hardware.machines) == {
        "k8s": 28,
        "slurm": 3,
        "docker": 1,
    }
    assert {machine.model.vendor for machine in fleet.hardware.machines} == {"nvidia", "amd"}
    assert len({machine.model.short for machine in fleet.hardware.machines}) == 5
    assert len({run.team.name for run in week}) == 6
    assert any(run.fails for run in week)


@pytest.mark.parametrize("day", range(20))
def test_every_day_has_faults_idle_gpus_and_a_queue(fleet: Simulation, day: int) -> None:
    at = NOW + day * DAY
    hardware, readings = fleet.hardware, fleet.readings_at(at)
    assert sum(hardware.is_down(machine, at) for machine in hardware.machines) == 1
    assert sum(hardware.lost_gpu(machine, at) is not None for machine in hardware.machines) == 1
    assert hardware.down_since(at) <= at
    assert hardware.lost_since(at) <= at
    assert any(run.created <= at < run.bound for run in fleet.runs(at, at))
    held = {(h.node, gpu) for h in allocation_periods(fleet, at, at + 1) for gpu in h.held}
    assert 0.5 < len(held) / 256 < 0.95
    idle = [
        gpu.ref
        for row, gpu in enumerate(readings.gpus)
        if (gpu.ref.node, gpu.ref.index) in held and (readings.value(row, Quantity.UTILIZATION) or 0) < 3
    ]
    assert idle, "no allocated GPU is idle"


def test_a_pytorch_job_runs_at_any_hour_as_the_docs_expect(fleet: Simulation) -> None:
    for hour in range(60 * 24):
        at = NOW + hour * 3600
        assert any(run.kind == "PyTorchJob" and run.started <= at < run.ended for run in fleet.runs(at, at))


def test_the_backlog_never_fits_the_free_nodes(fleet: Simulation) -> None:
    (positions,) = {run.slot.positions for run in fleet.runs(NOW, NOW) if run.bound == math.inf}
    model = fleet.hardware.machines[positions[0].node].model
    for hours in range(0, 24 * 14, 5):
        at = NOW + 3600 * hours
        busy = {h.node for h in allocation_periods(fleet, at, at + 1)}
        free = [
            machine
            for machine in fleet.hardware.machines
            if machine.model is model
            and machine.name not in busy
            and not fleet.hardware.is_down(machine, at)
            and fleet.hardware.lost_gpu(machine, at) is None
        ]
        assert len(free) < len(positions)


def test_gpus_that_get_lost_are_never_allocated(fleet: Simulation) -> None:
    for number in fleet.hardware.faulty.xid or ():
        machine = fleet.hardware.machines[number]
        positions = [
            position for slot in fleet.slots for position in slot.positions if slot.role.name != "backlog"
        ]
        assert not any(p.node == number and lost_gpu_index(machine) in p.gpus for p in positions)


def test_a_training_run_reports_a_falling_loss_once_a_minute(fleet: Simulation) -> None:
    run = next(run for run in fleet.runs(NOW, NOW) if run.trains and run.bound < NOW)
    ends = run.started + 7200
    run = replace(run, ended=ends)
    whole = list(training_points(run, run.created, ends))
    cuts = [run.created, run.started + 100, run.started + 1234.5, run.started + 1260, ends]
    pieces = [p for since, until in itertools.pairwise(cuts) for p in training_points(run, since, until)]
    assert pieces == whole
    losses = [point.value for point in whole if point.metric == "loss"]
    assert len(losses) == 120
    assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:20])
    assert all(0 < point.value < 1 for point in whole if point.metric == "mfu")
    assert all(run.started < point.time <= ends for point in whole)


def test_processes_are_on_held_gpus_only(fleet: Simulation) -> None:
    held = {(h.node, gpu) for h in allocation_periods(fleet, NOW, NOW + 1) for gpu in h.held}
    rows = fleet.processes_at(NOW).rows
    assert rows
    assert {(row.gpu.node, row.gpu.index) for row in rows} <= held
    assert list(rows) == sorted(rows, key=lambda row: (row.gpu, row.pid))


def test_ports_of_a_node_that_is_down_are_down(fleet: Simulation) -> None:
    ports, storage = fleet.rdma_at(NOW), fleet.storage_at(NOW)
    assert ports.total - ports.active == 8
    assert ports.total_rate == ports.active * ports.port_rate
    assert storage.used_bytes + storage.available_bytes == storage.capacity_bytes


def test_the_capacity_of_a_node_is_constant(fleet: Simulation) -> None:
    capacities = list(fleet.capacities(NOW - DAY, NOW))
    assert sum(capacity.gpus for capacity in capacities) == 256
    assert {capacity.start for capacity in capacities} == {NOW - DAY}
