"""The nodes sorted by name, as columns, for queries about a subset.

kube-scheduler names thousands of candidates in each call. This index turns the names into
positions in the columns. Ties in cost go to the first node by name.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.node import CandidateNode


class NodeIndex:
    """Sorted names, the state of each node, and which nodes carry a label."""

    def __init__(self, nodes: Mapping[str, CandidateNode], state: Mapping[str, int]) -> None:
        self.names = tuple(sorted(nodes))
        self.state: NDArray[np.int64] = np.fromiter(
            map(state.__getitem__, self.names), np.int64, len(self.names)
        )
        self._nodes = {name: nodes[name].labels for name in self.names}
        self._place = {name: at for at, name in enumerate(self.names)}
        self._last_query: tuple[Collection[str], tuple[NDArray[np.intp], tuple[str, ...]]] | None = None
        self._groups: dict[str, dict[str, NDArray[np.intp]]] = {}
        self._matching: dict[frozenset[tuple[str, str]], NDArray[np.bool_]] = {}

    def copy(self) -> "NodeIndex":
        """Return an index of the same nodes with states of its own."""
        twin = NodeIndex.__new__(NodeIndex)
        twin.__dict__.update(self.__dict__)
        twin.state = self.state.copy()
        return twin

    def moved(self, name: str, state: int) -> None:
        """Record the new state of a node."""
        at = self._place.get(name)
        if at is not None:
            self.state[at] = state

    def place_of(self, name: str) -> int:
        """Return the position of a known node."""
        return self._place[name]

    def places(self, among: Iterable[str]) -> tuple[NDArray[np.intp], tuple[str, ...]]:
        """Return the positions of these names in ascending order, and the names that are unknown."""
        names = among if isinstance(among, (list, tuple, set, frozenset)) else list(among)
        # kube-scheduler mostly asks about the same nodes.
        if self._last_query is not None and self._last_query[0] == names:
            return self._last_query[1]
        missing = len(self.names)
        here = np.zeros(missing + 1, np.bool_)
        here[[self._place.get(name, missing) for name in names]] = True
        unknown = tuple(sorted(set(names) - self._place.keys())) if here[missing] else ()
        found = np.flatnonzero(here[:missing]), unknown
        self._last_query = type(names)(names), found
        return found

    def matching(self, labels: frozenset[tuple[str, str]]) -> NDArray[np.bool_]:
        """Return a mask of the nodes that carry all of these labels."""
        found = self._matching.get(labels)
        if found is None:
            required = dict(labels).items()
            fits = (required <= carried.items() for carried in self._nodes.values())
            found = np.fromiter(fits, np.bool_, len(self.names))
            if len(self._matching) >= 256:
                self._matching.clear()
            self._matching[labels] = found
        return found

    def groups(self, label: str) -> dict[str, NDArray[np.intp]]:
        """Return the positions of the nodes by their value of a label. Nodes without it are left out."""
        found = self._groups.get(label)
        if found is None:
            by_value: dict[str, list[int]] = {}
            for at, carried in enumerate(self._nodes.values()):
                if label in carried:
                    by_value.setdefault(carried[label], []).append(at)
            found = {value: np.array(places, np.intp) for value, places in sorted(by_value.items())}
            self._groups[label] = found
        return found
