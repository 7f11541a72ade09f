"""What may go wrong at PostgreSQL, sorted by what a caller should do about it.

- The connection or the server is gone for the moment: try the whole transaction again.
- The server is there but can't (disk full, read-only, too slow): say so in a sentence now;
  nothing has to be restarted once the cause is gone.
- Anything else is a mistake in our SQL: it stays what it is, so that its trace is seen.
"""

import asyncpg

from gpufleet.errors import GpufleetError, OperationRefused, StoreUnavailable

BROKEN = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Everything that a call to asyncpg raises because of the server or the network."""

_GONE = (
    # asyncpg raises it where the server ended a session that was idle, until it sees the socket close
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_CLOSED = ("connection is closed", "connection was closed", "released back to the pool")
"""How asyncpg, which has one class for it and for mistakes of ours, says that a connection is gone."""

_AGAIN = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
_SENTENCES: dict[type[Exception], str] = {
    asyncpg.DiskFullError: "the database's disk is full; free some space and it goes on by itself",
    asyncpg.OutOfMemoryError: "the database is out of memory",
    asyncpg.TooManyConnectionsError: (
        "the database takes no more connections; lower store.pool_size or raise its max_connections"
    ),
    asyncpg.ReadOnlySQLTransactionError: (
        "the database is read-only (a standby, or a failover is under way); writes wait until it is not"
    ),
    asyncpg.QueryCanceledError: "a query took longer than store.query_timeout and was stopped",
    asyncpg.PostgresIOError: "the database can't read or write its files",
}
_REFUSALS: dict[type[Exception], str] = {
    asyncpg.InvalidPasswordError: "the database refuses the user name or password in DATABASE_URL",
    asyncpg.InvalidAuthorizationSpecificationError: "the database refuses the user of DATABASE_URL",
    asyncpg.InvalidCatalogNameError: "the database that DATABASE_URL names is not there; make it with createdb",
    asyncpg.InsufficientPrivilegeError: "the user of DATABASE_URL lacks a permission in the database",
}


def is_gone(error: BaseException) -> bool:
    """Whether the connection was lost or refused, so that nobody knows what the server did last."""
    if isinstance(error, asyncpg.InterfaceError):
        return any(words in str(error) for words in _CLOSED)
    return isinstance(error, _GONE) or (isinstance(error, OSError) and not isinstance(error, TimeoutError))


def is_passing(error: BaseException) -> bool:
    """Whether the same transaction may well succeed when it is tried again now."""
    return is_gone(error) or isinstance(error, _AGAIN)


def explain(error: BaseException) -> GpufleetError | None:
    """The error that a caller of the store sees in place of `error`; None: it is a mistake of ours."""
    detail = _detail(error)
    for kind, sentence in _REFUSALS.items():
        if isinstance(error, kind):
            return OperationRefused(f"{sentence} ({detail})")
    for kind, sentence in _SENTENCES.items():
        if isinstance(error, kind):
            return StoreUnavailable(f"{sentence} ({detail})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database did not answer in store.query_timeout")
    if isinstance(error, asyncpg.InterfaceError) and "pool is clos" in str(error):
        return StoreUnavailable("the store is closed, because this server is stopping")
    if is_passing(error):
        return StoreUnavailable(f"the database does not answer ({detail})")
    return None


def _detail(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
