"""The answer to a request: where it fits, or why it fits nowhere. A refusal is a value, not an error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.reasons import UNRESOLVABLE, Reason, for_node, summary
from gpufleet.placement.request import Request


@dataclass(frozen=True, slots=True)
class Fits:
    """A node and GPUs for `request`; `instances` are (GPU id, MIG instance id) for MIG.

    `score` lies in 0..1: 1 costs the cluster nothing, less means that GPUs become harder to use
    or that a preference was not met.
    """

    request: Request
    node: str
    gpus: tuple[int, ...]
    instances: tuple[tuple[int, str], ...] = ()
    score: float = 1.0


@dataclass(frozen=True)
class Refused:
    """No node fits: how many nodes for each reason, and on demand the reason of each node."""

    request: Request
    counts: Mapping[Reason, int]
    names: tuple[str, ...] = field(repr=False, default=())
    codes: NDArray[np.uint8] = field(repr=False, compare=False, default_factory=lambda: np.empty(0, np.uint8))

    @cached_property
    def summary(self) -> str:
        """One line for people: "0/40 nodes fit: 30 have fewer than 4 free GPUs, …"."""
        return summary(self.counts, self.request, sum(self.counts.values()))

    @cached_property
    def reasons(self) -> dict[str, str]:
        """The reason of each node, phrased for kube-scheduler's `FailedNodes`."""
        texts = [for_node(reason, self.request) for reason in Reason]
        return dict(zip(self.names, map(texts.__getitem__, self.codes.tolist()), strict=True))

    @cached_property
    def unresolvable(self) -> frozenset[str]:
        """The nodes that preemption can't help (`FailedAndUnresolvableNodes`)."""
        hopeless = np.isin(self.codes, list(UNRESOLVABLE))
        return frozenset(name for name, bad in zip(self.names, hopeless.tolist(), strict=True) if bad)


Verdict = Fits | Refused
