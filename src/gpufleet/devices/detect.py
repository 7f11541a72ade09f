"""Find the driver that this machine has."""

from collections.abc import Callable

from gpufleet.devices.amdsmi import AmdSmiReader
from gpufleet.devices.nvml import NvmlReader
from gpufleet.devices.reader import DeviceReader
from gpufleet.devices.simulated import SimulatedReader
from gpufleet.errors import DevicesUnavailable

READERS: dict[str, Callable[[], DeviceReader]] = {
    "nvml": NvmlReader,
    "amdsmi": AmdSmiReader,
    "simulated": SimulatedReader,
}
"""Every reader by the name that settings use; `auto` tries the real ones."""


def open_reader(kind: str = "auto") -> DeviceReader:
    """The reader of that name, or with `auto` the first whose driver answers with a GPU."""
    if kind != "auto":
        return READERS[kind]()
    reasons = []
    for name in ("nvml", "amdsmi"):
        try:
            reader = READERS[name]()
        except DevicesUnavailable as error:
            reasons.append(str(error))
            continue
        if reader.inventory():
            return reader
        reader.close()
        reasons.append(f"{reader.name} lists no GPU")
    raise DevicesUnavailable(f"no GPU found on this machine: {'; '.join(reasons)}")
