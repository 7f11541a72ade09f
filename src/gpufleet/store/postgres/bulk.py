"""Upsert many rows: COPY into a temporary table, then INSERT … ON CONFLICT from there.

COPY is several times faster than INSERT but has no ON CONFLICT. The temporary table has the columns of
the target. Existing rows get the new values, so an upsert may be repeated.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

_NAME = re.compile(r"^[a-z_][a-z0-9_]*$")


async def bulk_upsert(
    connection: asyncpg.Connection,
    table: str,
    columns: Sequence[str],
    key: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Insert `rows` into `table`, or update those whose `key` exists. Call it in a transaction."""
    names = [_checked(name) for name in columns]
    temporary = f"new_{_checked(table)}"
    await connection.execute(
        f"CREATE TEMPORARY TABLE {temporary} ON COMMIT DROP AS SELECT {', '.join(names)} FROM {table} WITH NO DATA"  # noqa: S608
    )
    await connection.copy_records_to_table(temporary, records=rows, columns=names)
    changed = [name for name in names if name not in key]
    action = (
        "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in changed) if changed else "NOTHING"
    )
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(names)} FROM {temporary} "  # noqa: S608
        f"ON CONFLICT ({', '.join(_checked(name) for name in key)}) DO {action}"
    )
    await connection.execute(f"DROP TABLE {temporary}")


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(f"not a table or column name: {name!r}")
    return name
