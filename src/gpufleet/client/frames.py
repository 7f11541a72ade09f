"""Rows as data frames of pandas or polars, if the user has them installed.

Nested fields become columns such as `stat.gpu_request`, as in the API's CSV.
"""

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.errors import GpufleetError

if TYPE_CHECKING:
    import pandas
    import polars


class FrameLibraryMissing(GpufleetError, ImportError):
    """The library of the frame is not installed."""


def to_pandas(rows: Iterable[msgspec.Struct]) -> "pandas.DataFrame":
    """Return a pandas frame with one row per struct."""
    return _library("pandas").DataFrame(flat_rows(rows))


def to_polars(rows: Iterable[msgspec.Struct]) -> "polars.DataFrame":
    """Return a polars frame with one row per struct."""
    return _library("polars").DataFrame(flat_rows(rows), infer_schema_length=None)


def flat_rows(rows: Iterable[msgspec.Struct]) -> list[dict[str, Any]]:
    """Return rows as dictionaries without nested structs."""
    return [flat(row) for row in rows]


def wire_rows(rows: Iterable[msgspec.Struct]) -> list[dict[str, Any]]:
    """Return rows as `flat_rows` does, with the names that the API uses."""
    return [flat(row, wire=True) for row in rows]


def flat(row: msgspec.Struct, prefix: str = "", *, wire: bool = False) -> dict[str, Any]:
    """Return the fields of a struct; those of structs in it with dotted names."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(row):
        name = prefix + (field.encode_name if wire else field.name)
        value = getattr(row, field.name)
        if isinstance(value, msgspec.Struct):
            found |= flat(value, f"{name}.", wire=wire)
        else:
            found[name] = msgspec.to_builtins(value)
    return found


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise FrameLibraryMissing(f"frames of {name} need the package: pip install {name}") from error
