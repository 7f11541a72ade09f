"""The latest reading of every GPU in numpy columns, one slot per GPU.

Questions over 100,000 GPUs ("mean utilization of the allocated ones", "the five hottest") are a
few numpy operations here instead of a loop over objects. A slot belongs to a (node, index) and is
reused when the GPU is gone. Exporters and agents may number GPUs differently, so a UUID that both
report decides before the index does.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufleet.fleet.node_view import NodeView
from gpufleet.model.reading import Column, GpuIdentity, GpuRef, Quantity, Readings

COLUMN_QUANTITIES = (
    Quantity.UTILIZATION,
    Quantity.TEMPERATURE,
    Quantity.POWER,
    Quantity.SM_CLOCK,
    Quantity.MEMORY_USED,
    Quantity.MEMORY_TOTAL,
    Quantity.MEMORY_UTILIZATION,
)
"""Quantities that the fleet's questions need; the others are read from `Readings` directly."""

_INITIAL_SIZE = 64
_ROWS_PER_STEP = 512
_MAP_ATTEMPTS = 3


class GpuColumns:
    """Slots, their readings, and which of them are allocated."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, int] | None] = []
        self.models: list[str] = []
        self.allocated: NDArray[np.bool_] = np.zeros(_INITIAL_SIZE, dtype=np.bool_)
        self.readings = Readings(taken_at=0.0)
        self.cache: dict[tuple[Quantity, int], Any] = {}
        """Answers that are valid until the readings or the set of GPUs change."""
        self._columns = {quantity: np.full(_INITIAL_SIZE, np.nan) for quantity in COLUMN_QUANTITIES}
        self._sampled = np.full(_INITIAL_SIZE, np.nan)
        self._nodes: dict[str, dict[int, int]] = {}
        self._slots_by_uuid: dict[str, int] = {}
        self._uuids: list[str] = []
        self._free: list[int] = []
        self._layout = 0
        """Grows whenever a GPU gets or loses its slot or changes its UUID."""
        self._mapped: tuple[tuple[GpuIdentity, ...], int] = ((), -1)
        """The GPUs and the layout for which `_rows` and `_slots` are valid."""
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._slots: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def column(self, quantity: Quantity) -> Column:
        """Return one quantity of every slot, NaN where there is no reading or no GPU."""
        return self._columns[quantity][: len(self.keys)]

    @property
    def sampled(self) -> Column:
        """When each slot was last sampled, in Unix seconds; NaN where there is no reading or no GPU."""
        return self._sampled[: len(self.keys)]

    def slots_of(self, node: str, indices: Iterable[int]) -> list[int]:
        """Return the slots of some GPUs of a node, without the unknown ones."""
        known = self._nodes.get(node, {})
        return [known[index] for index in indices if index in known]

    def exporter_index(self, node: str, index: int) -> int:
        """Return the index that the exporter of the readings uses for a GPU; the same if it has none."""
        slot = self._nodes.get(node, {}).get(index)
        uuid = self._uuids[slot] if slot is not None else ""
        if not uuid:
            return index
        named = (self.readings.gpus[row] for row in self.readings.rows_of(node))
        return next((gpu.ref.index for gpu in named if gpu.uuid == uuid and not gpu.ref.partition), index)

    def gpu_of(self, gpu: GpuIdentity) -> tuple[str, int] | None:
        """Return the node and the fleet's index of a GPU in the readings; None if it is not known."""
        slot = self._slot_of(gpu)
        return None if slot is None else self.keys[slot]

    def gpu_at(self, ref: GpuRef) -> tuple[str, int] | None:
        """Return the node and the fleet's index of the GPU that exporters call `ref`; None if it is not known."""
        named = (self.readings.gpus[row] for row in self.readings.rows_of(ref.node))
        found = (gpu for gpu in named if gpu.ref.index == ref.index and not gpu.ref.partition)
        return self.gpu_of(next(found, GpuIdentity(GpuRef(ref.node, ref.index))))

    def put_node(self, view: NodeView) -> None:
        """Give the GPUs of a node slots and record which are allocated."""
        name = view.node.name
        slots = self._nodes.setdefault(name, {})
        gpus = {gpu.index: gpu for gpu in view.gpus}
        for index in [index for index in slots if index not in gpus]:
            self._release(slots.pop(index))
        for index, gpu in gpus.items():
            if index not in slots:
                slots[index] = self._acquire((name, index))
            slot = slots[index]
            if self.models[slot] != gpu.model:
                self.models[slot] = gpu.model
                self.cache.clear()
            self.allocated[slot] = index in view.allocated_indices
            self._set_uuid(slot, gpu.uuid)

    def drop_node(self, node: str) -> None:
        """Release the slots of a node."""
        for slot in self._nodes.pop(node, {}).values():
            self._release(slot)

    def put_readings(self, readings: Readings) -> Iterator[None]:
        """Replace the readings.

        Rows are mapped to slots in several steps; the values change together in the last one.
        """
        for _ in range(_MAP_ATTEMPTS):
            if self._is_mapped(readings.gpus):
                break
            yield from self._map(readings.gpus)
        if not self._is_mapped(readings.gpus):  # GPUs come and go faster than the steps
            for _ in self._map(readings.gpus):
                pass
        self.readings = readings
        self.cache.clear()
        for quantity in COLUMN_QUANTITIES:
            column = self._columns[quantity]
            column[:] = np.nan
            values = readings.values.get(quantity)
            if values is not None:
                column[self._slots] = values[self._rows]
        self._sampled[:] = np.nan
        for quantity in COLUMN_QUANTITIES:
            times = readings.times.get(quantity)
            if times is not None:
                newest = np.fmax(self._sampled[self._slots], times[self._rows])
                self._sampled[self._slots] = newest

    def _is_mapped(self, gpus: tuple[GpuIdentity, ...]) -> bool:
        return self._mapped[0] is gpus and self._mapped[1] == self._layout

    def _map(self, gpus: tuple[GpuIdentity, ...]) -> Iterator[None]:
        rows: dict[int, int] = {}
        layout = self._layout
        for row, gpu in enumerate(gpus):
            if row % _ROWS_PER_STEP == 0:
                yield
            if gpu.ref.partition:
                continue
            slot = self._slot_of(gpu)
            if slot is not None:
                rows[slot] = row
        self._slots = np.fromiter(rows.keys(), dtype=np.intp, count=len(rows))
        self._rows = np.fromiter(rows.values(), dtype=np.intp, count=len(rows))
        self._mapped = (gpus, layout)

    def _slot_of(self, gpu: GpuIdentity) -> int | None:
        slot = self._slots_by_uuid.get(gpu.uuid) if gpu.uuid else None
        return self._nodes.get(gpu.ref.node, {}).get(gpu.ref.index) if slot is None else slot

    def _set_uuid(self, slot: int, uuid: str) -> None:
        old = self._uuids[slot]
        if old == uuid:
            return
        self._layout += 1
        self._uuids[slot] = uuid
        if self._slots_by_uuid.get(old) == slot:
            del self._slots_by_uuid[old]
        if uuid:
            self._slots_by_uuid[uuid] = slot

    def _acquire(self, key: tuple[str, int]) -> int:
        self._layout += 1
        self.cache.clear()
        if self._free:
            slot = self._free.pop()
            self.keys[slot] = key
            return slot
        slot = len(self.keys)
        self.keys.append(key)
        self.models.append("")
        self._uuids.append("")
        if slot >= len(self.allocated):
            self.allocated = np.concatenate([self.allocated, np.zeros_like(self.allocated)])
            for quantity, column in self._columns.items():
                self._columns[quantity] = np.concatenate([column, np.full_like(column, np.nan)])
            self._sampled = np.concatenate([self._sampled, np.full_like(self._sampled, np.nan)])
        return slot

    def _release(self, slot: int) -> None:
        self._layout += 1
        self.cache.clear()
        self.keys[slot] = None
        self.models[slot] = ""
        self.allocated[slot] = False
        for column in self._columns.values():
            column[slot] = np.nan
        self._sampled[slot] = np.nan
        self._set_uuid(slot, "")
        self._free.append(slot)
