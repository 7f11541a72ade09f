"""Fetch rows, select, sort and print them, once or whenever they change."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from gpufleet.client import Client, ServerUnreachable
from gpufleet.errors import InvalidRequest
from gpufleet.terminal.columns import Column
from gpufleet.terminal.output import as_csv, as_json, as_yaml, choose_columns, sort_rows, table
from gpufleet.terminal.resources import NAMESPACE, Resource, Selection
from gpufleet.terminal.width import terminal_width


@dataclass(frozen=True)
class Request:
    """What to list and how to print it."""

    resource: Resource
    selection: Selection = field(default_factory=Selection)
    names: tuple[str, ...] = ()
    output: str = ""
    columns: str = ""
    sort_by: str = ""
    headers: bool = True

    def shown_columns(self) -> list[Column]:
        """Return the columns of the table; the namespace only if there may be several."""
        chosen = choose_columns(self.resource.columns, self.columns, wide=self.output == "wide")
        if self.columns or not self.selection.namespace:
            return chosen
        return [column for column in chosen if column is not NAMESPACE]


def fetch(client: Client, request: Request) -> tuple[list[Any], list[str]]:
    """Return the rows in order, and the names that were not found."""
    rows = list(request.resource.fetch(client, request.selection))
    missing = []
    if request.names:
        meant = request.resource.is_meant
        missing = [name for name in request.names if not any(meant(row, name) for row in rows)]
        rows = [row for row in rows if any(meant(row, name) for name in request.names)]
    if request.sort_by:
        rows = sort_rows(rows, request.resource.columns, request.sort_by)
    return rows, missing


def get(client: Client, request: Request, out: TextIO, err: TextIO) -> int:
    """Print the rows; return 1 if a name was not found."""
    rows, missing = fetch(client, request)
    if rows or (request.output in ("json", "yaml") and not missing):
        out.write(rendered(request, rows))
    elif not missing:
        namespace = request.selection.namespace
        err.write(f"No resources found in {namespace} namespace.\n" if namespace else "No resources found\n")
    for name in missing:
        err.write(f'Error from server (NotFound): {request.resource.name} "{name}" not found\n')
    return 1 if missing else 0


def watch(
    client: Client,
    request: Request,
    out: TextIO,
    interval: float,
    *,
    keep_on: Callable[[], bool] = lambda: True,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Print the rows, then those that are new or have changed, until interrupted."""
    shown: dict[tuple[str, ...], tuple[str, ...]] = {}
    first = True
    while keep_on():
        try:
            rows, _ = fetch(client, request)
        except ServerUnreachable as error:
            sys.stderr.write(f"{error}; trying again\n")
            rows = None
        if rows is not None:
            now = {_identity(request, row): _state(request, row) for row in rows}
            changed = [row for row in rows if shown.get(_identity(request, row)) != _state(request, row)]
            if changed:
                out.write(rendered(request, changed, headers=request.headers and first, watching=True))
                out.flush()
            shown, first = now, first and not changed
        pause(interval)
    return 0


def _identity(request: Request, row: Any) -> tuple[str, ...]:
    return getattr(row, "namespace", ""), request.resource.key(row), getattr(row, "uid", "")


def _state(request: Request, row: Any) -> tuple[str, ...]:
    """Return the cells that count as a change."""
    return tuple(column.cell(row) for column in request.resource.columns if not column.live)


def rendered(
    request: Request, rows: Sequence[Any], *, headers: bool | None = None, watching: bool = False
) -> str:
    """Return the rows in the format of the request."""
    headers = request.headers if headers is None else headers
    single = len(request.names) == 1 or watching
    if request.output == "json":
        return (
            "".join(as_json([row], single=True) for row in rows) if watching else as_json(rows, single=single)
        )
    if request.output == "yaml":
        return as_yaml(rows, single=single)
    if request.output == "name":
        return "".join(f"{request.resource.singular}/{request.resource.key(row)}\n" for row in rows)
    if request.output == "csv":
        return as_csv(rows, _fields(request, rows), headers=headers)
    return table(request.shown_columns(), rows, headers=headers, width=terminal_width())


def _fields(request: Request, rows: Sequence[Any]) -> list[str]:
    from gpufleet.client.frames import wire_rows

    chosen = [name.strip() for name in request.columns.split(",") if name.strip()]
    known = list(wire_rows(rows[:1])[0]) if rows else chosen
    for name in chosen:
        if name not in known:
            raise InvalidRequest(f"no field {name}; there are {', '.join(known)}")
    return chosen
