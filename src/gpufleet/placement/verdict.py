"""The result of placing a request. A refusal is a value, not an error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.reasons import UNRESOLVABLE, Reason, for_node, summary
from gpufleet.placement.request import Request


@dataclass(frozen=True, slots=True)
class Fits:
    """A node and GPUs for `request`; `instances` are pairs of GPU id and MIG instance id.

    `score` is in 0..1. A score of 1 costs the cluster nothing; a lower one means that free GPUs
    become harder to use or that a preference is not met.
    """

    request: Request
    node: str
    gpus: tuple[int, ...]
    instances: tuple[tuple[int, str], ...] = ()
    score: float = 1.0


@dataclass(frozen=True)
class Refused:
    """No node fits: the number of nodes per reason, and the reason of each node."""

    request: Request
    counts: Mapping[Reason, int]
    names: tuple[str, ...] = field(repr=False, default=())
    codes: NDArray[np.uint8] = field(repr=False, compare=False, default_factory=lambda: np.empty(0, np.uint8))

    @cached_property
    def summary(self) -> str:
        """Return one line such as "0/40 nodes fit: 30 have fewer than 4 free GPUs, …"."""
        return summary(self.counts, self.request, sum(self.counts.values()))

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Return the reason of each node, as kube-scheduler's `FailedNodes` expects it."""
        texts = [for_node(reason, self.request) for reason in Reason]
        return dict(zip(self.names, map(texts.__getitem__, self.codes.tolist()), strict=True))

    @cached_property
    def unresolvable(self) -> frozenset[str]:
        """Return the nodes on which preemption can't help (`FailedAndUnresolvableNodes`)."""
        unresolvable = np.isin(self.codes, list(UNRESOLVABLE)).tolist()
        return frozenset(name for name, skip in zip(self.names, unresolvable, strict=True) if skip)


Verdict = Fits | Refused
