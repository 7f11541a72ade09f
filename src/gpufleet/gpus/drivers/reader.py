"""The interface of GPU drivers.

A `DeviceReader` is synchronous and may hang, like the drivers behind it, so only `DeadlineReader` and
tests call it directly. It never raises for a single field or GPU that fails; it raises
`DevicesUnavailable` when the driver as a whole is unusable.
"""

from typing import Protocol

from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading


class DeviceReader(Protocol):
    """Read the GPUs of this machine."""

    @property
    def name(self) -> str:
        """Library and driver versions, for display (`NVML 13.580, driver 580.95.05`)."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether the devices are simulated, which every display must show."""
        ...

    def inventory(self) -> tuple[Device, ...]:
        """Return all GPUs of the driver by index; a lost GPU has a `fault`."""
        ...

    def readings(self) -> tuple[DeviceReading, ...]:
        """Return one reading per GPU, by index."""
        ...

    def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """Return the processes on all GPUs by GPU and pid; user and command only with `identify`."""
        ...

    def events(self, timeout: float) -> tuple[DeviceEvent, ...]:
        """Return errors since the last call; wait up to `timeout` seconds for the first one."""
        ...

    def health(self) -> tuple[object, ...]:
        """Return what the driver says of the GPUs' health, for comparison with an earlier answer.

        A fault that makes a GPU unhealthy changes it, a load does not. It must cost far less than `readings`.
        """
        ...

    def close(self) -> None:
        """Release the driver."""
        ...
