"""The nodes in the order of their names, as columns: for questions about some of them.

kube-scheduler names thousands of candidates in each call; names become places in these
columns without a loop of our own. The first of equal costs is the first by name.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.node import CandidateNode


class NodeIndex:
    """Names in order, the state of each, and which nodes carry a label."""

    def __init__(self, nodes: Mapping[str, CandidateNode], state: Mapping[str, int]) -> None:
        self.names = tuple(sorted(nodes))
        self.state: NDArray[np.int64] = np.fromiter(
            map(state.__getitem__, self.names), np.int64, len(self.names)
        )
        self._nodes = {name: nodes[name].labels for name in self.names}
        self._place = {name: at for at, name in enumerate(self.names)}
        self._asked: tuple[Collection[str], tuple[NDArray[np.intp], tuple[str, ...]]] | None = None
        self._groups: dict[str, dict[str, NDArray[np.intp]]] = {}
        self._matching: dict[frozenset[tuple[str, str]], NDArray[np.bool_]] = {}

    def copy(self) -> "NodeIndex":
        """The same nodes, with states that can move apart."""
        twin = NodeIndex.__new__(NodeIndex)
        twin.__dict__.update(self.__dict__)
        twin.state = self.state.copy()
        return twin

    def moved(self, name: str, state: int) -> None:
        """A node is in another state now."""
        at = self._place.get(name)
        if at is not None:
            self.state[at] = state

    def places(self, among: Iterable[str]) -> tuple[NDArray[np.intp], tuple[str, ...]]:
        """Where these names stand, in the order of names, and those that are not here."""
        names = among if isinstance(among, (list, tuple, set, frozenset)) else list(among)
        if (
            self._asked is not None and self._asked[0] == names
        ):  # kube-scheduler mostly asks about the same nodes
            return self._asked[1]
        nowhere = len(self.names)
        here = np.zeros(nowhere + 1, np.bool_)
        here[[self._place.get(name, nowhere) for name in names]] = True
        unknown = tuple(sorted(set(names) - self._place.keys())) if here[nowhere] else ()
        found = np.flatnonzero(here[:nowhere]), unknown
        self._asked = type(names)(names), found
        return found

    def matching(self, labels: frozenset[tuple[str, str]]) -> NDArray[np.bool_]:
        """Which nodes carry all of these labels."""
        found = self._matching.get(labels)
        if found is None:
            wanted = dict(labels).items()
            fits = (wanted <= carried.items() for carried in self._nodes.values())
            found = np.fromiter(fits, np.bool_, len(self.names))
            if len(self._matching) >= 256:
                self._matching.clear()
            self._matching[labels] = found
        return found

    def groups(self, label: str) -> dict[str, NDArray[np.intp]]:
        """The places of the nodes by their value of a label; those without it are in none."""
        found = self._groups.get(label)
        if found is None:
            by_value: dict[str, list[int]] = {}
            for at, carried in enumerate(self._nodes.values()):
                if label in carried:
                    by_value.setdefault(carried[label], []).append(at)
            found = {value: np.array(places, np.intp) for value, places in sorted(by_value.items())}
            self._groups[label] = found
        return found
