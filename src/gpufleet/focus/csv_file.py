"""Write rows as CSV, with the formats of FOCUS for numbers, times and nulls."""

import csv
import io
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from gpufleet.focus.columns import NAMES
from gpufleet.focus.rows import Row

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def header() -> bytes:
    """Return the line of column names."""
    return _lines([NAMES])


def encode(rows: Iterable[Row]) -> bytes:
    """Return one line for each row."""
    return _lines([_cell(row.get(name)) for name in NAMES] for row in rows)


def _lines(lines: Iterable[Iterable[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(lines)
    return out.getvalue().encode()


def _cell(value: str | Decimal | datetime | None) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
    # A spreadsheet would run it as a formula.
    return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
