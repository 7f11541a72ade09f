"""What a claim asks for, in the words of the claim.

A `Request` is plain data that compares and hashes by content: equal requests share every
cached answer of a cluster, however many pods send them.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from gpufleet.errors import InvalidRequest

WHOLE = 1000
"""One GPU in thousandths, the unit in which shares are counted."""

LEAST_SHARE = 10
"""The smallest share of a GPU that can be asked for, in thousandths."""

MOST_GPUS = 1024
"""More than any node has; a larger count is a mistake."""


class Policy(StrEnum):
    """How the GPUs of one node are chosen."""

    CONTIGUOUS = "contiguous"
    SPREAD = "spread"
    PREFER_IDS = "preferIds"
    ANY = "any"
    """No preference: traces and jobs without a claim, where ids mean nothing."""


class Exclusivity(StrEnum):
    """Who else may use the GPUs."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    MIG = "MIG"


class Topology(StrEnum):
    """How much the interconnect matters."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"
    IGNORE = "Ignore"


@dataclass(frozen=True)
class Request:
    """GPUs of one node for one pod, with the CPU and memory that go with them.

    `count` 0 asks for CPU and memory only. `share_milli` counts for `Shared`, `mig_profile` for
    `MIG`. `models` are the GPU models that are accepted; none named means any.
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
        """The part that says which GPUs would do; equal parts have equal picks on equal nodes."""
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
        """How much of each GPU the request takes, in thousandths (a MIG instance counts apart: 0)."""
        if self.exclusivity is Exclusivity.SHARED:
            return self.share_milli
        return WHOLE if self.exclusivity is Exclusivity.EXCLUSIVE else 0

    @property
    def gpu_milli(self) -> int:
        """The GPU capacity that it takes in all, in thousandths."""
        return self.count * self.milli_per_gpu

    def _problem(self) -> str | None:
        if not 0 <= self.count <= MOST_GPUS:
            return f"devices.count is {self.count}; it takes 0 to {MOST_GPUS}"
        if self.exclusivity is Exclusivity.SHARED and not LEAST_SHARE <= self.share_milli <= WHOLE:
            return f"devices.share is {self.share_milli / WHOLE:g}; it takes 0.01 to 1.0"
        if self.exclusivity is Exclusivity.MIG and not self.mig_profile:
            return "devices.migProfile is missing; exclusivity MIG needs one, such as 1g.10gb"
        if any(not 0 <= gpu < MOST_GPUS for gpu in self.prefer_ids):
            return f"devices.preferIds has {list(self.prefer_ids)}; an id is 0 to {MOST_GPUS - 1}"
        if min(self.min_bandwidth_gbps, self.cpu_milli, self.memory_mib) < 0:
            return "bandwidth, CPU and memory can't be negative"
        return None
