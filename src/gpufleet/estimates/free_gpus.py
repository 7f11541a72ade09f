"""The free GPUs of each node, with nodes in buckets by the number of whole GPUs that are free."""

from collections.abc import Mapping, Sequence

from gpufleet.estimates.fleet_state import WaitingUnit

WHOLE = 1000
Places = tuple[tuple[int, int], ...]
"""Nodes with the thousandths of GPUs taken there."""
NONE_HIDDEN: Mapping[int, int] = {}


class FreeGpus:
    """Takes and returns GPUs; counts them instead of choosing them. Full nodes are in no bucket."""

    def __init__(self, free: Sequence[int], models: Sequence[str]) -> None:
        self.free = list(free)
        self._models = models
        self._buckets: dict[str, list[dict[int, None]]] = {model: [] for model in models}
        for node, milli in enumerate(self.free):
            if milli > 0:
                self._bucket(models[node], milli // WHOLE)[node] = None

    def copy(self) -> "FreeGpus":
        """Return an independent copy."""
        twin = FreeGpus.__new__(FreeGpus)
        twin.free, twin._models = self.free.copy(), self._models
        twin._buckets = {
            model: [bucket.copy() for bucket in buckets] for model, buckets in self._buckets.items()
        }
        return twin

    def change(self, node: int, milli: int) -> None:
        """Free GPUs of a node, or take them if negative."""
        before = self.free[node]
        self.free[node] = after = before + milli
        if before // WHOLE != after // WHOLE or (before > 0) != (after > 0):
            model = self._models[node]
            if before > 0:
                del self._buckets[model][before // WHOLE][node]
            if after > 0:
                self._bucket(model, after // WHOLE)[node] = None

    def release(self, places: Places) -> None:
        """Free the GPUs of a unit."""
        for node, milli in places:
            self.change(node, milli)

    def find(self, unit: WaitingUnit, hidden: Mapping[int, int]) -> int | None:
        """Return the fullest node that has room for a member beside what is hidden, if there is one."""
        need, free = unit.milli, self.free
        for model, buckets in self._buckets.items():
            if unit.models and model not in unit.models:
                continue
            for bucket in buckets[need // WHOLE :]:
                for node in bucket:
                    if free[node] - hidden.get(node, 0) >= need:
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
            self.change(node, -unit.milli)
            taken.append((node, unit.milli))
        return tuple(taken)

    def fits(self, unit: WaitingUnit, hidden: Mapping[int, int]) -> bool:
        """Return whether all members would fit."""
        need, left, free = unit.milli, unit.members, self.free
        for model, buckets in self._buckets.items():
            if unit.models and model not in unit.models:
                continue
            for bucket in buckets[need // WHOLE :]:
                for node in bucket:
                    left -= max(free[node] - hidden.get(node, 0), 0) // need
                    if left <= 0:
                        return True
        return False

    def emptiest(self, unit: WaitingUnit, most: int) -> list[int]:
        """Return at most so many nodes of the unit's models that are not full, the emptiest first."""
        found: list[int] = []
        for model, buckets in self._buckets.items():
            if unit.models and model not in unit.models:
                continue
            for bucket in reversed(buckets):
                for node in bucket:
                    found.append(node)
                    if len(found) >= most:
                        return found
        return found

    def _bucket(self, model: str, whole: int) -> dict[int, None]:
        buckets = self._buckets[model]
        while len(buckets) <= whole:
            buckets.append({})
        return buckets[whole]
