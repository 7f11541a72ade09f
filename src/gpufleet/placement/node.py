"""The nodes among which placement chooses: GPUs, labels, and allocatable CPU and memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTHY = "Healthy"


@dataclass(frozen=True, slots=True)
class CandidateMigInstance:
    """A MIG instance that the node reports, with its profile."""

    id: str
    profile: str


@dataclass(frozen=True, slots=True)
class CandidateGpu:
    """One GPU. A GPU without an island is an island of its own. `Unknown` health is not healthy.

    `taken` means that something other than an allocation holds it. A GPU with MIG instances
    serves MIG requests only.
    """

    id: int
    health: str = HEALTHY
    island: str | None = None
    bandwidth_gbps: int = 0
    model: str = ""
    cordoned: bool = False
    taken: bool = False
    mig: tuple[CandidateMigInstance, ...] = ()

    @property
    def usable(self) -> bool:
        """Return whether new work may use it once it is free."""
        return self.health == HEALTHY and not self.cordoned


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A node without its allocations; CPU and memory may be unknown."""

    name: str
    gpus: tuple[CandidateGpu, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    cpu_milli: int | None = None
    memory_mib: int | None = None
    ready: bool = True
