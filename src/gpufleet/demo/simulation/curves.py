"""GPU readings as functions of time: utilization and everything derived from it.

Functions work on many GPUs and times together (numpy), because a week of a fleet is millions of values.
Noise is a hash of GPU and time, so that a time always gives the same reading.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpufleet.demo.simulation.hardware import DAY, GIB, GpuModel
from gpufleet.demo.simulation.timeline import HOUR, Run
from gpufleet.model.reading import Column, Quantity

Matrix = NDArray[np.float64]


def noise(rows: NDArray[np.int64], times: Column) -> Matrix:
    """Return a number from 0 to 1 for each row and time."""
    ticks = np.floor(times).astype(np.uint64)
    mixed = rows.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + ticks * np.uint64(
        0xBF58476D1CE4E5B9
    )
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(29)
    return np.asarray((mixed >> np.uint64(40)).astype(np.float64) / 2.0**24)


def load(run: Run, rows: NDArray[np.int64], times: Column) -> Matrix:
    """Return the utilization, 0–1, of a run's GPUs while it runs."""
    shape = _SHAPES[run.slot.role.load](run, times)
    spread = {"training": 0.05, "serving": 0.15, "batch": 0.2, "idle": 0.01}[run.slot.role.load]
    values = shape[None, :] + spread * (noise(rows, times) - 0.5)
    return np.asarray(np.clip(values, 0.0, 1.0))


def _training(run: Run, times: Column) -> Column:
    """A constant level with a warm-up, and a dip of a minute for a checkpoint every half hour."""
    age = times - run.started
    warm = np.clip(age / 120.0, 0.05, 1.0)
    checkpoint = np.where(age % 1800.0 > 1740.0, 0.15, 1.0)
    return np.asarray(run.level * warm * checkpoint)


def _serving(run: Run, times: Column) -> Column:
    """Daily traffic: a peak in the afternoon, quiet at night."""
    hour = times % DAY / HOUR
    day = 0.55 + 0.45 * np.cos((hour - 15.0) / 24.0 * 2 * np.pi)
    return np.asarray(run.level * day)


def _batch(run: Run, times: Column) -> Column:
    """Bursts with pauses to load data."""
    age = times - run.started
    return np.asarray(run.level * np.where(age % 420.0 < 320.0, 1.0, 0.25))


def _idle(run: Run, times: Column) -> Column:
    """Almost nothing, except for a quarter of an hour every other day."""
    age = (times - run.started) % (2 * DAY)
    return np.asarray(np.where(age < 900.0, 0.6, run.level))


_SHAPES = {"training": _training, "serving": _serving, "batch": _batch, "idle": _idle}


def quantities(
    model: GpuModel, used: Matrix, memory: Matrix, trains: Matrix, requested: frozenset[Quantity]
) -> dict[Quantity, Matrix]:
    """Return the requested quantities from utilization, memory share and whether the run trains."""
    return {quantity: _MEASURED[quantity](model, used, memory, trains) for quantity in requested}


def all_quantities() -> frozenset[Quantity]:
    """Return every quantity that a GPU reports."""
    return frozenset(_MEASURED)


def _memory_used(model: GpuModel, memory: Matrix) -> Matrix:
    """Return the bytes in use, in whole MiB."""
    return np.asarray(np.round((memory * model.memory_bytes + 0.4 * GIB) / 2**20) * 2**20)


_MEASURED: dict[Quantity, Callable[[GpuModel, Matrix, Matrix, Matrix], Matrix]] = {
    Quantity.UTILIZATION: lambda model, used, memory, trains: np.round(100 * used),
    Quantity.MEMORY_USED: lambda model, used, memory, trains: _memory_used(model, memory),
    Quantity.MEMORY_FREE: lambda model, used, memory, trains: (
        model.memory_bytes - _memory_used(model, memory)
    ),
    Quantity.MEMORY_TOTAL: lambda model, used, memory, trains: np.full_like(used, model.memory_bytes),
    Quantity.MEMORY_UTILIZATION: lambda model, used, memory, trains: np.round(
        100 * _memory_used(model, memory) / model.memory_bytes, 1
    ),
    Quantity.TEMPERATURE: lambda model, used, memory, trains: np.round(29 + 44 * used),
    Quantity.POWER: lambda model, used, memory, trains: np.round(
        model.idle_watts + 0.93 * (model.limit_watts - model.idle_watts) * used, 1
    ),
    Quantity.POWER_LIMIT: lambda model, used, memory, trains: np.full_like(used, model.limit_watts),
    Quantity.SM_ACTIVITY: lambda model, used, memory, trains: np.round(0.9 * used, 3),
    Quantity.TENSOR_ACTIVITY: lambda model, used, memory, trains: np.round(used * (0.15 + 0.35 * trains), 3),
    Quantity.DRAM_ACTIVITY: lambda model, used, memory, trains: np.round(0.55 * used, 3),
    Quantity.FABRIC_TRAFFIC: lambda model, used, memory, trains: (
        np.round(trains * used * 0.35e9 * model.bandwidth_gbps, -6)
        if model.bandwidth_gbps
        else np.full_like(used, np.nan)
    ),
}
