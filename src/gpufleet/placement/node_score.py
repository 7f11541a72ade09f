"""The interface of node scores: what a placement costs the cluster.

A score gets many nodes at once, as columns. A placement costs the loss that it adds to its node
plus a tie-breaking cost; the lowest total wins. Equal nodes must have equal costs, whatever they
are compared with. So scores avoid rounding in their sums, and each cost is rounded once to an
integer below 2^35.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.node_shape import Shape
from gpufleet.placement.request import Request

UNKNOWN = 1 << 40
"""Free CPU or memory of a node that does not report it: enough for any request."""

UNIT = 65536
"""The cost of a thousandth of a GPU."""

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes as columns: free thousandths of each GPU (0 if not usable), CPU, memory."""

    shapes: Sequence[Shape]
    shape: NDArray[np.int32]
    free: Numbers
    cpu: Numbers
    memory: Numbers


class Score(Protocol):
    """A policy for choosing nodes."""

    @property
    def name(self) -> str:
        """Return the name used by `gpufleet simulate --policy`."""

    def loss(self, nodes: Nodes) -> Floats:
        """Return the unusable capacity of nodes in thousandths of a GPU; cached per state."""

    def tie_break(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """Return the cost of a placement beyond the loss that it adds, in the same unit."""
