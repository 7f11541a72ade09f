"""The free GPUs of all nodes, with nodes in buckets by their whole free GPUs, and by the largest rest of a shared one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpufleet.estimates.fleet_state import RunningUnit, WaitingUnit
from gpufleet.estimates.node_gpus import WHOLE, NodeGpus

Places = tuple[tuple[int, int], ...]
"""Nodes with the thousandths of GPUs taken there."""
NONE_HIDDEN: Mapping[int, int] = {}
_STEP = 100
"""Thousandths by which the buckets of shared GPUs differ."""


class FreeGpus:
    """Takes and returns GPUs; counts them instead of choosing them. Full nodes are in no bucket."""

    def __init__(
        self, free: Sequence[int], models: Sequence[str], running: Iterable[RunningUnit] = ()
    ) -> None:
        """`free` are thousandths by node; `running` are the units that have the others."""
        self._models = models
        self.whole: list[int] = []
        self._shared: dict[int, list[int]] = {}
        """The free thousandths of each shared GPU, by node."""
        self._buckets: dict[str, list[dict[int, None]]] = {model: [] for model in models}
        """Nodes with whole free GPUs, by their number."""
        self._sharing: dict[str, list[dict[int, None]]] = {
            model: [{} for _ in range(WHOLE // _STEP)] for model in models
        }
        """Nodes with shared GPUs, by the largest free part in steps."""
        shares: dict[int, list[int]] = {}
        for unit in running:
            for node, milli in unit.places:
                if part := milli % WHOLE:
                    shares.setdefault(node, []).append(part)
        for node, milli in enumerate(free):
            known = _packed(max(milli, 0), shares.get(node, ()))
            self.whole.append(known.whole)
            if known.shared:
                self._shared[node] = known.shared
            self._index(node)

    def copy(self) -> "FreeGpus":
        """Return an independent copy."""
        twin = FreeGpus.__new__(FreeGpus)
        twin.whole, twin._models = self.whole.copy(), self._models
        twin._shared = {node: shared.copy() for node, shared in self._shared.items()}
        twin._buckets, twin._sharing = _copies(self._buckets), _copies(self._sharing)
        return twin

    def free(self, node: int) -> int:
        """Return the free thousandths of a node."""
        return self.whole[node] * WHOLE + sum(self._shared.get(node, ()))

    def on(self, node: int) -> NodeGpus:
        """Return a copy of the free GPUs of a node, for a trial."""
        return NodeGpus(self.whole[node], self._shared.get(node, []).copy())

    def take(self, node: int, milli: int) -> None:
        """Take GPUs of a node."""
        self._change(node, milli, NodeGpus.take, -1)

    def release(self, places: Places) -> None:
        """Free the GPUs of a unit."""
        for node, milli in places:
            self._change(node, milli, NodeGpus.release, 1)

    def find(self, unit: WaitingUnit, hidden: Mapping[int, int]) -> int | None:
        """Return the fullest node that has room for a member beside what is hidden, if there is one."""
        need = unit.milli
        for node in self._fitting(unit):
            kept = hidden.get(node, 0)
            if not kept or self._beside(node, kept).fits(need):
                return node
        return None

    def place(self, unit: WaitingUnit, hidden: Mapping[int, int]) -> Places | None:
        """Take GPUs for all members; nothing and None if one does not fit."""
        taken: list[tuple[int, int]] = []
        for _ in range(unit.members):
            node = self.find(unit, hidden)
            if node is None:
                self.release(tuple(taken))
                return None
            self.take(node, unit.milli)
            taken.append((node, unit.milli))
        return tuple(taken)

    def fits(self, unit: WaitingUnit, hidden: Mapping[int, int]) -> bool:
        """Return whether all members would fit."""
        need, left, seen = unit.milli, unit.members, set[int]()
        for node in self._fitting(unit):
            if node not in seen:
                seen.add(node)
                left -= self._beside(node, hidden.get(node, 0)).room(need)
                if left <= 0:
                    return True
        return False

    def emptiest(self, unit: WaitingUnit, most: int) -> list[int]:
        """Return at most so many nodes of the unit's models that are not full, the emptiest first."""
        found: list[int] = []
        for model, buckets in self._of_models(unit, self._buckets):
            sharing = self._sharing[model] if unit.milli < WHOLE else []
            for bucket in (*reversed(buckets), *reversed(sharing)):
                for node in bucket:
                    found.append(node)
                    if len(found) >= most:
                        return found
        return found

    def _fitting(self, unit: WaitingUnit) -> Iterator[int]:
        """Return the nodes with room for a member, the fullest of each model first; shared GPUs before whole ones."""
        need = unit.milli
        if 0 < need < WHOLE:
            for _, buckets in self._of_models(unit, self._sharing):
                for bucket in buckets[need // _STEP :]:
                    yield from (node for node in bucket if max(self._shared[node]) >= need)
        for _, buckets in self._of_models(unit, self._buckets):
            for bucket in buckets[-(-need // WHOLE) :]:
                yield from bucket

    def _beside(self, node: int, kept: int) -> NodeGpus:
        """Return the free GPUs of a node beside what is kept for another unit."""
        found = self.on(node)
        if kept >= WHOLE:
            found.whole = max(found.whole - -(-kept // WHOLE), 0)
        elif kept and found.fits(kept):
            found.take(kept)
        return found

    def _of_models(
        self, unit: WaitingUnit, buckets: Mapping[str, list[dict[int, None]]]
    ) -> Iterator[tuple[str, list[dict[int, None]]]]:
        for model, found in buckets.items():
            if not unit.models or model in unit.models:
                yield model, found

    def _change(self, node: int, milli: int, change: Callable[[NodeGpus, int], None], sign: int) -> None:
        self._unindex(node)
        if milli % WHOLE:
            gpus = NodeGpus(self.whole[node], self._shared.pop(node, []))
            change(gpus, milli)
            self.whole[node] = gpus.whole
            if gpus.shared:
                self._shared[node] = gpus.shared
        else:
            self.whole[node] += sign * milli // WHOLE
        self._index(node)

    def _index(self, node: int) -> None:
        model, whole, shared = self._models[node], self.whole[node], self._shared.get(node)
        if whole > 0:
            buckets = self._buckets[model]
            while len(buckets) <= whole:
                buckets.append({})
            buckets[whole][node] = None
        if shared:
            self._sharing[model][max(shared) // _STEP][node] = None

    def _unindex(self, node: int) -> None:
        model, whole, shared = self._models[node], self.whole[node], self._shared.get(node)
        if whole > 0:
            del self._buckets[model][whole][node]
        if shared:
            del self._sharing[model][max(shared) // _STEP][node]


def _packed(free: int, shares: Sequence[int]) -> NodeGpus:
    """Return the free GPUs of a node on which these shares are taken, packed well."""
    node = NodeGpus(len(shares))
    for share in sorted(shares, reverse=True):
        node.take(share)
    shared = [each for each in node.shared if each]
    if sum(shared) > free:  # something else has parts of these GPUs
        node.shared = shared = []
    rest = free - sum(shared)
    return NodeGpus(rest // WHOLE, [*node.shared, *([rest % WHOLE] if rest % WHOLE else [])])


def _copies(buckets: Mapping[str, list[dict[int, None]]]) -> dict[str, list[dict[int, None]]]:
    return {model: [bucket.copy() for bucket in some] for model, some in buckets.items()}
