"""Bring the readings of an hour together: from the metric source, and from the snapshots where it has gaps.

Both lie on the same grid of moments, so a gap is filled cell by cell. Exporters may know a node by
another name than the cluster does; the capacity periods of the hour say which.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpufleet.accounting.samples import Floats, Ints, Samples
from gpufleet.model.metric_source import MetricSource
from gpufleet.model.periods import CapacityPeriod
from gpufleet.model.reading import GpuRef, Quantity, Readings

SAMPLED = (Quantity.UTILIZATION, Quantity.MEMORY_USED, Quantity.MEMORY_TOTAL)
FRESH = 300.0
"""Seconds for which a reading stands, as in Prometheus."""

_FIRST_ROWS = 1024
Packed = tuple[list[str], list[int], bytes, bytes, bytes]
"""Node and index of each GPU, and a column of each sampled quantity."""


class SampleGrid:
    """Readings on the moments of an hour, GPU by GPU, growing as GPUs turn up."""

    def __init__(self, hour: int, step: int, names: Mapping[str, str]) -> None:
        self._hour = hour
        self._step = step
        self._names = names
        self._columns = 3600 // step
        self._gpus: dict[tuple[str, int], int] = {}
        self._cells = {quantity: np.full((_FIRST_ROWS, self._columns), np.nan) for quantity in SAMPLED}
        self._last: tuple[tuple[GpuRef, ...], NDArray[np.intp]] = ((), np.zeros(0, dtype=np.intp))

    async def read(self, source: MetricSource) -> None:
        """Take what the metric source has of the hour; raises MetricsUnavailable if it can't say."""
        end = self._hour + 3600
        for quantity in SAMPLED:
            async for block in source.samples(quantity, self._hour, end, self._step):
                rows = self._rows(block.gpus)
                columns = np.rint((block.times - self._hour) / self._step).astype(np.intp)
                whole = np.array([not gpu.partition for gpu in block.gpus], dtype=np.bool_)
                self._fill(quantity, rows[whole], columns, block.values[whole])

    def add(self, taken_at: int, packed: bytes) -> None:
        """Fill gaps from the readings of a snapshot."""
        column, rest = divmod(taken_at - self._hour, self._step)
        if rest or not 0 <= column < self._columns:
            return
        nodes, indices, *columns = msgspec.msgpack.decode(zlib.decompress(packed), type=Packed)
        rows = self._rows(tuple(GpuRef(node, index) for node, index in zip(nodes, indices, strict=True)))
        for quantity, column_bytes in zip(SAMPLED, columns, strict=True):
            values = np.frombuffer(column_bytes, dtype=np.float64)
            self._fill(quantity, rows, np.array([column]), values.reshape(-1, 1))

    def samples(self) -> Samples:
        """What was found."""
        count = len(self._gpus)
        times: Ints = (self._hour + self._step * np.arange(self._columns, dtype=np.int64)) * 1000
        cells = [self._cells[quantity][:count] for quantity in SAMPLED]
        return Samples(self._gpus, times, self._step * 1000, *cells)

    def _rows(self, gpus: tuple[GpuRef, ...]) -> NDArray[np.intp]:
        if gpus == self._last[0]:
            return self._last[1]
        numbers, names = self._gpus, self._names
        found = np.fromiter(
            (
                -1
                if gpu.partition
                else numbers.setdefault((names.get(gpu.node, gpu.node), gpu.index), len(numbers))
                for gpu in gpus
            ),
            dtype=np.intp,
            count=len(gpus),
        )
        self._grow(len(numbers))
        self._last = (gpus, found)
        return found

    def _grow(self, count: int) -> None:
        have = len(self._cells[SAMPLED[0]])
        if count > have:
            more = np.full((max(count, 2 * have) - have, self._columns), np.nan)
            self._cells = {quantity: np.vstack([cells, more]) for quantity, cells in self._cells.items()}

    def _fill(
        self, quantity: Quantity, rows: NDArray[np.intp], columns: NDArray[np.intp], new: Floats
    ) -> None:
        while len(rows):
            # once for each name that a GPU goes by: its node's may have changed within the hour
            distinct, first = np.unique(rows, return_index=True)
            place = np.ix_(distinct, columns)
            have = self._cells[quantity][place]
            self._cells[quantity][place] = np.where(np.isnan(have), new[first], have)
            rows, new = np.delete(rows, first), np.delete(new, first, axis=0)


def node_names(capacities: Iterable[CapacityPeriod]) -> dict[str, str]:
    """The node that each other name stands for; a name of a node itself stands for that node."""
    found: dict[str, str] = {}
    for capacity in sorted(capacities, key=lambda c: (c.start, c.node)):
        found.update(dict.fromkeys(capacity.aliases, capacity.node))
    for capacity in capacities:
        found.pop(capacity.node, None)
    return found


def pack(readings: Readings, at: float) -> bytes:
    """The readings of whole GPUs that are fresh at `at`, for a snapshot."""
    rows = [row for row, gpu in enumerate(readings.gpus) if not gpu.ref.partition]
    columns = [fresh(readings, quantity, at)[rows].tobytes() for quantity in SAMPLED]
    refs = [readings.gpus[row].ref for row in rows]
    packed: Packed = ([ref.node for ref in refs], [ref.index for ref in refs], *columns)  # type: ignore[assignment]
    return zlib.compress(msgspec.msgpack.encode(packed), 1)


def fresh(readings: Readings, quantity: Quantity, at: float) -> Floats:
    """The values of one quantity; NaN where there is none or it is too old at `at`."""
    values = readings.values.get(quantity)
    if values is None:
        return np.full(len(readings.gpus), np.nan)
    age = at - readings.times[quantity]
    return np.where(age < FRESH, values, np.nan)


def fill_from_snapshots(grid: SampleGrid, snapshots: Sequence[tuple[int, bytes]]) -> None:
    """Fill gaps from all snapshots of an hour."""
    for taken_at, packed in snapshots:
        grid.add(taken_at, packed)
