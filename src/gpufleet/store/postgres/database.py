"""A connection pool with transactions that survive a lost connection.

`transaction(work)` opens a transaction, calls `work` with the connection and commits. If the connection
is lost or PostgreSQL asks for a retry, the whole transaction runs again on another connection, with
jittered exponential backoff, until `RETRY_TIMEOUT_S`. So `work` must have no effects outside the database.

If the connection breaks during COMMIT, the outcome is unknown and `work` runs again. It must therefore be
idempotent (upserts on natural keys). Where that is impossible, pass `repeatable=False`; the caller then
gets an error that says the outcome is unknown. Committed data is never lost: `synchronous_commit` is on.

A transaction that runs in the work of a leader checks its epoch first (see `fence`).
"""

import asyncio
import dataclasses
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
from asyncpg.transaction import Transaction

from gpufleet.errors import OperationRefused, SettingsError, StoreUnavailable
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.errors import (
    DATABASE_ERRORS,
    REFUSES_WRITES,
    explain,
    is_connection_lost,
    is_retryable,
)
from gpufleet.store.postgres.fence import current_fence

SCHEMA = "gpufleet"
"""The schema of all our tables, because the database may be shared."""

CLOCK = "clock_timestamp()"
"""The database's clock, not that of the beginning of a transaction."""

RETRY_TIMEOUT_S = 10.0
"""How long a lost connection is retried before a request fails: a restart or a failover takes seconds."""

LONG_READ_POOL_SIZE = 3
"""Connections for graphs, training numbers and reports, besides `store.pool_size`: they can't keep others waiting."""
_LONG_READ_SHARE = 0.5
"""Share of `store.query_timeout` after which they are cancelled."""

MIN_SERVER_VERSION = 14
"""The oldest supported major version of PostgreSQL."""

_MIN_BACKOFF, _MAX_BACKOFF = 0.05, 2.0
_STATEMENTS_CACHED = 256
_GRACE = 5.0
"""Seconds to wait for an answer after the server's own timeout: a broken network never answers."""
_CONNECT_INTERVAL = 0.5
_CHECK_BYTES = 256 * 1024
_LOG_INTERVAL = 10.0

_log = get_logger("store")
T = TypeVar("T")
Work = Callable[[asyncpg.Connection], Awaitable[T]]
"""A function that uses a connection."""


@dataclass
class Counts:
    """Counters for `/metrics`."""

    transactions: int = 0
    repeats: int = 0
    failures: int = 0


