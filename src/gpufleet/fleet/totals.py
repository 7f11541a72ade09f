"""Counts over all GPU nodes, updated one node at a time."""

from collections import Counter

from gpufleet.fleet.node_view import NodeState, NodeView


class Totals:
    """Nodes by state, and GPUs in total, usable and allocated."""

    def __init__(self) -> None:
        self.states: Counter[NodeState] = Counter()
        self.allocation_unknown = 0
        """Nodes in any state whose allocation is not known."""
        self.gpus = 0
        self.allocated = 0
        self.usable = 0
        self.usable_allocated = 0

    @property
    def nodes(self) -> int:
        """GPU nodes in any state."""
        return self.states.total()

    def replace(self, old: NodeView | None, new: NodeView | None) -> None:
        """Count `new` instead of `old`. A node without GPUs does not count."""
        self._add(old, -1)
        self._add(new, 1)

    def _add(self, view: NodeView | None, sign: int) -> None:
        if view is None or not view.total:
            return
        self.states[view.state] += sign
        self.allocation_unknown += 0 if view.node.allocation_known else sign
        self.gpus += sign * view.total
        self.allocated += sign * view.allocated
        self.usable += sign * view.usable
        self.usable_allocated += sign * view.usable_allocated
