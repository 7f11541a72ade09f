"""The `metrics.csv` of PyTorch Lightning: a header, then rows in which most cells are empty.

A header is a line of names of which one is `step` or `epoch`; rows with as many cells follow. A
line of another length ends the table.
"""

import csv
import math

from gpufleet.training.names import is_name, unified

MOST_COLUMNS = 64


class CsvLines:
    """Reads lines that may belong to a table."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def read(self, line: str) -> dict[str, float]:
        """The numbers of a row by their unified names; empty for any other line."""
        if "," not in line:
            return {}
        try:
            cells = next(csv.reader([line]))
        except (csv.Error, StopIteration):
            return {}
        if {"step", "epoch"} & set(cells) and len(cells) <= MOST_COLUMNS and all(map(is_name, cells)):
            self._columns = cells
            return {}
        if len(cells) != len(self._columns):
            self._columns = []
            return {}
        return self._row(cells)

    def _row(self, cells: list[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for column, cell in zip(self._columns, cells, strict=True):
            if not cell:
                continue
            try:
                number = float(cell)
            except ValueError:
                return {}
            name, scale = unified(column)
            if math.isfinite(number):
                found[name] = number * scale
        return found
