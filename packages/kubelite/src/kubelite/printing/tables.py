"""Build the tables that `kubectl get` prints.

Custom resources define their columns as JSONPaths; `printing.columns` has a function for each
built-in kind. `includeObject` decides whether a row contains the object's metadata, the whole
object or nothing.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from kubelite.json import Json
from kubelite.kinds import Column, Kind
from kubelite.printing.columns import AGE, NAME, builtin_cells, builtin_columns
from kubelite.printing.durations import age_of
from kubelite.schema.jsonpath import json_path


def columns_of(kind: Kind) -> tuple[Column, ...]:
    """Return the columns of a kind, name first."""
    if kind.custom:
        return (NAME, *kind.columns)
    return builtin_columns(kind.plural) or (NAME, AGE)


def table(
    kind: Kind,
    items: Iterable[Json],
    metadata: Json,
    include: str,
    now: datetime,
    *,
    with_header: bool = True,
) -> Json:
    """Return a `Table` of objects."""
    columns = columns_of(kind)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns] if with_header else [],
        "rows": [_row(kind, columns, item, include, now) for item in items],
    }


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": column.format,
        "description": column.description or column.name,
        "priority": column.priority,
    }


def _row(kind: Kind, columns: tuple[Column, ...], item: Json, include: str, now: datetime) -> Json:
    if kind.custom:
        cells = [item["metadata"]["name"], *(_custom_cell(column, item, now) for column in columns[1:])]
    else:
        cells = builtin_cells(kind.plural, item, now)
    row: Json = {"cells": cells}
    if include != "None":
        row["object"] = item if include == "Object" else partial_metadata(item)
    return row


def partial_metadata(item: Json) -> Json:
    """Return the metadata of an object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}


def _custom_cell(column: Column, item: Json, now: datetime) -> Any:
    found = [value for value in json_path(item, column.path) if value is not None]
    if not found:
        return None
    value = found[0]
    match column.type:
        case "date":
            return age_of(str(value), now)
        case "string":
            return (
                value
                if isinstance(value, str)
                else ",".join(_text(one) for one in found)
                if len(found) > 1
                else _text(value)
            )
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + " ".join(_text(one) for one in value) + "]"
    return str(value)