class _LostAtCommit(Exception):
    """The connection broke during COMMIT."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("connection lost during COMMIT")
        self.cause = cause


_FAILURES = (*DATABASE_ERRORS, _LostAtCommit)


class Database:
    """A pool of connections to one database; created by `open_database`."""

    def __init__(
        self, pool: asyncpg.Pool, settings: StoreSettings, rng: random.Random, retry_timeout: float, size: str
    ) -> None:
        self._pool = pool
        self._retry_timeout = retry_timeout
        self._size = size
        self._settings = settings
        self._random = rng
        self.counts = Counts()
        self.writes_refused = ""
        """Why the database refused the last write that it refused, until `check_writes` succeeds."""
        self.clock = CLOCK
        """The SQL of the time by which leases, ages and the end of hours are decided; tests move it."""

    async def now(self) -> float:
        """Return the database's time in Unix seconds."""
        return float(await self.fetchval(f"SELECT extract(epoch FROM {self.clock})::float8"))  # noqa: S608

    async def transaction(self, work: Work[T], *, repeatable: bool = True) -> T:
        """Run `work` in a transaction, commit, and return its result."""
        return await self._with_retries(lambda connection: _in_transaction(connection, work), repeatable)

    async def fetch(self, query: str, *values: Any) -> list[asyncpg.Record]:
        """Return the rows of a query."""
        return await self._with_retries(lambda connection: connection.fetch(query, *values))

    async def fetchrow(self, query: str, *values: Any) -> asyncpg.Record | None:
        """Return the first row of a query."""
        return await self._with_retries(lambda connection: connection.fetchrow(query, *values))

    async def fetchval(self, query: str, *values: Any) -> Any:
        """Return the first value of the first row of a query."""
        return await self._with_retries(lambda connection: connection.fetchval(query, *values))

    async def execute(self, query: str, *values: Any) -> None:
        """Run an idempotent statement (see `transaction`)."""
        run = self._with_retries if current_fence() is None else self.transaction
        await run(lambda connection: connection.execute(query, *values))

    async def check_writes(self) -> None:
        """Raise StoreUnavailable if the database does not accept writes.

        A full disk still takes small changes, so a refusal counts until a larger write succeeds.
        """
        async with asyncio.timeout(self._settings.query_timeout), self._connection() as connection:
            if await connection.fetchval("SELECT current_setting('transaction_read_only')") == "on":
                raise StoreUnavailable("the database is read-only (transaction_read_only is on)")
            if not self.writes_refused:
                return
            try:
                await _try_to_write(connection)
            except REFUSES_WRITES as error:
                raise StoreUnavailable(self.writes_refused) from error
            except asyncpg.InsufficientPrivilegeError:
                pass  # this user can't create tables: assume the best until the next refusal
        self.writes_refused = ""

    async def _with_retries(self, work: Work[T], repeatable: bool = True) -> T:
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._retry_timeout
        backoff = _MIN_BACKOFF
        self.counts.transactions += 1
        while True:
            try:
                return await self._once(work)
            except _FAILURES as error:
                wait = backoff * self._random.uniform(0.5, 1.5)
                if (final := _final_error(error, repeatable, clock.time() + wait > deadline)) is not None:
                    self.counts.failures += 1
                    if isinstance(error, REFUSES_WRITES):
                        self.writes_refused = str(final)
                    raise final from error
                _log.warning("store_retry", error=str(error) or type(error).__name__, wait=round(wait, 3))
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # after a failover, new connections may reach the new primary
                    await self._pool.expire_connections()
            self.counts.repeats += 1
            await asyncio.sleep(wait)
            backoff = min(backoff * 2, _MAX_BACKOFF)

    async def _once(self, work: Work[T]) -> T:
        async with self._connection() as connection:
            return await work(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        try:
            connection = await self._pool.acquire(timeout=self._settings.query_timeout)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"no database connection became free within {self._settings.query_timeout:g} s ({self._size})"
            ) from error
        try:
            yield connection
        finally:
            # If the database does not answer, the pool closes the connection. That must not replace what ends
            # the work: a task that is cancelled would go on.
            with suppress(*DATABASE_ERRORS):
                await self._pool.release(connection, timeout=_GRACE)


