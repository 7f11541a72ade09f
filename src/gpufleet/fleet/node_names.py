"""Resolve the node names that exporters use to the fleet's own.

An exporter may know a node by its host name, its address or its scrape target. Readings and
processes are resolved here, once, where they enter the fleet. Samples of a past hour are resolved
by the aliases that the nodes had in that hour. Everything else sees fleet node names only; queries
for a time range go the other way, from a fleet node to the names that exporters use for it.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpufleet.model.periods import CapacityPeriod
from gpufleet.model.reading import Column, GpuIdentity, GpuRef, Processes, Quantity, Readings

T = TypeVar("T")
_ROWS_PER_STEP = 512


class NodeNames:
    """Fleet node names by alias. A node's own name wins over another node's alias."""

    def __init__(self) -> None:
        self._aliases: dict[str, tuple[str, ...]] = {}
        self._nodes: dict[str, str] = {}
        self._version = 0
        self._used: dict[str, set[str]] = {}
        """The aliases that exporters have used for each node since this process started."""
        self._resolved: tuple[tuple[GpuIdentity, ...], int, _Renaming | None] = ((), 0, None)

    @classmethod
    def of_periods(cls, periods: Iterable[CapacityPeriod]) -> "NodeNames":
        """Return all names that nodes had in some periods; the latest owner of an alias wins."""
        names = cls()
        for period in sorted(periods, key=lambda period: (period.start, period.node)):
            names._aliases[period.node] = period.aliases
            names._nodes.update(dict.fromkeys(period.aliases, period.node))
        return names

    def put(self, node: str, aliases: tuple[str, ...]) -> None:
        """Add a node, or replace its aliases."""
        before = self._aliases.get(node)
        if before == aliases:
            return
        self._version += 1
        self._aliases[node] = aliases
        if before:
            self._rebuild()
        self._nodes.update(dict.fromkeys(aliases, node))

    def drop(self, node: str) -> None:
        """Remove a node that left the cluster."""
        if self._aliases.pop(node, None) is not None:
            self._version += 1
            self._used.pop(node, None)
            self._rebuild()

    def resolve(self, name: str) -> str:
        """Return the node that goes by `name`, or `name` itself if none does."""
        return name if name in self._aliases else self._nodes.get(name, name)

    def exporter_names(self, node: str) -> tuple[str, ...]:
        """Return the names under which exporters may have recorded a node, its own name first.

        These are the aliases that exporters were seen to use, or all of them if none was seen yet.
        """
        aliases = self._aliases.get(node, ())
        used = self._used.get(node, ())
        return (node, *(alias for alias in aliases if alias in used or not used))

    def resolve_processes(self, processes: Processes) -> Processes:
        """Return the processes under fleet node names."""
        rows = [replace(row, gpu=_renamed(row.gpu, self.resolve(row.gpu.node))) for row in processes.rows]
        return replace(processes, rows=tuple(sorted(rows, key=lambda row: (row.gpu, row.pid))))

    def resolve_readings(self, readings: Readings) -> Generator[None, None, Readings]:
        """Return the readings under fleet node names, ordered by node, index and partition.

        Yields between steps of a few milliseconds. As long as neither the GPUs nor the names change,
        refreshes share one `gpus` tuple.
        """
        gpus, version, renaming = self._resolved
        if gpus is not readings.gpus or version != self._version:
            version = self._version
            renaming = yield from self._rename(readings.gpus)
            self._resolved = (readings.gpus, version, renaming)
        return readings if renaming is None else (yield from renaming.apply(readings))

    def _rename(self, gpus: tuple[GpuIdentity, ...]) -> Generator[None, None, "_Renaming | None"]:
        rows: dict[str, list[int]] = {}
        valid, last = True, GpuRef("", 0)
        for row, gpu in enumerate(gpus):
            if row % _ROWS_PER_STEP == 0:
                yield
            node = self.resolve(gpu.ref.node)
            self._used.setdefault(node, set()).add(gpu.ref.node)
            valid = valid and node == gpu.ref.node and last <= gpu.ref
            last = gpu.ref
            rows.setdefault(node, []).append(row)
        if valid:
            return None
        order: list[int] = []
        renamed: list[GpuIdentity] = []
        for node in sorted(rows):
            yield
            # An exporter's rows of one node are in order; two exporters may name the node differently.
            for row in sorted(rows[node], key=lambda row: (gpus[row].ref.index, gpus[row].ref.partition)):
                order.append(row)
                renamed.append(msgspec.structs.replace(gpus[row], ref=_renamed(gpus[row].ref, node)))
        return _Renaming(tuple(renamed), np.array(order, dtype=np.intp))

    def _rebuild(self) -> None:
        # An address may move to a new node before the old one is gone.
        self._nodes = {alias: node for node, aliases in self._aliases.items() for alias in aliases}


class _Renaming:
    """The GPUs under their new names, and the old row of each."""

    def __init__(self, gpus: tuple[GpuIdentity, ...], order: NDArray[np.intp]) -> None:
        self.gpus = gpus
        self._order = order
        self._new_rows = np.argsort(order).tolist()

    def apply(self, readings: Readings) -> Generator[None, None, Readings]:
        """Return the readings with these GPUs."""
        values = yield from self._reordered(readings.values)
        times = yield from self._reordered(readings.times)
        yield
        return replace(
            readings,
            gpus=self.gpus,
            values=values,
            times=times,
            holders=self._moved(readings.holders),
            faults=self._moved(readings.faults),
        )

    def _reordered(self, columns: Mapping[Quantity, Column]) -> Generator[None, None, dict[Quantity, Column]]:
        found = {}
        for quantity, column in columns.items():
            yield
            found[quantity] = column[self._order]
        return found

    def _moved(self, by_row: Mapping[int, T]) -> dict[int, T]:
        return {self._new_rows[row]: found for row, found in by_row.items()}


def _renamed(ref: GpuRef, node: str) -> GpuRef:
    return ref if ref.node == node else GpuRef(node, ref.index, ref.partition)
