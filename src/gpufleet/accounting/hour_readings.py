"""Collect the readings of an hour: from the metric source, and from snapshots where it has gaps.

Both lie on the same grid of times, so gaps are filled cell by cell. Node names of exporters are
resolved by the aliases that the nodes had in that hour.

The power of a step is the mean that the GPU's energy counter tells, because a reading every few minutes misses
what happens in between. Without a counter, or where it was reset, it is the reading at the begin of the step.
"""

import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpufleet.accounting.samples import MAX_WATTS, Floats, Ints, Samples
from gpufleet.fleet.node_names import NodeNames
from gpufleet.model.metric_source import MetricSource
from gpufleet.model.reading import GpuRef, Quantity, Readings

SAMPLED = (Quantity.UTILIZATION, Quantity.MEMORY_USED, Quantity.MEMORY_TOTAL, Quantity.POWER)
LOOKBACK = 300.0
"""Seconds for which a reading is valid, as in Prometheus."""

_INITIAL_ROWS = 1024
PackedReadings = tuple[list[str], list[int], bytes, bytes, bytes, bytes]
"""Node and index of each GPU, and a column per sampled quantity."""
_EarlierReadings = tuple[list[str], list[int], bytes, bytes, bytes]
"""The same without power."""


class SampleGrid:
    """Readings by GPU and time of an hour; rows are added as GPUs turn up."""

    def __init__(self, hour: int, step: int, names: NodeNames) -> None:
        self._hour = hour
        self._step = step
        self._names = names
        self._columns = 3600 // step
        self._gpus: dict[tuple[str, int], int] = {}
        self._cells = {quantity: np.full((_INITIAL_ROWS, self._columns), np.nan) for quantity in SAMPLED}
        # A counter counts from the begin of a step to its end.
        self._cells[Quantity.ENERGY] = np.full((_INITIAL_ROWS, self._columns + 1), np.nan)
        self._lowest, self._highest = (np.full((_INITIAL_ROWS, self._columns), np.nan) for _ in range(2))
        self._last: tuple[tuple[GpuRef, ...], NDArray[np.intp]] = ((), np.zeros(0, dtype=np.intp))

    async def read(self, source: MetricSource, until: float | None = None) -> None:
        """Read the hour from the metric source, `until` the present if it is not over yet.

        Raise MetricsUnavailable if the source does not answer.
        """
        end = self._hour + 3600
        for quantity in SAMPLED:
            await self._read_quantity(source, quantity, end)
        # After the present, a source repeats the last value: the counter would seem to stand still.
        last = end if until is None else min(end, until)
        await self._read_quantity(source, Quantity.ENERGY, last + 1)
        async for extremes in source.extremes(Quantity.UTILIZATION, self._hour, end, self._step):
            rows = self._rows(extremes.gpus)
            columns = np.rint((extremes.times - self._hour) / self._step).astype(np.intp)
            whole = rows >= 0
            # A GPU has several rows if its node changed its name within the hour.
            np.fmin.at(self._lowest, np.ix_(rows[whole], columns), extremes.lowest[whole])
            np.fmax.at(self._highest, np.ix_(rows[whole], columns), extremes.highest[whole])

    async def _read_quantity(self, source: MetricSource, quantity: Quantity, end: float) -> None:
        async for block in source.samples(quantity, self._hour, end, self._step):
            rows = self._rows(block.gpus)
            columns = np.rint((block.times - self._hour) / self._step).astype(np.intp)
            whole = rows >= 0
            self._fill(quantity, rows[whole], columns, block.values[whole])

    def add_snapshots(self, snapshots: Sequence[tuple[int, bytes]]) -> None:
        """Fill gaps from the packed readings of snapshots."""
        for taken_at, packed in snapshots:
            self._add_snapshot(taken_at, packed)

    def samples(self) -> Samples:
        """Return everything that was collected."""
        count = len(self._gpus)
        times: Ints = (self._hour + self._step * np.arange(self._columns, dtype=np.int64)) * 1000
        utilization, used, total, power = (self._cells[quantity][:count] for quantity in SAMPLED)
        return Samples(
            self._gpus,
            times,
            self._step * 1000,
            utilization,
            used,
            total,
            lowest=self._lowest[:count],
            highest=self._highest[:count],
            power=self._mean_power(power),
        )

    def _mean_power(self, read: Floats) -> Floats:
        """Return the mean power of each step by the energy counter, else the reading of power."""
        counted = np.diff(self._cells[Quantity.ENERGY][: len(read)], axis=1) / self._step
        return np.where((counted >= 0) & (counted <= MAX_WATTS), counted, read)

    def _add_snapshot(self, taken_at: int, packed: bytes) -> None:
        column, rest = divmod(taken_at - self._hour, self._step)
        if rest or not 0 <= column < self._columns:
            return
        nodes, indices, *columns = _unpack(zlib.decompress(packed))
        rows = self._rows(tuple(GpuRef(node, index) for node, index in zip(nodes, indices, strict=True)))
        for quantity, column_bytes in zip(SAMPLED, columns, strict=False):
            values = np.frombuffer(column_bytes, dtype=np.float64)
            self._fill(quantity, rows, np.array([column]), values.reshape(-1, 1))

    def _rows(self, gpus: tuple[GpuRef, ...]) -> NDArray[np.intp]:
        if gpus == self._last[0]:
            return self._last[1]
        numbers, resolve = self._gpus, self._names.resolve
        found = np.fromiter(
            (
                -1 if gpu.partition else numbers.setdefault((resolve(gpu.node), gpu.index), len(numbers))
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
            more = max(count, 2 * have) - have
            self._cells = {quantity: _with_rows(cells, more) for quantity, cells in self._cells.items()}
            self._lowest, self._highest = (_with_rows(cells, more) for cells in (self._lowest, self._highest))

    def _fill(
        self, quantity: Quantity, rows: NDArray[np.intp], columns: NDArray[np.intp], new: Floats
    ) -> None:
        while len(rows):
            # A GPU has several rows if its node changed its name within the hour: take one per pass.
            distinct, first = np.unique(rows, return_index=True)
            place = np.ix_(distinct, columns)
            have = self._cells[quantity][place]
            self._cells[quantity][place] = np.where(np.isnan(have), new[first], have)
            rows, new = np.delete(rows, first), np.delete(new, first, axis=0)


def _with_rows(cells: Floats, more: int) -> Floats:
    return np.vstack([cells, np.full((more, cells.shape[1]), np.nan)])


def _unpack(packed: bytes) -> PackedReadings | _EarlierReadings:
    found: PackedReadings | _EarlierReadings
    try:
        found = msgspec.msgpack.decode(packed, type=PackedReadings)
    except msgspec.ValidationError:
        found = msgspec.msgpack.decode(packed, type=_EarlierReadings)
    return found


def pack_readings(readings: Readings, at: float) -> bytes:
    """Pack the readings of whole GPUs that are valid at `at`, for a snapshot."""
    rows = [row for row, gpu in enumerate(readings.gpus) if not gpu.ref.partition]
    columns = [valid_values(readings, quantity, at)[rows].tobytes() for quantity in SAMPLED]
    refs = [readings.gpus[row].ref for row in rows]
    packed: PackedReadings = ([ref.node for ref in refs], [ref.index for ref in refs], *columns)  # type: ignore[assignment]
    return zlib.compress(msgspec.msgpack.encode(packed), 1)


def valid_values(readings: Readings, quantity: Quantity, at: float) -> Floats:
    """Return the values of one quantity, NaN where there is none or it is too old at `at`."""
    values = readings.values.get(quantity)
    if values is None:
        return np.full(len(readings.gpus), np.nan)
    age = at - readings.times[quantity]
    return np.where(age < LOOKBACK, values, np.nan)