async def _try_to_write(connection: asyncpg.Connection) -> None:
    """Write to a table that nothing else sees, in a transaction that is rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"CREATE TABLE {SCHEMA}.write_check (data bytea)")
        await connection.execute(f"INSERT INTO {SCHEMA}.write_check VALUES ($1)", os.urandom(_CHECK_BYTES))  # noqa: S608
    finally:
        await _roll_back(connection, transaction)


def _final_error(error: Exception, repeatable: bool, too_late: bool) -> Exception | None:
    """Return the error to raise; None to retry."""
    if isinstance(error, _LostAtCommit):
        if not repeatable:
            return StoreUnavailable(
                "the connection was lost during commit, so the data may or may not be stored; "
                "check before you try again"
            )
        error = error.cause
        if not too_late:
            return None
    if is_retryable(error) and not too_late:
        return None
    return explain(error) or error


async def _in_transaction(connection: asyncpg.Connection, work: Work[T]) -> T:
    transaction = connection.transaction()
    await transaction.start()
    try:
        if (fence := current_fence()) is not None:
            await fence.check(connection)
        result = await work(connection)
    except BaseException:
        await _roll_back(connection, transaction)
        raise
    try:
        await transaction.commit()
    except DATABASE_ERRORS as error:
        if is_connection_lost(error) or isinstance(error, TimeoutError):
            raise _LostAtCommit(error) from error
        raise
    return result


async def _roll_back(connection: asyncpg.Connection, transaction: Transaction) -> None:
    """Roll back, or close a connection that is lost or silent; the pool replaces it."""
    try:
        async with asyncio.timeout(_GRACE):
            await transaction.rollback()
    except _FAILURES:
        with suppress(asyncpg.InterfaceError):  # the pool closed it
            connection.terminate()


def connection_options(settings: StoreSettings, *, statement_seconds: float) -> dict[str, Any]:
    """Return the arguments of `asyncpg.connect`; `statement_seconds` limits each statement, 0 means no limit."""
    server: Mapping[str, str] = {
        "application_name": "gpufleet",
        "search_path": SCHEMA,
        "timezone": "UTC",
        "synchronous_commit": "on",
        "statement_timeout": str(round(statement_seconds * 1000)),
        "idle_in_transaction_session_timeout": str(round((settings.query_timeout + _GRACE) * 1000)),
        "jit": "off",
    }
    return {
        "timeout": settings.query_timeout,
        "command_timeout": statement_seconds + _GRACE if statement_seconds else None,
        "server_settings": dict(server),
        "statement_cache_size": _STATEMENTS_CACHED,
    }


async def connect(dsn: str, settings: StoreSettings, *, statement_seconds: float) -> asyncpg.Connection:
    """Open a connection outside the pool and check the server version; retry until `start_timeout`."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + settings.start_timeout
    log_at = clock.time()
    while True:
        try:
            connection = await asyncpg.connect(
                dsn, **connection_options(settings, statement_seconds=statement_seconds)
            )
            break
        except asyncpg.ClientConfigurationError as error:
            raise SettingsError(f"store.url is invalid: {error}") from None
        except ValueError:  # its message may contain a part of the password
            raise SettingsError(
                "store.url is invalid; write special characters of the password as %XX (a slash as %2F)"
            ) from None
        except DATABASE_ERRORS as error:
            explained = explain(error)
            if explained is None or not (is_retryable(error) or isinstance(error, TimeoutError)):
                raise explained or error from error
            now = clock.time()
            if now > deadline:
                waited = f"waited {settings.start_timeout:g} s for it (store.start_timeout)"
                hint = "; is DATABASE_URL right?" if settings.url else ""
                raise StoreUnavailable(f"{explained}, {waited}{hint}") from error
            if now >= log_at:
                _log.warning("waiting_for_database", error=str(explained), seconds_left=round(deadline - now))
                log_at = now + _LOG_INTERVAL
            await asyncio.sleep(_CONNECT_INTERVAL)
    try:
        check_server_version(connection.get_server_version().major)
    except OperationRefused:
        await connection.close()
        raise
    return connection


def check_server_version(major: int) -> None:
    """Raise OperationRefused for a PostgreSQL that is too old for our queries."""
    if major < MIN_SERVER_VERSION:
        raise OperationRefused(
            f"the database is PostgreSQL {major}; gpufleet needs {MIN_SERVER_VERSION} or newer"
        )


@asynccontextmanager
async def open_database(
    dsn: str,
    settings: StoreSettings,
    *,
    rng: random.Random | None = None,
    long_reads: bool = False,
    retry_timeout: float = RETRY_TIMEOUT_S,
) -> AsyncIterator[Database]:
    """Open a pool of connections and close it at the end; `long_reads` selects the limits of long reads."""
    size = f"store.pool_size is {settings.pool_size}"
    if long_reads:
        size = f"graphs and reports have {LONG_READ_POOL_SIZE}"
        timeout = settings.query_timeout * _LONG_READ_SHARE
        settings = dataclasses.replace(settings, pool_size=LONG_READ_POOL_SIZE, query_timeout=timeout)
    await (await connect(dsn, settings, statement_seconds=settings.query_timeout)).close()
    try:
        pool = await asyncpg.create_pool(
            dsn,
            min_size=0 if long_reads else 1,
            max_size=settings.pool_size,
            # our code leaves no session state, so save the round trip of a reset
            reset=_no_reset,
            **connection_options(settings, statement_seconds=settings.query_timeout),
        )
    except DATABASE_ERRORS as error:
        raise explain(error) or error from error
    try:
        yield Database(pool, settings, rng or random.Random(), retry_timeout, size)  # noqa: S311
    finally:
        try:
            await asyncio.wait_for(pool.close(), _GRACE)
        except DATABASE_ERRORS:
            pool.terminate()


async def _no_reset(_connection: asyncpg.Connection) -> None:
    return None
