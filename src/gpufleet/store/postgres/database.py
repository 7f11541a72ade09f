"""One pool of connections, and transactions that survive a lost one.

Everything goes through `transaction(work)`: it opens a transaction, calls `work` with the
connection and commits. If the connection is lost, or PostgreSQL asks for a repeat, the whole
of it runs again on another connection, with growing and jittered pauses, until
`retry_timeout` is over. So `work` must be free of effects outside the database.

One case can't be told apart: the connection broke while COMMIT was on its way. Then the
first run may be stored already and `work` runs a second time; it must be written so that
this changes nothing (upserts on natural keys). Where that is not possible, ask for
`repeatable=False` and the caller hears that the outcome is unknown. Nothing that returned
normally is ever lost: connections run with `synchronous_commit` on.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from gpufleet.errors import OperationRefused, SettingsError, StoreUnavailable
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.errors import BROKEN, explain, is_gone, is_passing

SCHEMA = "gpufleet"
"""Every table lives in a schema of its own, so that a shared database stays tidy."""

OLDEST = 14
"""The oldest major version of PostgreSQL that is used."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_STATEMENTS_CACHED = 256
_GRACE = 5.0
_TRY_EVERY = 0.5
_TELL_EVERY = 10.0
"""How much longer than the server we wait for an answer: a dead network never answers."""

_log = get_logger("store")
T = TypeVar("T")
Work = Callable[[asyncpg.Connection], Awaitable[T]]
"""What a caller does with a connection."""


@dataclass
class Counts:
    """What happened at the database since the start, for `/metrics`."""

    transactions: int = 0
    repeats: int = 0
    failures: int = 0


class _LostAtCommit(Exception):
    """The connection broke while COMMIT was on its way."""

    def __init__(self, fault: Exception) -> None:
        super().__init__("lost at COMMIT")
        self.fault = fault


_FAILURES = (*BROKEN, _LostAtCommit)


class Database:
    """A pool of connections to one database; `open_database` makes it."""

    def __init__(self, pool: asyncpg.Pool, settings: StoreSettings, dice: random.Random) -> None:
        self._pool = pool
        self._settings = settings
        self._dice = dice
        self.counts = Counts()

    async def transaction(self, work: Work[T], *, repeatable: bool = True) -> T:
        """Run `work` in a transaction and return what it returns, once that is stored for good."""
        return await self._patiently(lambda connection: _in_transaction(connection, work), repeatable)

    async def fetch(self, query: str, *values: Any) -> list[asyncpg.Record]:
        """The rows of a query."""
        return await self._patiently(lambda connection: connection.fetch(query, *values))

    async def fetchrow(self, query: str, *values: Any) -> asyncpg.Record | None:
        """The first row of a query."""
        return await self._patiently(lambda connection: connection.fetchrow(query, *values))

    async def fetchval(self, query: str, *values: Any) -> Any:
        """The first value of the first row of a query."""
        return await self._patiently(lambda connection: connection.fetchval(query, *values))

    async def execute(self, query: str, *values: Any) -> None:
        """Run a statement that may run twice (see `transaction`)."""
        await self._patiently(lambda connection: connection.execute(query, *values))

    async def _patiently(self, work: Work[T], repeatable: bool = True) -> T:
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._settings.retry_timeout
        pause = _FIRST_PAUSE
        self.counts.transactions += 1
        while True:
            try:
                return await self._once(work)
            except _FAILURES as error:
                wait = pause * self._dice.uniform(0.5, 1.5)
                if (final := _verdict(error, repeatable, clock.time() + wait > deadline)) is not None:
                    self.counts.failures += 1
                    raise final from error
                _log.warning("store_repeats", reason=str(error) or type(error).__name__, pause=round(wait, 3))
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # after a failover the name may lead to the new primary
                    await self._pool.expire_connections()
            self.counts.repeats += 1
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _once(self, work: Work[T]) -> T:
        try:
            connection = await self._pool.acquire(timeout=self._settings.query_timeout)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"no connection to the database became free in {self._settings.query_timeout:g} s "
                f"(store.pool_size is {self._settings.pool_size})"
            ) from error
        try:
            return await work(connection)
        finally:
            await self._pool.release(connection, timeout=_GRACE)


