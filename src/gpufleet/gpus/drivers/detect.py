"""Select the GPU driver of this machine, and build readers and health rules from the settings."""

from collections.abc import Callable

from gpufleet.errors import DevicesUnavailable, SettingsError
from gpufleet.gpus.drivers.amdsmi import AmdSmiReader
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.drivers.reader import DeviceReader
from gpufleet.gpus.drivers.simulated import SimulatedReader
from gpufleet.gpus.xid import HealthRules
from gpufleet.runtime.settings import DevicesSettings

READERS: dict[str, Callable[[], DeviceReader]] = {
    "nvml": NvmlReader,
    "amdsmi": AmdSmiReader,
    "simulated": SimulatedReader,
}
"""Readers by the name in the settings; `auto` tries the real ones."""


def open_reader(kind: str = "auto") -> DeviceReader:
    """Open the reader of that name, or with `auto` the first one whose driver lists a GPU."""
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


def reader_from_settings(settings: DevicesSettings) -> DeadlineReader:
    """Return a reader that never hangs; it opens the driver on the first call."""
    return DeadlineReader(lambda: open_reader(settings.reader), deadline=settings.deadline)


def health_rules(settings: DevicesSettings) -> HealthRules:
    """Return the health rules of the settings; raise SettingsError for an invalid XID."""
    invalid = [text for text in settings.warn_xids if not text.strip().isdigit()]
    if invalid:
        raise SettingsError(
            f"setting devices.warn_xids: {invalid[0]!r} is not an XID; use numbers such as 94"
        )
    return HealthRules(
        warn_xids=frozenset(map(int, settings.warn_xids)),
        corrected_per_hour=settings.corrected_per_hour,
        nvlinks=settings.nvlinks,
        least_rails=settings.least_rails,
    )
