"""The GPUs of a node that a holder has."""

from dataclasses import dataclass

from gpufleet.placement.verdict import Fits


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs of `node` that `holder` (a pod UID) has: `milli` of each, or MIG instances."""

    holder: str
    node: str
    gpus: tuple[int, ...] = ()
    milli: int = 0
    instances: tuple[tuple[int, str], ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0

    @classmethod
    def of(cls, holder: str, fits: Fits) -> "Allocation":
        """Return the allocation of a placement to `holder`."""
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
