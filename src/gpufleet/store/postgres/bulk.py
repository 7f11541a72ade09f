"""Many rows at once: COPY into a passing table, then one upsert from there.

COPY is several times faster than INSERT, but knows no ON CONFLICT. The passing table has
the columns of the target and is gone at the end of the transaction. Rows that are there
already get the new values, so the same rows may be sent any number of times.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

_NAME = re.compile(r"^[a-z_][a-z0-9_]*$")


async def merge(
    connection: asyncpg.Connection,
    table: str,
    columns: Sequence[str],
    key: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Insert `rows` into `table`, or update those whose `key` is there. Needs a transaction."""
    names = [_checked(name) for name in columns]
    passing = f"passing_{_checked(table)}"
    await connection.execute(
        f"CREATE TEMPORARY TABLE {passing} ON COMMIT DROP AS SELECT {', '.join(names)} FROM {table} WITH NO DATA"  # noqa: S608
    )
    await connection.copy_records_to_table(passing, records=rows, columns=names)
    changed = [name for name in names if name not in key]
    action = (
        "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in changed) if changed else "NOTHING"
    )
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(names)} FROM {passing} "  # noqa: S608
        f"ON CONFLICT ({', '.join(_checked(name) for name in key)}) DO {action}"
    )
    await connection.execute(f"DROP TABLE {passing}")


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(f"not a name of a table or column: {name!r}")
    return name
