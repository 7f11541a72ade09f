"""Migrate the database schema with numbered, forward-only SQL files.

The files are `migrations/NNNN_name.sql`. Each one runs in a transaction that also records its number and
checksum, so a migration is applied completely or not at all. An advisory lock lets one process migrate
while others wait. A file that changed after it was applied, a gap, or a database of a newer gpufleet is
refused before anything changes.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources

import asyncpg

from gpufleet import __version__
from gpufleet.errors import OperationRefused
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.database import SCHEMA, connect
from gpufleet.store.postgres.errors import DATABASE_ERRORS, explain
from gpufleet.store.postgres.locks import MIGRATION_LOCK

_NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
_log = get_logger("store")


@dataclass(frozen=True)
class Migration:
    """One migration file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The hash of the SQL; it ignores line endings, because git may change them."""
        return hashlib.sha256(self.sql.replace("\r\n", "\n").encode()).hexdigest()


@dataclass(frozen=True)
class State:
    """The last applied migration and the pending ones."""

    applied: int
    pending: tuple[Migration, ...]


def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this version, in order."""
    files = (resources.files("gpufleet.store") / "migrations").iterdir()
    found = [
        Migration(int(match[1]), match[2], file.read_text())
        for file in files
        if (match := _NAME.match(file.name))
    ]
    return tuple(sorted(found, key=lambda step: step.number))


async def upgrade(
    dsn: str, settings: StoreSettings, steps: tuple[Migration, ...] | None = None
) -> tuple[Migration, ...]:
    """Apply pending migrations and return them."""
    known = migrations() if steps is None else steps
    async with _session(dsn, settings) as connection, _locked(connection):
        state = await _state(connection, known)
        for step in state.pending:
            await _apply(connection, step)
            _log.info("migration_applied", number=step.number, name=step.name)
    return state.pending


async def check(dsn: str, settings: StoreSettings, steps: tuple[Migration, ...] | None = None) -> State:
    """Return the migration state without changing the database."""
    async with _session(dsn, settings) as connection:
        return await _state(connection, migrations() if steps is None else steps)


@asynccontextmanager
async def _session(dsn: str, settings: StoreSettings) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(dsn, settings, statement_seconds=0)
    try:
        yield connection
    except DATABASE_ERRORS as error:
        raise explain(error) or error from error
    finally:
        connection.terminate() if connection.is_closed() else await connection.close()


@asynccontextmanager
async def _locked(connection: asyncpg.Connection) -> AsyncIterator[None]:
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *MIGRATION_LOCK):
        _log.info("waiting_for_migration_lock")
        await asyncio.sleep(0.5)
    # closing the session releases the lock, also after an error
    yield


async def _state(connection: asyncpg.Connection, known: tuple[Migration, ...]) -> State:
    rows = []
    if await connection.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.migration"):
        rows = await connection.fetch("SELECT number, name, checksum FROM migration ORDER BY number")
    by_number = {step.number: step for step in known}
    newest = known[-1].number if known else 0
    if rows and rows[-1]["number"] > newest:
        raise OperationRefused(
            f"the database was migrated by a newer gpufleet (migration {rows[-1]['number']}, this version "
            f"has {newest}); run that version or newer"
        )
    for row in rows:
        step = by_number.get(row["number"])
        if step is None or step.checksum != row["checksum"]:
            raise OperationRefused(
                f"migration {row['number']:04d}_{row['name']} differs from the one that was applied to this "
                "database; released migrations never change, so install the gpufleet version that applied it"
            )
    applied = rows[-1]["number"] if rows else 0
    pending = tuple(step for step in known if step.number > applied)
    if len(rows) + len(pending) != len(known):
        raise OperationRefused(
            "the database lacks a migration before its newest one; restore it from a backup"
        )
    return State(applied, pending)


async def _apply(connection: asyncpg.Connection, step: Migration) -> None:
    async with connection.transaction():
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS migration ("
            " number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,"
            " applied_at timestamptz NOT NULL DEFAULT now(), program text NOT NULL)"
        )
        await connection.execute(step.sql)
        await connection.execute(
            "INSERT INTO migration (number, name, checksum, program) VALUES ($1, $2, $3, $4)",
            *(step.number, step.name, step.checksum, __version__),
        )
