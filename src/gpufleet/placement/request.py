"""The GPUs that a claim requests.

A `Request` is plain data that compares and hashes by content, so that equal requests of
many pods share the cached results of an inventory.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from gpufleet.errors import InvalidRequest

WHOLE = 1000
"""One GPU in thousandths, the unit in which shares are counted."""

LEAST_SHARE = 10
"""The smallest share of a GPU that can be requested, in thousandths."""

MOST_GPUS = 1024
"""Upper limit of a count. No node has this many GPUs."""


class Policy(StrEnum):
    """How to choose among the GPUs of one node."""

    CONTIGUOUS = "contiguous"
    SPREAD = "spread"
    PREFER_IDS = "preferIds"
    ANY = "any"
    """No preference. Used by traces, in which ids have no meaning."""


class Exclusivity(StrEnum):
    """Whether GPUs are shared with other pods."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    MIG = "MIG"


class Topology(StrEnum):
    """How strictly GPUs must be connected with each other."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"
    IGNORE = "Ignore"


@dataclass(frozen=True)
class Request:
    """GPUs of one node for one pod, with the pod's CPU and memory.

    `count` 0 requests CPU and memory only. `share_milli` applies to `Shared`, `mig_profile` to
    `MIG`; without one any instance will do. `models` lists the accepted GPU models; an empty set accepts any.
    """

    count: int = 1
    policy: Policy = Policy.CONTIGUOUS
    prefer_ids: tuple[int, ...] = ()
    exclusivity: Exclusivity = Exclusivity.EXCLUSIVE
    share_milli: int = 100
    mig_profile: str = ""
    topology: Topology = Topology.IGNORE
    min_bandwidth_gbps: int = 0
    models: frozenset[str] = frozenset()
    match_labels: frozenset[tuple[str, str]] = frozenset()
    cpu_milli: int = 0
    memory_mib: int = 0
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InvalidRequest(problem)
        object.__setattr__(
            self, "_hash", hash((self.gpus, self.match_labels, self.cpu_milli, self.memory_mib))
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def gpus(self) -> tuple[object, ...]:
        """Return the fields that decide which GPUs of a node are chosen, as a cache key."""
        return (
            self.count,
            self.policy,
            self.prefer_ids,
            self.exclusivity,
            self.share_milli,
            self.mig_profile,
            self.topology,
            self.min_bandwidth_gbps,
            self.models,
        )

    @cached_property
    def milli_per_gpu(self) -> int:
        """Return how much of each GPU the request takes, in thousandths (0 for MIG instances)."""
        if self.exclusivity is Exclusivity.SHARED:
            return self.share_milli
        return WHOLE if self.exclusivity is Exclusivity.EXCLUSIVE else 0

    @property
    def gpu_milli(self) -> int:
        """Return the total GPU capacity that the request takes, in thousandths."""
        return self.count * self.milli_per_gpu

    def _problem(self) -> str | None:
        if not 0 <= self.count <= MOST_GPUS:
            return f"devices.count is {self.count}; it must be 0 to {MOST_GPUS}"
        if self.exclusivity is Exclusivity.SHARED and not LEAST_SHARE <= self.share_milli <= WHOLE:
            return f"devices.share is {self.share_milli / WHOLE:g}; it must be 0.01 to 1.0"
        if any(not 0 <= gpu < MOST_GPUS for gpu in self.prefer_ids):
            return f"devices.preferIds has {list(self.prefer_ids)}; ids must be 0 to {MOST_GPUS - 1}"
        if min(self.min_bandwidth_gbps, self.cpu_milli, self.memory_mib) < 0:
            return "bandwidth, CPU and memory can't be negative"
        return None
