"""Leader election: one of several servers does a job, and PostgreSQL refuses the writes of all others.

Servers on one database are replicas. A job that only one of them should do (aggregating, pruning) has a
leader, which holds two things:

- A session-level advisory lock, for as long as its session lasts. So the next server leads within seconds when
  the leader ends, and servers of earlier versions, which know only this lock, do not lead beside this one.
- A row of `leader` with its epoch and when that expires, by the database's clock. A leader that hangs keeps its
  session but does not renew the row: the next candidate ends that session and begins a new epoch.

The work runs under the `Fence` of its epoch, so that what a former leader still writes is refused. It is
cancelled as soon as the leader notices that it lost the session, could not renew, or that its clock is wrong.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

import asyncpg

from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.database import CLOCK, Database, connection_options
from gpufleet.store.postgres.errors import DATABASE_ERRORS
from gpufleet.store.postgres.fence import Fence, writers_lock
from gpufleet.store.postgres.locks import advisory_lock

LEASE = 10.0
"""Seconds for which a leader leads after its last renewal: three times the heartbeat, below 15 with two retries."""

_HEARTBEAT, _HEARTBEAT_TIMEOUT, _RETRY_INTERVAL = 3.0, 5.0, 2.0
_CANCEL_INTERVAL = 5.0
_TCP_USER_TIMEOUT_MS = 20_000
_log = get_logger("store")

_ACQUIRE = """
WITH before AS (
    SELECT greatest(max(expires_at), (SELECT to_timestamp(max(seen_at)) FROM accounted_cluster)) AS seen
    FROM leader WHERE job = $1
)
INSERT INTO leader (job, holder, session, epoch, expires_at, gap_since)
SELECT $1, $2, pg_backend_pid(), 1, {clock} + make_interval(secs => $3),
    CASE WHEN seen < {clock} - interval '1 day' THEN seen END
FROM before
ON CONFLICT (job) DO UPDATE SET
    holder = excluded.holder, session = excluded.session, epoch = leader.epoch + 1,
    expires_at = excluded.expires_at, gap_since = coalesce(leader.gap_since, excluded.gap_since)
RETURNING epoch
"""
# A renewal that comes more than a day after the last one is a clock that was set.
_RENEW = """
UPDATE leader SET expires_at = {clock} + make_interval(secs => $3),
    gap_since = coalesce(gap_since, CASE WHEN expires_at < {clock} - interval '1 day' THEN expires_at END)
WHERE job = $1 AND epoch = $2 RETURNING extract(epoch FROM {clock})::float8
"""
_RELEASE = "UPDATE leader SET expires_at = {clock} WHERE job = $1 AND epoch = $2"
_END_SESSIONS = """
SELECT pg_terminate_backend(pid, 2000) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND classid = $1 AND objid = $2 AND objsubid = 2 AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_END_EXPIRED = (
    _END_SESSIONS
    + "AND EXISTS (SELECT FROM leader WHERE job = $3 AND session = pid AND expires_at < {clock})"
)

_STATE = """
SELECT holder, epoch, extract(epoch FROM {clock} - expires_at)::float8, extract(epoch FROM gap_since)::float8
FROM leader WHERE job = $1
"""


