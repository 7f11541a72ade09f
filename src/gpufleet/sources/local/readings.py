"""Convert the driver's readings and processes to the types of the metric source."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpufleet.model.device import Device, DeviceProcess, DeviceReading
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.reading import GpuIdentity, GpuProcess, GpuRef, Processes, Quantity, Readings


def _memory_share(reading: DeviceReading) -> float | None:
    if reading.memory_used_bytes is None or not reading.memory_total_bytes:
        return None
    return 100.0 * reading.memory_used_bytes / reading.memory_total_bytes


_MEASURED: dict[Quantity, Callable[[DeviceReading], float | None]] = {
    Quantity.UTILIZATION: lambda r: r.utilization_percent,
    Quantity.MEMORY_USED: lambda r: r.memory_used_bytes,
    Quantity.MEMORY_FREE: lambda r: r.memory_free_bytes,
    Quantity.MEMORY_TOTAL: lambda r: r.memory_total_bytes,
    Quantity.MEMORY_UTILIZATION: _memory_share,
    Quantity.TEMPERATURE: lambda r: r.temperature_celsius,
    Quantity.POWER: lambda r: r.power_watts,
    Quantity.POWER_LIMIT: lambda r: r.power_limit_watts,
    Quantity.SM_CLOCK: lambda r: None if r.sm_clock_mhz is None else 1e6 * r.sm_clock_mhz,
    Quantity.ENERGY: lambda r: r.energy_joules,
}
"""The quantities of a driver; its own memory utilization is something else (busy time)."""


def identities(node: str, devices: Iterable[Device]) -> tuple[GpuIdentity, ...]:
    """Return the identity of each device."""
    return tuple(
        GpuIdentity(
            GpuRef(node, device.index),
            device.uuid,
            canonical_model(device.model or ""),
            device.vendor.upper(),
        )
        for device in devices
    )


def readings_from(gpus: tuple[GpuIdentity, ...], found: Sequence[DeviceReading], at: float) -> Readings:
    """Return one refresh in columns; NaN for a GPU that could not be read."""
    by_uuid = {reading.uuid: reading for reading in found}
    rows = [by_uuid.get(gpu.uuid) for gpu in gpus]
    values, times = {}, {}
    for quantity, measure in _MEASURED.items():
        column = np.array([_or_nan(measure(row)) if row else math.nan for row in rows], np.float64)
        if not np.isnan(column).all():
            values[quantity] = column
            taken = np.array([row.at if row else math.nan for row in rows], np.float64)
            times[quantity] = np.where(np.isnan(column), np.nan, taken)
    return Readings(taken_at=at, gpus=gpus, values=values, times=times)


def processes_from(node: str, found: Iterable[DeviceProcess], at: float) -> Processes:
    """Return the processes by GPU and pid."""
    rows = [
        GpuProcess(
            gpu=GpuRef(node, process.index),
            pid=process.pid,
            name=process.name or "",
            user=process.user or "",
            command=process.command or "",
            gpu_memory_bytes=process.gpu_memory_bytes,
            cpu_percent=process.cpu_percent,
            memory_percent=process.memory_percent,
            time=at,
        )
        for process in found
    ]
    return Processes(tuple(sorted(rows, key=lambda row: (row.gpu, row.pid))))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
