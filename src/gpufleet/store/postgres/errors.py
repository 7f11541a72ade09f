"""Classify PostgreSQL errors by what the caller should do.

- The connection was lost or the server is restarting: retry the whole transaction.
- The server cannot serve the request (disk full, read-only, too slow): raise StoreUnavailable with an
  explanation. It recovers without a restart once the cause is gone.
- All other errors are bugs in our SQL and propagate unchanged, with their traceback.
"""

import asyncpg

from gpufleet.errors import GpufleetError, OperationRefused, StoreUnavailable

DATABASE_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""All errors that asyncpg raises because of the server or the network."""

_CONNECTION_LOST = (
    # raised when the server has ended an idle session but asyncpg has not seen the socket close
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_CLOSED = ("connection is closed", "connection was closed", "released back to the pool")
"""Messages of a lost connection: asyncpg.InterfaceError also reports mistakes of the caller."""

_RETRYABLE = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
REFUSES_WRITES = (asyncpg.DiskFullError, asyncpg.ReadOnlySQLTransactionError, asyncpg.PostgresIOError)
"""Errors of a server that answers queries but can't store anything."""

_SENTENCES: dict[type[Exception], str] = {
    asyncpg.DiskFullError: "the database's disk is full; free some space, no restart is needed",
    asyncpg.OutOfMemoryError: "the database is out of memory",
    asyncpg.TooManyConnectionsError: (
        "the database accepts no more connections; lower store.pool_size or raise its max_connections"
    ),
    asyncpg.ReadOnlySQLTransactionError: (
        "the database is read-only (a standby, or a failover in progress); writes continue when it is writable"
    ),
    asyncpg.QueryCanceledError: (
        "a query took longer than store.query_timeout (graphs and reports: half of it) and was canceled"
    ),
    asyncpg.PostgresIOError: "the database can't read or write its files",
}
_REFUSALS: dict[type[Exception], str] = {
    asyncpg.InvalidPasswordError: "the database refuses the user name or password in DATABASE_URL",
    asyncpg.InvalidAuthorizationSpecificationError: "the database refuses the user of DATABASE_URL",
    asyncpg.InvalidCatalogNameError: "the database in DATABASE_URL does not exist; create it with createdb",
    asyncpg.InsufficientPrivilegeError: "the user of DATABASE_URL lacks a permission in the database",
}


def is_connection_lost(error: BaseException) -> bool:
    """Return whether the connection was lost or refused, which leaves the outcome of the last call unknown."""
    if isinstance(error, asyncpg.InterfaceError):
        return any(words in str(error) for words in _CLOSED)
    return isinstance(error, _CONNECTION_LOST) or (
        isinstance(error, OSError) and not isinstance(error, TimeoutError)
    )


def is_retryable(error: BaseException) -> bool:
    """Return whether the same transaction may succeed on a retry."""
    return is_connection_lost(error) or isinstance(error, _RETRYABLE)


def explain(error: BaseException) -> GpufleetError | None:
    """Return the error to raise to callers of the store instead of `error`; None for a bug in our SQL."""
    detail = _detail(error)
    for kind, sentence in _REFUSALS.items():
        if isinstance(error, kind):
            return OperationRefused(f"{sentence} ({detail})")
    for kind, sentence in _SENTENCES.items():
        if isinstance(error, kind):
            return StoreUnavailable(f"{sentence} ({detail})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database did not answer within store.query_timeout")
    if isinstance(error, asyncpg.InterfaceError) and "pool is clos" in str(error):
        return StoreUnavailable("the store is closed because this server is stopping")
    if is_retryable(error):
        return StoreUnavailable(f"the database does not answer ({detail})")
    return None


def _detail(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
