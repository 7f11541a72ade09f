"""Read the `metrics.csv` of PyTorch Lightning: a header, then rows in which most cells are empty.

A header is a line of metric names that include `step` or `epoch`. Rows with the same number of cells
follow. A line with another number of cells ends the table.
"""

import csv
import math

from gpufleet.training.metric_names import is_metric_name, unify

MAX_COLUMNS = 64


class LightningCsvReader:
    """Read log lines that may belong to a CSV table."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def read(self, line: str) -> dict[str, float]:
        """Return the numbers of a row by unified name; empty for any other line."""
        if "," not in line:
            return {}
        try:
            cells = next(csv.reader([line]))
        except (csv.Error, StopIteration):
            return {}
        if {"step", "epoch"} & set(cells) and len(cells) <= MAX_COLUMNS and all(map(is_metric_name, cells)):
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
            name, scale = unify(column)
            if math.isfinite(number):
                found[name] = number * scale
        return found
