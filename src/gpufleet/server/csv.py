"""Lists as CSV, for callers that send `Accept: text/csv`.

The rows are those of the JSON response: the data itself if it is a list, or its `data` if it is a page.
Nested fields become columns such as `stat.gpuRequest`; a list becomes JSON in its cell; a list of names is
one column. Text that a spreadsheet would run as a formula gets a leading apostrophe.

Rows are decoded one by one, so that a thread that builds a large table releases the GIL between them.
"""

import csv
import io
from typing import Any

import msgspec

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are the full-width forms of the first four, which spreadsheets treat alike."""


class _Page(msgspec.Struct):
    """The rows of a page."""

    data: msgspec.Raw = msgspec.Raw(b"null")


def as_csv(encoded: bytes) -> bytes | None:
    """Return the rows in `encoded` JSON as CSV, or None if it is not a list or page of objects or names."""
    if encoded.startswith(b"{"):
        encoded = bytes(msgspec.json.decode(encoded, type=_Page).data)
    if not encoded.startswith(b"["):
        return None
    rows = []
    for item in msgspec.json.decode(encoded, type=list[msgspec.Raw]):
        row = msgspec.json.decode(item)
        if not isinstance(row, dict | str):
            return None
        rows.append(_flatten(row) if isinstance(row, dict) else {"name": _cell(row)})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def wants_csv(accept: bytes) -> bool:
    """Return whether an `Accept` header names CSV before JSON."""
    if b"csv" not in accept.lower():
        return False
    media_types = [part.split(b";")[0].strip().lower() for part in accept.split(b",")]
    json_or_csv = [each for each in media_types if each in (b"text/csv", b"application/json")]
    return json_or_csv[:1] == [b"text/csv"]


def _flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells.update(_flatten(value, f"{prefix}{name}."))
        else:
            cells[_cell(prefix + name)] = _cell(value)
    return cells


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return "" if value is None else value
