"""Simulated GPUs, for demonstrations and for trying gpufleet on a laptop.

All values are functions of a seed and the clock, so two reads at the same time agree. Utilization rises
and falls over minutes; power, temperature and energy follow from it. `simulated` is True, and the name of
the model says so too.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.model.device import (
    Device,
    DeviceEvent,
    DeviceProcess,
    DeviceReading,
    EventKind,
    Link,
    LinkKind,
    Vendor,
)

_GIB = 2**30


@dataclass(frozen=True)
class SimulatedModel:
    """The model of the simulated GPUs."""

    name: str = "Simulated H100"
    vendor: Vendor = Vendor.NVIDIA
    memory_bytes: int = 80 * _GIB
    idle_watts: float = 70.0
    limit_watts: float = 700.0
    clock_mhz: float = 1980.0
    memory_clock_mhz: float = 2619.0
    links: tuple[Link, ...] = tuple(Link(LinkKind.NVLINK, to_switch=True, version=6) for _ in range(18))


@dataclass(frozen=True)
class _LoadProfile:
    """The load of one GPU over time: a sine wave."""

    level: float
    amplitude: float
    period: float
    phase: float
    memory_share: float


class SimulatedReader:
    """Read simulated GPUs."""

    name = "simulated GPUs"
    simulated = True

    def __init__(
        self,
        count: int = 8,
        seed: int = 0,
        model: SimulatedModel | None = None,
        now: Callable[[], float] = time.time,
        xids: tuple[tuple[float, int, int], ...] = (),
    ) -> None:
        """`xids` are (Unix time, GPU, code) of events to report."""
        self._now = now
        self._model = model or SimulatedModel()
        self._seed = seed
        self._profiles = [_random_profile(random.Random(f"{seed}/{index}")) for index in range(count)]  # noqa: S311
        self._xids = sorted(xids)
        self._opened = self._reported_until = now()

    def inventory(self) -> tuple[Device, ...]:
        """See `DeviceReader.inventory`."""
        return tuple(
            Device(
                index=index,
                uuid=self._uuid(index),
                vendor=self._model.vendor,
                model=self._model.name,
                memory_bytes=self._model.memory_bytes,
                pci_bus_id=f"0000:{0x10 + index:02x}:00.0",
                numa_node=2 * index // max(1, len(self._profiles)),
                minor=index,
                mig_enabled=False,
                links=self._model.links,
            )
            for index in range(len(self._profiles))
        )

    def readings(self) -> tuple[DeviceReading, ...]:
        """See `DeviceReader.readings`."""
        return tuple(self._reading(index, self._now()) for index in range(len(self._profiles)))

    def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """See `DeviceReader.processes`; return one training process on each GPU in use."""
        return tuple(
            DeviceProcess(
                uuid=reading.uuid,
                index=reading.index,
                pid=100_000 + reading.index,
                gpu_memory_bytes=reading.memory_used_bytes,
                name="python",
                user="simulated" if identify else None,
                command="python train.py --simulated" if identify else None,
                cpu_percent=reading.utilization_percent,
                memory_percent=1.0,
            )
            for reading in self.readings()
            if reading.memory_used_bytes
        )

    def events(self, timeout: float) -> tuple[DeviceEvent, ...]:
        """See `DeviceReader.events`."""
        found = self._due()
        if not found and timeout > 0:
            time.sleep(timeout)
            found = self._due()
        return found

    def health(self) -> tuple[object, ...]:
        """See `DeviceReader.health`; simulated GPUs have no faults but XIDs."""
        return ()

    def close(self) -> None:
        """See `DeviceReader.close`."""

    def _due(self) -> tuple[DeviceEvent, ...]:
        before, self._reported_until = self._reported_until, self._now()
        return tuple(
            DeviceEvent(EventKind.XID, code, at, uuid=self._uuid(gpu), message="simulated")
            for at, gpu, code in self._xids
            if before < at <= self._reported_until
        )

    def _reading(self, index: int, at: float) -> DeviceReading:
        model, profile = self._model, self._profiles[index]
        load = _load(profile, at)
        used = int(profile.memory_share * model.memory_bytes)
        watts_range = model.limit_watts - model.idle_watts
        return DeviceReading(
            uuid=self._uuid(index),
            index=index,
            at=at,
            utilization_percent=round(100 * load),
            memory_utilization_percent=round(60 * load),
            memory_used_bytes=used,
            memory_free_bytes=model.memory_bytes - used,
            memory_total_bytes=model.memory_bytes,
            temperature_celsius=round(30 + 45 * load),
            power_watts=round(model.idle_watts + watts_range * load, 1),
            power_limit_watts=model.limit_watts,
            energy_joules=round(self._energy(profile, at), 1),
            sm_clock_mhz=model.clock_mhz if load > 0 else 345.0,
            memory_clock_mhz=model.memory_clock_mhz,
            ecc_corrected=0,
            ecc_uncorrected=0,
            remapped_rows_corrected=0,
            remapped_rows_uncorrected=0,
            remap_pending=False,
            remap_failed=False,
            recovery_action="none",
            throttle_reasons=("power-cap",) if load > 0.97 else (),
        )

    def _energy(self, profile: _LoadProfile, at: float) -> float:
        watts_range = self._model.limit_watts - self._model.idle_watts
        load = _integrated_load(profile, at) - _integrated_load(profile, self._opened)
        return self._model.idle_watts * (at - self._opened) + watts_range * load

    def _uuid(self, index: int) -> str:
        return f"GPU-51{self._seed & 0xFFFFFF:06x}-0000-4000-8000-{index:012x}"


def _random_profile(rng: random.Random) -> _LoadProfile:
    idle = rng.random() < 0.2
    level = 0.0 if idle else rng.uniform(0.45, 0.9)
    return _LoadProfile(
        level=level,
        amplitude=0.0 if idle else rng.uniform(0.02, min(level, 1 - level)),
        period=rng.uniform(300, 1800),
        phase=rng.uniform(0, 2 * math.pi),
        memory_share=0.0 if idle else rng.uniform(0.4, 0.95),
    )


def _load(profile: _LoadProfile, at: float) -> float:
    return profile.level + profile.amplitude * math.sin(2 * math.pi * at / profile.period + profile.phase)


def _integrated_load(profile: _LoadProfile, at: float) -> float:
    """Return the integral of the load from time 0, so that energy agrees with power."""
    omega = 2 * math.pi / profile.period
    wave = math.cos(profile.phase) - math.cos(omega * at + profile.phase)
    return profile.level * at + profile.amplitude / omega * wave
