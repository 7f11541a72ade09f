"""What a holder has of a node."""

from dataclasses import dataclass

from gpufleet.placement.verdict import Fits


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs of `node` that `holder` (a pod's UID) has: `milli` of each, or MIG instances of them."""

    holder: str
    node: str
    gpus: tuple[int, ...] = ()
    milli: int = 0
    instances: tuple[tuple[int, str], ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0

    @classmethod
    def of(cls, holder: str, fits: Fits) -> "Allocation":
        """What `holder` gets by a verdict."""
        request = fits.request
        return cls(
            holder,
            fits.node,
            fits.gpus,
            request.milli_per_gpu,
            fits.instances,
            request.cpu_milli,
            request.memory_mib,
        )
