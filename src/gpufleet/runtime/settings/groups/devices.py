"""How the GPUs of this machine are read and judged."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class DevicesSettings:
    """How the GPUs of this machine are read and judged."""

    reader: str = setting(
        "auto",
        "Driver to use; auto takes the first that lists a GPU.",
        choices=["auto", "nvml", "amdsmi", "simulated"],
    )
    deadline: float = setting(
        5.0,
        "Longest time for a driver call; then the GPUs are Unknown.",
        unit="s",
        minimum=0.1,
    )
    identify: bool = setting(False, "Also read user and command line of the processes on the GPUs.")
    kernel_log: bool = setting(True, "Also read XIDs from /dev/kmsg, if this process may.")
    warn_xids: tuple[str, ...] = setting(
        ("63", "92", "94", "109"), "XIDs that only warn; other serious XIDs make the GPU Unhealthy."
    )
    corrected_per_hour: int = setting(
        0,
        "Correctable errors of an AMD GPU in an hour above which there is a warning; 0 is no limit.",
        minimum=0,
    )
    nvlinks: int = setting(
        0,
        "NVLinks that every GPU must have. 0: as many as it had before, and on nodes with NVSwitches as the other GPUs.",
        minimum=0,
    )
    least_rails: float = setting(
        75.0,
        "Percentage of the InfiniBand and RoCE ports that must be active. With fewer the node is Unhealthy, with any port down "
        "it is degraded.",
        minimum=0,
        maximum=100,
    )
