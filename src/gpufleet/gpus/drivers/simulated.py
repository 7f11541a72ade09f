"""GPUs that are not there: for demonstrations and for trying gpufleet on a laptop.

Everything follows from a seed and the clock, so two looks at the same moment agree and a longer run
keeps making sense: utilization rises and falls over minutes, and power, temperature and energy follow
from it. `simulated` is True, and the model's name says so too.
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
    """What the pretended GPUs are."""

    name: str = "Simulated H100"
    vendor: Vendor = Vendor.NVIDIA
    memory_bytes: int = 80 * _GIB
    idle_watts: float = 70.0
    limit_watts: float = 700.0
    clock_mhz: float = 1980.0
    memory_clock_mhz: float = 2619.0
    links: tuple[Link, ...] = tuple(Link(LinkKind.NVLINK, to_switch=True, version=6) for _ in range(18))


@dataclass(frozen=True)
class _Temper:
    """How one GPU is used: its level, its swing and its rhythm."""

    level: float
    swing: float
    period: float
    phase: float
    memory_share: float


class SimulatedReader:
    """Reads GPUs that a seed describes."""

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
        """`xids` tells faults: (Unix time, GPU, code), each given once when its time has come."""
        self._now = now
        self._model = model or SimulatedModel()
        self._seed = seed
        self._tempers = [_temper(random.Random(f"{seed}/{index}")) for index in range(count)]  # noqa: S311
        self._xids = sorted(xids)
        self._opened = self._told_until = now()

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
                numa_node=2 * index // max(1, len(self._tempers)),
                minor=index,
                mig_enabled=False,
                links=self._model.links,
            )
            for index in range(len(self._tempers))
        )

    def readings(self) -> tuple[DeviceReading, ...]:
        """See `DeviceReader.readings`."""
        return tuple(self._reading(index, self._now()) for index in range(len(self._tempers)))

    def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """See `DeviceReader.processes`; one pretended trainer on each GPU that is in use."""
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

    def close(self) -> None:
        """See `DeviceReader.close`."""

    def _due(self) -> tuple[DeviceEvent, ...]:
        before, self._told_until = self._told_until, self._now()
        return tuple(
            DeviceEvent(EventKind.XID, code, at, uuid=self._uuid(gpu), message="simulated")
            for at, gpu, code in self._xids
            if before < at <= self._told_until
        )

    def _reading(self, index: int, at: float) -> DeviceReading:
        model, temper = self._model, self._tempers[index]
        load = _load(temper, at)
        used = int(temper.memory_share * model.memory_bytes)
        reach = model.limit_watts - model.idle_watts
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
            power_watts=round(model.idle_watts + reach * load, 1),
            power_limit_watts=model.limit_watts,
            energy_joules=round(self._energy(temper, at), 1),
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

    def _energy(self, temper: _Temper, at: float) -> float:
        reach = self._model.limit_watts - self._model.idle_watts
        work = _load_until(temper, at) - _load_until(temper, self._opened)
        return self._model.idle_watts * (at - self._opened) + reach * work

    def _uuid(self, index: int) -> str:
        return f"GPU-51{self._seed & 0xFFFFFF:06x}-0000-4000-8000-{index:012x}"


def _temper(source: random.Random) -> _Temper:
    idle = source.random() < 0.2
    level = 0.0 if idle else source.uniform(0.45, 0.9)
    return _Temper(
        level=level,
        swing=0.0 if idle else source.uniform(0.02, min(level, 1 - level)),
        period=source.uniform(300, 1800),
        phase=source.uniform(0, 2 * math.pi),
        memory_share=0.0 if idle else source.uniform(0.4, 0.95),
    )


def _load(temper: _Temper, at: float) -> float:
    return temper.level + temper.swing * math.sin(2 * math.pi * at / temper.period + temper.phase)


def _load_until(temper: _Temper, at: float) -> float:
    """The integral of the load from time 0, so that energy agrees with power."""
    turn = 2 * math.pi / temper.period
    return temper.level * at + temper.swing / turn * (
        math.cos(temper.phase) - math.cos(turn * at + temper.phase)
    )
