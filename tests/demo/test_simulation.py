"""The simulated fleet is deterministic and consistent."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.simulation.hardware import BUILT, DAY
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
    periods = list(allocation_periods(fleet, at, at + 1))
    held = Counter((h.node, gpu, fraction(h.share)) for h in periods for gpu in h.held)
    shares = Counter[tuple[str, int]]()
    for (node, gpu, share), count in held.items():
        shares[node, gpu] += count * share  # type: ignore[assignment]
    assert all(share <= 1 for share in shares.values())
    parts = [p for slot in fleet.slots for p in slot.positions if p.part]
    assert len(parts) == len({p.part.uuid for p in parts if p.part}), "an instance belongs to two slots"
    for machine in fleet.hardware.machines:
        mine = {gpu for node, gpu in shares if node == machine.name}
        assert mine <= set(range(size[1]))
        if fleet.hardware.is_down(machine, at) or fleet.hardware.lost_gpu(machine, at) is not None:
            assert not mine, "XID 79 makes every GPU of the node Unhealthy"


def fraction(share: float) -> Fraction:
    return Fraction(share).limit_denominator(7)


@settings(max_examples=40, deadline=None)
@given(seeds, moments, st.floats(0, 40 * 3600), st.floats(0, 40 * 3600))
def test_allocated_time_adds_up_over_any_split(seed: int, start: float, first: float, then: float) -> None:
    fleet = Simulation(seed, 12, 8)
    middle, end = start + first, start + first + then

    def gpu_seconds(since: float, until: float) -> float:
        return sum(
            h.gpus * h.share * ((h.end or until) - h.start) for h in allocation_periods(fleet, since, until)
        )

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
    assert len({machine.model.short for machine in fleet.hardware.machines}) == 6
    assert len({run.team.name for run in week}) == 6
    assert any(run.fails for run in week)


@pytest.mark.parametrize("day", range(20))
def test_every_day_has_faults_idle_gpus_and_a_queue(fleet: Simulation, day: int) -> None:
    at = NOW + day * DAY
    hardware, readings = fleet.hardware, fleet.readings_at(at)
    assert sum(hardware.is_down(machine, at) for machine in hardware.machines) == 1
    assert sum(hardware.lost_gpu(machine, at) is not None for machine in hardware.machines) == 1
    for machine in hardware.machines:
        assert hardware.out_since(machine, at) <= at
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


def test_a_fault_ends_the_runs_of_its_node_and_none_starts_before_the_repair(fleet: Simulation) -> None:
    machines = [machine for machine in fleet.hardware.machines if fleet.hardware.outage(machine)]
    assert len(machines) == 4
    for machine in machines:
        outage = fleet.hardware.outage(machine)
        assert outage is not None
        runs = [
            run
            for run in fleet.runs(NOW - 60 * DAY, NOW)
            if run.bound < math.inf and any(p.node == machine.number for p in run.slot.positions)
        ]
        assert runs, "a repaired node is used again"
        for run in runs:
            assert not outage.covers(run.bound)
            assert run.ended <= outage.next_start(run.bound)
        assert any(run.fails and run.ended == outage.next_start(run.bound) for run in runs)


def test_some_gpus_are_in_mig_mode_and_their_instances_are_used(fleet: Simulation) -> None:
    machines = {m.number: m for m in fleet.hardware.machines if m.mig_gpus}
    assert {machine.model.short for machine in machines.values()} == {"a100", "h100"}
    runs = [
        run for run in fleet.runs(NOW, NOW) if run.slot.positions[0].part and run.bound <= NOW < run.ended
    ]
    assert {run.slot.positions[0].node for run in runs} == machines.keys()
    for slot in fleet.slots:
        for position in slot.positions:
            in_mig_mode = {gpu < fleet.hardware.machines[position.node].mig_gpus for gpu in position.gpus}
            assert slot.role.name == "backlog" or in_mig_mode == {position.part is not None}


def test_replicas_of_services_and_notebooks_change_over_the_day(fleet: Simulation) -> None:
    counts: dict[str, set[tuple[str, int]]] = {"Deployment": set(), "StatefulSet": set()}
    for hour in range(48):
        at = NOW + hour * 3600
        pods = Counter(
            (h.workload_kind, h.workload_uid)
            for h in allocation_periods(fleet, at, at + 1)
            if h.workload_kind in counts
        )
        for (kind, uid), count in pods.items():
            counts[kind].add((uid, count))
    for kind, seen in counts.items():
        assert len(seen) > len({uid for uid, _ in seen}), f"no {kind} was scaled"


def test_a_queued_run_has_nodes_of_its_own(fleet: Simulation) -> None:
    queued = [run for run in fleet.runs(NOW - 7 * DAY, NOW) if run.bound - run.created > 60]
    mine = [run for run in queued if run.slot.role.source == "k8s" and run.slot.role.name != "backlog"]
    assert len(mine) > 20
    for run in mine:
        nodes = {position.node for position in run.slot.positions}
        others = [
            slot
            for slot in fleet.slots
            if slot != run.slot
            and slot.role.name != "backlog"
            and nodes & {position.node for position in slot.positions}
        ]
        assert run.slot.pool
        assert others == []


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
