"""Write rows as a table, JSON, YAML, CSV or names."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from gpufleet.client.frames import wire_rows
from gpufleet.errors import InvalidRequest
from gpufleet.terminal.columns import Column
from gpufleet.terminal.width import wrapped

FORMATS = ("wide", "json", "yaml", "csv", "name")
_GAP = "  "
_NARROWEST = 24
"""Characters that the last column needs; with less the terminal breaks the lines, as kubectl's."""


def table(columns: Sequence[Column], rows: Sequence[Any], *, headers: bool = True, width: int = 0) -> str:
    """Return an aligned table; the last column takes several lines to fit into `width`, 0 for no limit."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    if headers:
        cells.insert(0, [column.header for column in columns])
    widths = [max((len(line[place]) for line in cells), default=0) for place in range(len(columns) - 1)]
    before = sum(size + len(_GAP) for size in widths)
    limit = width if width >= before + _NARROWEST else 0
    return "".join(f"{wrapped(_line(line, widths), limit, before)}\n" for line in cells)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text.ljust(size) for text, size in zip(cells[:-1], widths, strict=True)]
    return _GAP.join([*padded, cells[-1]]).rstrip()


def as_json(rows: Sequence[Any], *, single: bool = False) -> str:
    """Return the rows as the API has them: one object if a single one was asked for, else a List."""
    return json.dumps(_document(rows, single), indent=4, ensure_ascii=False) + "\n"


def as_yaml(rows: Sequence[Any], *, single: bool = False) -> str:
    """Return the rows as YAML, in the shape of `as_json`."""
    import yaml

    return yaml.safe_dump(_document(rows, single), sort_keys=False, allow_unicode=True, width=110)


def _document(rows: Sequence[Any], single: bool) -> Any:
    items = [msgspec.to_builtins(row) for row in rows]
    return items[0] if single and len(items) == 1 else {"kind": "List", "items": items}


def as_csv(rows: Sequence[Any], fields: Sequence[str] = (), *, headers: bool = True) -> str:
    """Return the fields of the rows as CSV, all of them by default; those of nested objects have dotted names."""
    found = wire_rows(rows)
    names = list(fields) or list(dict.fromkeys(name for row in found for name in row))
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    if headers and names:
        writer.writerow(names)
    for row in found:
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    return written.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in tuple("=+-@"):
        return f"'{value}"  # a spreadsheet would run it as a formula
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value


def choose_columns(columns: Sequence[Column], names: str, *, wide: bool) -> list[Column]:
    """Return the columns that `names` lists, else the default ones, else all with `wide`."""
    if not names:
        shown = [column for column in columns if wide or not column.wide]
        # A long text reads best at the end of the line.
        return sorted(shown, key=lambda column: column.header == "REASON")
    by_name = {column.header: column for column in columns}
    chosen = [name.strip().upper() for name in names.split(",")]
    for name in chosen:
        if name not in by_name:
            raise InvalidRequest(f"no column {name}; there are {', '.join(by_name)}")
    return [by_name[name] for name in chosen]


def sort_rows(rows: list[Any], columns: Sequence[Column], by: str) -> list[Any]:
    """Return rows sorted by a column or a field of the API; descending with a leading minus."""
    name = by.lstrip("-").strip("{}").lstrip(".")
    column = next((each for each in columns if each.header.casefold() == name.casefold()), None)

    def value(row: Any) -> Any:
        return column.value(row) if column else wire_rows([row])[0][name]

    if column is None and rows and name not in wire_rows(rows[:1])[0]:
        known = ", ".join([each.header for each in columns] + list(wire_rows(rows[:1])[0]))
        raise InvalidRequest(f"--sort-by {by}: no such column or field; there are {known}")
    missing = [row for row in rows if value(row) is None]
    present = [row for row in rows if value(row) is not None]
    return sorted(present, key=value, reverse=by.startswith("-")) + missing
