"""The seam between gpufleet and a GPU driver.

A `DeviceReader` is synchronous, as drivers are, and may hang, as drivers do: nobody but
`patient.PatientReader` and tests should call one directly. It never raises for one field or
one GPU that fails; it raises `DevicesUnavailable` when the driver as a whole can't be used.
"""

from typing import Protocol

from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading


class DeviceReader(Protocol):
    """Reads the GPUs of this machine."""

    @property
    def name(self) -> str:
        """The library and versions behind the readings, for people (`NVML 13.580, driver 580.95.05`)."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether the devices are made up; whoever shows them must say so."""
        ...

    def inventory(self) -> tuple[Device, ...]:
        """Every GPU that the driver lists, by index; one that it has lost carries a `fault`."""
        ...

    def readings(self) -> tuple[DeviceReading, ...]:
        """One reading for each GPU by index."""
        ...

    def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """Every program on a GPU, by GPU then pid; user and command only if asked to `identify`."""
        ...

    def events(self, timeout: float) -> tuple[DeviceEvent, ...]:
        """Errors since the last call; waits up to `timeout` seconds for the first one."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
