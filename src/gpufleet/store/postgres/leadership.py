"""Leader election: one of several servers does a job, and notices when it loses the job.

Servers on one database are replicas. A job that only one of them should do (aggregating, pruning)
belongs to the holder of a session-level advisory lock. PostgreSQL releases the lock when the session
ends. The holder notices because its socket closes or a heartbeat fails, and sets `lost`. PostgreSQL drops
a silent client after `tcp_user_timeout`, which is longer than the heartbeat, so the old leader stops
before a new one starts.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from typing import Self

import asyncpg

from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.database import connection_options
from gpufleet.store.postgres.errors import DATABASE_ERRORS
from gpufleet.store.postgres.migrate import MIGRATION_LOCK

_HEARTBEAT, _HEARTBEAT_TIMEOUT, _RETRY_INTERVAL = 3.0, 5.0, 2.0
_TCP_USER_TIMEOUT_MS = 20_000
_log = get_logger("store")


class Leadership:
    """`async with store.leadership("aggregator"):` waits until this process leads the job."""

    def __init__(
        self, dsn: str, settings: StoreSettings, name: str, *, retry_interval: float = _RETRY_INTERVAL
    ) -> None:
        self.name = name
        self.lost = asyncio.Event()
        """Set as soon as another process may lead the job."""
        self._dsn = dsn
        self._settings = settings
        self._retry_interval = retry_interval
        self._connection: asyncpg.Connection | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    @property
    def held(self) -> bool:
        """Whether this process leads the job."""
        return self._connection is not None and not self.lost.is_set()

    async def __aenter__(self) -> Self:
        try:
            while not await self._try_lock():  # noqa: ASYNC110 - another machine holds the lock: no event to wait for
                await asyncio.sleep(self._retry_interval * random.uniform(0.5, 1.5))  # noqa: S311
        except BaseException:
            # do not leak the connection when the wait is cancelled
            await self._disconnect()
            raise
        self._heartbeat = asyncio.create_task(self._send_heartbeats(), name=f"leadership {self.name}")
        _log.info("leadership_acquired", job=self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lost.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        await self._disconnect()

    async def _try_lock(self) -> bool:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return bool(
                await self._connection.fetchval(
                    "SELECT pg_try_advisory_lock($1, $2)", *advisory_lock(self.name)
                )
            )
        except DATABASE_ERRORS as error:
            _log.warning("leadership_unavailable", job=self.name, error=type(error).__name__)
            await self._disconnect()
            return False
        except BaseException:
            await self._disconnect()
            raise

    async def _connect(self) -> asyncpg.Connection:
        options = connection_options(self._settings, statement_seconds=_HEARTBEAT_TIMEOUT)
        options["server_settings"] |= {
            "tcp_user_timeout": str(_TCP_USER_TIMEOUT_MS),
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        connection = await asyncpg.connect(self._dsn, **options)
        connection.add_termination_listener(lambda _: self.lost.set() if self._heartbeat else None)
        return connection

    async def _send_heartbeats(self) -> None:
        assert self._connection is not None
        try:
            while not self.lost.is_set():
                await self._connection.execute("SELECT 1", timeout=_HEARTBEAT_TIMEOUT)
                try:
                    async with asyncio.timeout(_HEARTBEAT):
                        await self.lost.wait()
                except TimeoutError:
                    continue
        except DATABASE_ERRORS as error:
            _log.warning("leadership_lost", job=self.name, error=type(error).__name__)
        finally:
            self.lost.set()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except DATABASE_ERRORS:
                connection.terminate()


def advisory_lock(name: str) -> tuple[int, int]:
    """Return the advisory lock key of a job; it never equals that of the migrations."""
    digest = hashlib.sha256(name.encode()).digest()
    return MIGRATION_LOCK[0], 1 + int.from_bytes(digest[:4], "big") % (2**31 - 1)


async def lead(candidate: Callable[[], Leadership], work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` while this process leads, cancel it when leadership is lost, and campaign again; never return."""
    while True:
        async with candidate() as leadership:
            working = asyncio.ensure_future(work())
            losing = asyncio.ensure_future(leadership.lost.wait())
            try:
                await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                losing.cancel()
                working.cancel()
                (outcome,) = await asyncio.gather(working, return_exceptions=True)
            if leadership.held and isinstance(outcome, Exception):
                raise outcome