def _verdict(error: Exception, repeatable: bool, too_late: bool) -> Exception | None:
    """What the caller is told of `error`; None: try again."""
    if isinstance(error, _LostAtCommit):
        if not repeatable:
            return StoreUnavailable(
                "the connection was lost while the data was being stored; "
                "whether it is stored is not known, look before you try again"
            )
        error = error.fault
        if not too_late:
            return None
    if is_passing(error) and not too_late:
        return None
    return explain(error) or error


async def _in_transaction(connection: asyncpg.Connection, work: Work[T]) -> T:
    transaction = connection.transaction()
    await transaction.start()
    try:
        result = await work(connection)
    except BaseException:
        # on a connection that is gone this fails; the pool throws away what it can't reset
        with suppress(*_FAILURES):
            await transaction.rollback()
        raise
    try:
        await transaction.commit()
    except BROKEN as error:
        if is_gone(error) or isinstance(error, TimeoutError):
            raise _LostAtCommit(error) from error
        raise
    return result


def connection_options(settings: StoreSettings, *, statement_seconds: float) -> dict[str, Any]:
    """What each connection is opened with; `statement_seconds` bounds one statement, 0 does not."""
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
    """One connection outside the pool, tried until `start_timeout` is over; checks the version."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + settings.start_timeout
    tell_at = clock.time()
    while True:
        try:
            connection = await asyncpg.connect(
                dsn, **connection_options(settings, statement_seconds=statement_seconds)
            )
            break
        except asyncpg.ClientConfigurationError as error:
            raise SettingsError(f"store.url can't be read: {error}") from None
        except BROKEN as error:
            told = explain(error)
            if told is None or not (is_passing(error) or isinstance(error, TimeoutError)):
                raise told or error from error
            now = clock.time()
            if now > deadline:
                waited = f"waited {settings.start_timeout:g} s for it (store.start_timeout)"
                hint = "; is DATABASE_URL right?" if settings.url else ""
                raise StoreUnavailable(f"{told}, {waited}{hint}") from error
            if now >= tell_at:
                _log.warning("waiting for the database", reason=str(told), seconds_left=round(deadline - now))
                tell_at = now + _TELL_EVERY
            await asyncio.sleep(_TRY_EVERY)
    try:
        refuse_old(connection.get_server_version().major)
    except OperationRefused:
        await connection.close()
        raise
    return connection


def refuse_old(major: int) -> None:
    """Refuse a PostgreSQL that lacks what our queries use."""
    if major < OLDEST:
        raise OperationRefused(
            f"the database is PostgreSQL {major}; gpufleet needs {OLDEST} or newer, so upgrade it or use another"
        )


@asynccontextmanager
async def open_database(
    dsn: str, settings: StoreSettings, *, dice: random.Random | None = None
) -> AsyncIterator[Database]:
    """A pool of `store.pool_size` connections, closed at the end."""
    await (await connect(dsn, settings, statement_seconds=settings.query_timeout)).close()
    try:
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=settings.pool_size,
            # nothing here leaves state on a session, so the round trip to reset it is saved
            reset=_leave_as_it_is,
            **connection_options(settings, statement_seconds=settings.query_timeout),
        )
    except BROKEN as error:
        raise explain(error) or error from error
    try:
        yield Database(pool, settings, dice or random.Random())  # noqa: S311
    finally:
        try:
            await asyncio.wait_for(pool.close(), _GRACE)
        except BROKEN:
            pool.terminate()


async def _leave_as_it_is(_connection: asyncpg.Connection) -> None:
    return None
