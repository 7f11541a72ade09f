"""The latest reading of every GPU in columns, one slot a GPU.

Questions over 100,000 GPUs ("mean utilization of the allocated ones", "the five hottest") are a
few numpy operations here instead of a walk over objects. A slot belongs to a (node, index) and
is reused after the GPU is gone. Exporters and agents may number GPUs differently, so a UUID
that both know decides before the index does.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufleet.fleet.node_view import NodeView
from gpufleet.model.reading import GpuIdentity, Quantity, Readings

Column = NDArray[np.float64]
SHOWN = (
    Quantity.UTILIZATION,
    Quantity.TEMPERATURE,
    Quantity.POWER,
    Quantity.MEMORY_USED,
    Quantity.MEMORY_TOTAL,
    Quantity.MEMORY_UTILIZATION,
)
"""What the questions of the fleet ask for; the rest is read from `Readings` directly."""

_FIRST_SIZE = 64
_ROWS_A_STEP = 512
_TRIES = 3


class GpuColumns:
    """Slots, their readings, and which of them are allocated."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, int] | None] = []
        self.models: list[str] = []
        self.held: NDArray[np.bool_] = np.zeros(_FIRST_SIZE, dtype=np.bool_)
        self.readings = Readings(taken_at=0.0)
        self.kept: dict[tuple[Quantity, int], Any] = {}
        """Answers that hold until the numbers, or which GPUs there are, change."""
        self._columns = {quantity: np.full(_FIRST_SIZE, np.nan) for quantity in SHOWN}
        self._nodes: dict[str, dict[int, int]] = {}
        self._uuids: dict[str, int] = {}
        self._uuid_of: list[str] = []
        self._free: list[int] = []
        self._mapped: tuple[tuple[GpuIdentity, ...], int] = ((), -1)
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._slots: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._shape = 0

    def column(self, quantity: Quantity) -> Column:
        """One quantity of every slot; NaN where there is no reading or no GPU."""
        return self._columns[quantity][: len(self.keys)]

    def slots_of(self, node: str, indices: Iterable[int]) -> list[int]:
        """The slots of some GPUs of a node; unknown ones are left out."""
        known = self._nodes.get(node, {})
        return [known[index] for index in indices if index in known]

    def put(self, view: NodeView) -> None:
        """Give the GPUs of a node slots and say which are allocated."""
        name = view.node.name
        known = self._nodes.setdefault(name, {})
        wanted = {gpu.index: gpu for gpu in view.gpus}
        for index in [index for index in known if index not in wanted]:
            self._release(known.pop(index))
        for index, gpu in wanted.items():
            if index not in known:
                known[index] = self._take((name, index))
            slot = known[index]
            if self.models[slot] != gpu.model:
                self.models[slot] = gpu.model
                self.kept.clear()
            self.held[slot] = index in view.held
            self._rename(slot, gpu.uuid)

    def drop(self, node: str) -> None:
        """Forget the GPUs of a node."""
        for slot in self._nodes.pop(node, {}).values():
            self._release(slot)

    def take(self, readings: Readings, names: Mapping[str, str]) -> Iterator[None]:
        """Take over new readings. `names` gives the node for each other name that it goes by.

        Which slot a row belongs to is found in steps; the numbers change in the last one.
        """
        for _ in range(_TRIES):
            if self._is_mapped(readings.gpus):
                break
            yield from self._map(readings.gpus, names)
        if not self._is_mapped(readings.gpus):  # GPUs come and go faster than the steps
            for _ in self._map(readings.gpus, names):
                pass
        self.readings = readings
        self.kept.clear()
        for quantity in SHOWN:
            column = self._columns[quantity]
            column[:] = np.nan
            values = readings.values.get(quantity)
            if values is not None:
                column[self._slots] = values[self._rows]

    def row_of(self, slot: int) -> int | None:
        """The row of `readings` that describes a slot's GPU."""
        found = np.flatnonzero(self._slots == slot)
        return int(self._rows[found[0]]) if len(found) else None

    def _is_mapped(self, gpus: tuple[GpuIdentity, ...]) -> bool:
        return self._mapped[0] is gpus and self._mapped[1] == self._shape

    def _map(self, gpus: tuple[GpuIdentity, ...], names: Mapping[str, str]) -> Iterator[None]:
        rows: dict[int, int] = {}
        shape = self._shape
        for row, gpu in enumerate(gpus):
            if row % _ROWS_A_STEP == 0:
                yield
            if gpu.ref.partition:
                continue
            slot = self._uuids.get(gpu.uuid) if gpu.uuid else None
            if slot is None:
                node = gpu.ref.node if gpu.ref.node in self._nodes else names.get(gpu.ref.node, "")
                slot = self._nodes.get(node, {}).get(gpu.ref.index)
            if slot is not None:
                rows[slot] = row
        self._slots = np.fromiter(rows.keys(), dtype=np.intp, count=len(rows))
        self._rows = np.fromiter(rows.values(), dtype=np.intp, count=len(rows))
        self._mapped = (gpus, shape)

    def _rename(self, slot: int, uuid: str) -> None:
        old = self._uuid_of[slot]
        if old == uuid:
            return
        self._shape += 1
        self._uuid_of[slot] = uuid
        if self._uuids.get(old) == slot:
            del self._uuids[old]
        if uuid:
            self._uuids[uuid] = slot

    def _take(self, key: tuple[str, int]) -> int:
        self._shape += 1
        self.kept.clear()
        if self._free:
            slot = self._free.pop()
            self.keys[slot] = key
            return slot
        slot = len(self.keys)
        self.keys.append(key)
        self.models.append("")
        self._uuid_of.append("")
        if slot >= len(self.held):
            self.held = np.concatenate([self.held, np.zeros_like(self.held)])
            for quantity, column in self._columns.items():
                self._columns[quantity] = np.concatenate([column, np.full_like(column, np.nan)])
        return slot

    def _release(self, slot: int) -> None:
        self._shape += 1
        self.kept.clear()
        self.keys[slot] = None
        self.models[slot] = ""
        self.held[slot] = False
        for column in self._columns.values():
            column[slot] = np.nan
        self._rename(slot, "")
        self._free.append(slot)
