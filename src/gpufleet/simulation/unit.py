"""What arrives in a simulation: a pod or a gang with its run time."""

from dataclasses import dataclass

from gpufleet.placement.request import WHOLE, Request


@dataclass(frozen=True, slots=True)
class Unit:
    """A pod, or a gang of `members` equal pods, that arrives at `arrives` and runs for `runtime` seconds."""

    number: int
    request: Request
    arrives: float
    runtime: float
    members: int = 1
    priority: int = 0
    queue: str = "default"
    owner: str = ""
    workload: str = ""
    declared: float | None = None
    """The longest run time that its pods declare, in seconds."""
    leaves_at: float | None = None
    """When it is deleted, whether it runs or still waits."""

    @property
    def gpu_milli(self) -> int:
        """Return the GPU capacity of all members, in thousandths."""
        return self.members * self.request.gpu_milli

    @property
    def size(self) -> str:
        """Return the group of the unit in reports: cpu, share, or its number of GPUs."""
        if not self.request.count:
            return "cpu"
        if self.request.milli_per_gpu < WHOLE:
            return "share"
        return size_group(self.members * self.request.count)


def size_group(gpus: int) -> str:
    """Return the group of a number of GPUs: 1, 2, 3-4, 5-8, 9-16 and so on."""
    if gpus <= 2:
        return f"{gpus} gpu"
    most = 1 << (gpus - 1).bit_length()
    return f"{most // 2 + 1}-{most} gpu"


def size_order(size: str) -> tuple[int, int]:
    """Return a sort key of size groups."""
    named = {"cpu": 0, "share": 1}
    return (named[size], 0) if size in named else (2, int(size.split()[0].split("-")[0]))
