"""Any list of the API as CSV, for those who send `Accept: text/csv`.

The rows are those of the JSON answer: the data itself where it is a list, its `data` where it is
a page. Nested fields become columns such as `stat.gpuRequest`; lists become JSON in their cell; a list
of names is one column. A text that a spreadsheet would run as a formula gets an apostrophe before it.

Rows are decoded one by one, so that a thread which makes a large table lets others run.
"""

import csv
import io
from typing import Any

import msgspec

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Page(msgspec.Struct):
    """Of a page its rows alone."""

    data: msgspec.Raw = msgspec.Raw(b"null")


def as_csv(encoded: bytes) -> bytes | None:
    """The rows in `encoded` JSON as CSV; None if it is not a list or page of objects or names."""
    if encoded.startswith(b"{"):
        encoded = bytes(msgspec.json.decode(encoded, type=_Page).data)
    if not encoded.startswith(b"["):
        return None
    rows = []
    for item in msgspec.json.decode(encoded, type=list[msgspec.Raw]):
        row = msgspec.json.decode(item)
        if not isinstance(row, dict | str):
            return None
        rows.append(_flat(row) if isinstance(row, dict) else {"name": _cell(row)})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def wants_csv(accept: bytes) -> bool:
    """Whether the caller prefers CSV: it names it before JSON."""
    if not accept:
        return False
    kinds = [part.split(b";")[0].strip().lower() for part in accept.split(b",")]
    if b"text/csv" not in kinds:
        return False
    return b"application/json" not in kinds or kinds.index(b"text/csv") < kinds.index(b"application/json")


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells.update(_flat(value, f"{prefix}{name}."))
        else:
            cells[prefix + name] = _cell(value)
    return cells


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return "" if value is None else value
