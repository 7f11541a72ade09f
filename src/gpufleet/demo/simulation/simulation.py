"""The state of a simulated fleet at any time.

A fleet follows from a seed, a number of nodes and a number of GPUs per node. Nothing here reads a
clock or writes anything; `player` and `history` write it to an API and a store.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpufleet.demo.simulation.curves import Matrix, all_quantities, load, noise, quantities
from gpufleet.demo.simulation.hardware import DAY, XID, Hardware, build_hardware, lost_gpu_index
from gpufleet.demo.simulation.slots import build_slots
from gpufleet.demo.simulation.timeline import Run, Slot, runs_between
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.periods import CapacityPeriod
from gpufleet.model.reading import (
    Column,
    Fault,
    FaultKind,
    GpuIdentity,
    GpuProcess,
    GpuRef,
    Processes,
    Quantity,
    RdmaPorts,
    Readings,
    StorageUse,
)

TICK = 15.0
"""Seconds between readings."""

_PORT_RATE = 50e9
"""Bytes per second of a 400 Gb/s port."""


class Simulation:
    """A fleet described by a seed."""

    def __init__(self, seed: int, nodes: int, gpus: int) -> None:
        self.seed = seed
        self.hardware: Hardware = build_hardware(seed, nodes, gpus)
        self.slots: tuple[Slot, ...] = build_slots(self.hardware, seed)
        # Readings are ordered by node name.
        self._order = sorted(self.hardware.machines, key=lambda machine: machine.name)
        self._first_row = np.zeros(len(self._order), np.int64)
        row = 0
        for machine in self._order:
            self._first_row[machine.number] = row
            row += machine.gpus
        self._rows = row

    # Runs

    def runs(self, start: float, end: float, slots: Iterable[Slot] | None = None) -> Iterator[Run]:
        """Yield every run, queued or holding GPUs, that exists between `start` and `end`."""
        for slot in self.slots if slots is None else slots:
            yield from runs_between(slot, start, end)

    def capacities(self, start: float, end: float) -> Iterator[CapacityPeriod]:
        """Yield the GPU capacity of each node, which is constant."""
        for machine in self.hardware.machines:
            if machine.created < end:
                yield CapacityPeriod(
                    node=machine.name,
                    gpus=machine.gpus,
                    model=canonical_model(machine.model.name),
                    start=max(start, machine.created),
                )

    # Readings

    @cached_property
    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU, ordered by node and index."""
        return tuple(
            GpuIdentity(
                ref=GpuRef(machine.name, index),
                uuid=machine.uuids[index],
                model=canonical_model(machine.model.name),
                vendor=machine.model.vendor.upper(),
            )
            for machine in self._order
            for index in range(machine.gpus)
        )

    def readings_at(self, at: float, runs: Iterable[Run] | None = None) -> Readings:
        """Return the readings of every GPU at a time. `runs` replaces the simulation's own runs."""
        values = {q: grid[:, 0] for q, grid in self.measure(np.array([at]), runs=runs).items()}
        times = {q: np.where(np.isnan(column), np.nan, at) for q, column in values.items()}
        return Readings(at, self.gpus, values, times, faults=self._faults(at))

    def measure(
        self,
        times: Column,
        positions: frozenset[Quantity] | None = None,
        runs: Iterable[Run] | None = None,
    ) -> dict[Quantity, Matrix]:
        """Return the readings of every GPU at several times: rows as in `gpus`, NaN where nothing can be read."""
        size = (self._rows, len(times))
        used = 0.008 * noise(np.arange(self._rows), times)
        memory, shape = np.zeros(size), np.zeros(size)
        for run in self.runs(float(times[0]), float(times[-1])) if runs is None else runs:
            now = (times >= run.started) & (times < run.ended)
            if not now.any():
                continue
            rows = self.rows_of(run)
            moments = np.flatnonzero(now)
            spot = np.ix_(rows, moments)
            share = run.slot.positions[0].share
            values = load(run, rows, times[moments])
            # The instances of a GPU in MIG mode add up.
            used[spot] = values if share == 1.0 else np.minimum(1.0, used[spot] + share * values)
            memory[spot] = run.memory_share if share == 1.0 else memory[spot] + share * run.memory_share
            shape[spot] = run.trains
        return self._quantities_by_model(times, (used, memory, shape), positions)

    def rows_of(self, run: Run) -> NDArray[np.int64]:
        """Return the rows of a run's GPUs in `gpus`."""
        rows = [self._first_row[p.node] + gpu for p in run.slot.positions for gpu in p.gpus]
        return np.array(rows, np.int64)

    def _quantities_by_model(
        self, times: Column, seen: tuple[Matrix, Matrix, Matrix], positions: frozenset[Quantity] | None
    ) -> dict[Quantity, Matrix]:
        result: dict[Quantity, Matrix] = {}
        for model in {machine.model for machine in self._order}:
            rows = self._rows_by_model[model.short]
            used, memory, shape = (matrix[rows] for matrix in seen)
            requested = all_quantities() if positions is None else positions
            for quantity, values in quantities(model, used, memory, shape, requested).items():
                grid = result.setdefault(quantity, np.full((self._rows, len(times)), np.nan))
                grid[rows] = values
        self._blank_faulty(times, result)
        return result

    @cached_property
    def _rows_by_model(self) -> dict[str, NDArray[np.int64]]:
        rows: dict[str, list[int]] = {}
        for machine in self._order:
            first = int(self._first_row[machine.number])
            rows.setdefault(machine.model.short, []).extend(range(first, first + machine.gpus))
        return {short: np.array(positions, np.int64) for short, positions in rows.items()}

    def _blank_faulty(self, times: Column, grids: dict[Quantity, Matrix]) -> None:
        """Blank the readings of nodes that are down and of lost GPUs."""
        faulty = self.hardware.faulty
        for number in (*(faulty.broken or ()), *(faulty.xid or ())):
            machine = self.hardware.machines[number]
            first = int(self._first_row[number])
            down = [self.hardware.is_down(machine, at) for at in times.tolist()]
            lost = [self.hardware.lost_gpu(machine, at) is not None for at in times.tolist()]
            for grid in grids.values():
                grid[first : first + machine.gpus, down] = np.nan
                grid[first + lost_gpu_index(machine), lost] = np.nan

    def _faults(self, at: float) -> dict[int, tuple[Fault, ...]]:
        found: dict[int, tuple[Fault, ...]] = {}
        for number in self.hardware.faulty.xid or ():
            machine = self.hardware.machines[number]
            lost = self.hardware.lost_gpu(machine, at)
            if lost is not None:
                row = int(self._first_row[number]) + lost
                found[row] = (Fault(FaultKind.XID, XID, 1.0, self.hardware.out_since(machine, at)),)
        return found

    def processes_at(self, at: float, runs: Iterable[Run] | None = None) -> Processes:
        """Return one process per held GPU; `runs` as for `readings_at`."""
        rows = [
            self._process(run, GpuRef(self.hardware.machines[position.node].name, gpu), at)
            for run in (self.runs(at, at) if runs is None else runs)
            if run.started <= at < run.ended
            for position in run.slot.positions
            for gpu in position.gpus
        ]
        return Processes(tuple(sorted(rows, key=lambda row: (row.gpu, row.pid))))

    def _process(self, run: Run, gpu: GpuRef, at: float) -> GpuProcess:
        command = run.project.command
        return GpuProcess(
            gpu=gpu,
            pid=10_000 + (run.slot.number * 131 + run.number * 17 + gpu.index) % 80_000,
            name=command.split()[0],
            user=run.user,
            command=command,
            gpu_memory_bytes=round(
                run.memory_share * run.slot.positions[0].share * run.slot.model.memory_bytes
            ),
            cpu_percent=round(15 + 160 * run.level, 1),
            memory_percent=round(0.5 + 3 * run.memory_share, 1),
            time=at,
        )

    def storage_at(self, at: float) -> StorageUse:
        """Return the usage of a shared file system that fills up over a month and is then cleaned."""
        capacity = 64e12 * max(1, len(self._order))
        used = capacity * (0.42 + 0.4 * (at % (30 * DAY)) / (30 * DAY))
        return StorageUse(capacity, used, capacity - used)

    def rdma_at(self, at: float) -> RdmaPorts:
        """Return the RDMA ports, one per linked GPU. The ports of a node that is down are down."""
        linked = [machine for machine in self._order if machine.model.bandwidth_gbps]
        total = sum(machine.gpus for machine in linked)
        active = sum(machine.gpus for machine in linked if not self.hardware.is_down(machine, at))
        return RdmaPorts(total, active, _PORT_RATE, active * _PORT_RATE)
