"""Find the driver that this machine has, and read and judge its GPUs as the settings say."""

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


def patient_reader(settings: DevicesSettings) -> DeadlineReader:
    """A reader that never hangs, of the kind that the settings name; it opens the driver when first asked."""
    return DeadlineReader(lambda: open_reader(settings.reader), deadline=settings.deadline)


def health_rules(settings: DevicesSettings) -> HealthRules:
    """The operator's rules; SettingsError names an XID that is no number."""
    wrong = [text for text in settings.warn_xids if not text.strip().isdigit()]
    if wrong:
        raise SettingsError(
            f"setting devices.warn_xids: {wrong[0]!r} is not an XID; it takes numbers such as 94"
        )
    return HealthRules(
        warn_xids=frozenset(map(int, settings.warn_xids)), ecc_threshold=settings.ecc_threshold
    )