class Leadership:
    """`async with store.leadership("aggregator"):` waits until this process leads the job."""

    def __init__(
        self,
        dsn: str,
        settings: StoreSettings,
        name: str,
        *,
        retry_interval: float = _RETRY_INTERVAL,
        clock: str = CLOCK,
    ) -> None:
        self.name = name
        self.fence = Fence(name, 0)
        """The epoch of this process, once it leads."""
        self._dsn = dsn
        self._settings = settings
        self._retry_interval = retry_interval
        self._clock = clock
        self._connection: asyncpg.Connection | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._clock_right = True

    @property
    def lost(self) -> asyncio.Event:
        """Set as soon as another process may lead the job."""
        return self.fence.lost

    @property
    def held(self) -> bool:
        """Whether this process leads the job."""
        return self._heartbeat is not None and not self.lost.is_set()

    async def __aenter__(self) -> Self:
        try:
            while not await self._try_to_lead():  # noqa: ASYNC110 - another machine leads: no event to wait for
                await asyncio.sleep(self._retry_interval * random.uniform(0.5, 1.5))  # noqa: S311
        except BaseException:
            # do not leak the connection when the wait is cancelled
            await self._disconnect()
            raise
        self._heartbeat = asyncio.create_task(self._send_heartbeats(), name=f"leadership {self.name}")
        _log.info("leadership_acquired", job=self.name, epoch=self.fence.epoch)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lost.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        await self._disconnect()

    async def _try_to_lead(self) -> bool:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return await self._acquire(self._connection)
        except DATABASE_ERRORS as error:
            _log.warning("leadership_unavailable", job=self.name, error=type(error).__name__)
            await self._disconnect()
            return False
        except BaseException:
            await self._disconnect()
            raise

    async def _acquire(self, connection: asyncpg.Connection) -> bool:
        lock = advisory_lock(self.name)
        now = await connection.fetchval(f"SELECT extract(epoch FROM {self._clock})::float8")  # noqa: S608
        if not self._clock_is_right(now):
            return False
        if not await self._lock(connection):
            ended = await connection.fetch(_END_EXPIRED.format(clock=self._clock), *lock, self.name)
            if not ended or not await self._lock(connection):
                return False
            _log.warning("leader_replaced", job=self.name, reason="it did not renew its lease")
        # Transactions of the last leader that hang would keep the new epoch waiting, and hold locks on its tables.
        await connection.fetch(_END_SESSIONS, *writers_lock(self.name))
        epoch = await connection.fetchval(_ACQUIRE.format(clock=self._clock), self.name, holder_name(), LEASE)
        self.fence = Fence(self.name, epoch)
        return True

    async def _lock(self, connection: asyncpg.Connection) -> bool:
        return bool(
            await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *advisory_lock(self.name))
        )

    def _clock_is_right(self, database_time: float) -> bool:
        ahead, was_right = time.time() - database_time, self._clock_right
        self._clock_right = abs(ahead) <= self._settings.max_clock_skew
        if was_right and not self._clock_right:
            _log.error("clock_wrong", job=self.name, seconds_ahead_of_database=round(ahead, 1), leads=False)
        return self._clock_right

    async def _connect(self) -> asyncpg.Connection:
        options = connection_options(self._settings, statement_seconds=_HEARTBEAT_TIMEOUT)
        options["timeout"] = _HEARTBEAT_TIMEOUT
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
        try:
            while await self._renew():
                try:
                    async with asyncio.timeout(_HEARTBEAT):
                        await self.lost.wait()
                        return
                except TimeoutError:
                    continue
            _log.warning(
                "leadership_lost", job=self.name, error="another server leads, or the clock is wrong"
            )
        except DATABASE_ERRORS as error:
            _log.warning("leadership_lost", job=self.name, error=type(error).__name__)
        finally:
            self.lost.set()

    async def _renew(self) -> bool:
        """Renew the lease; return False if this process may not lead any more."""
        assert self._connection is not None
        query, values = _RENEW.format(clock=self._clock), (self.name, self.fence.epoch, LEASE)
        now = await self._connection.fetchval(query, *values, timeout=_HEARTBEAT_TIMEOUT)
        return now is not None and self._clock_is_right(now)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                if self.fence.epoch:
                    release = _RELEASE.format(clock=self._clock)
                    await connection.execute(release, self.name, self.fence.epoch, timeout=2)
                await connection.close(timeout=2)
            except DATABASE_ERRORS:
                connection.terminate()


def holder_name() -> str:
    """Return the name of this process: its host and process id."""
    return f"{socket.gethostname()}/{os.getpid()}"


class LeaderState(NamedTuple):
    """Who leads a job, by the database's clock."""

    holder: str
    epoch: int
    expired_for: float
    """Seconds since the last renewal lost its effect; negative while the leader leads."""
    gap_since: float | None
    """When the last leader was seen before a gap of more than a day; None if there was none."""


async def leader_state(database: Database, job: str) -> LeaderState | None:
    """Return the state of a job; None if it never had a leader."""
    row = await database.fetchrow(_STATE.format(clock=database.clock), job)
    return LeaderState(*row) if row is not None else None


async def lead(candidate: Callable[[], Leadership], work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` while this process leads, cancel it when leadership is lost, and campaign again; never return."""
    while True:
        async with candidate() as leadership:
            with leadership.fence.applied():
                working = asyncio.ensure_future(work())
            losing = asyncio.ensure_future(leadership.lost.wait())
            try:
                await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
                lost = leadership.lost.is_set()
            finally:
                losing.cancel()
                await _cancel(working)
            if not lost and not working.cancelled() and (error := working.exception()) is not None:
                raise error


async def _cancel(work: "asyncio.Future[None]") -> None:
    """Cancel work until it ends: a cancellation may be lost on the way."""
    while not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=_CANCEL_INTERVAL)
