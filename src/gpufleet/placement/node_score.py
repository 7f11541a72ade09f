"""What a placement costs the cluster: the seam between choosing nodes and the policies for it.

A score sees many nodes at once, as columns. A placement costs the loss that it adds to its
node and what the score counts beside it; the least is best. Equal nodes must cost the same whatever
they are compared with, so a score keeps its sums free of rounding and a cost is rounded to a
whole number in the end; all of them stay below 2^35.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.node_shape import Shape
from gpufleet.placement.request import Request

UNKNOWN = 1 << 40
"""Free CPU or memory of a node that doesn't say: enough for everything."""

UNIT = 65536
"""The cost of a thousandth of a GPU."""

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Nodes:
    """Columns over nodes: free thousandths of each GPU (0 where new work can't go), CPU, memory."""

    shapes: Sequence[Shape]
    shape: NDArray[np.int32]
    free: Numbers
    cpu: Numbers
    memory: Numbers


class Score(Protocol):
    """A policy for choosing nodes."""

    @property
    def name(self) -> str:
        """As `gpufleet simulate --policy` calls it."""

    def loss(self, nodes: Nodes) -> Floats:
        """What nodes as they are cost the cluster, in thousandths of a GPU; found once for a state."""

    def beside(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """What a placement costs beside the loss that it adds, in the same unit."""
