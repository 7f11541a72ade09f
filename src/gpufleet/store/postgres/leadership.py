"""One of several servers does a job, and knows when it no longer may.

Servers on one database are replicas; what only one of them should do (aggregating, pruning)
is done by whoever holds a session's advisory lock. PostgreSQL gives the lock back when the
session ends, however it ends. The holder finds out in two ways: its socket closes, or a
heartbeat fails; `lost` is set then. The server's side gives a silent client up after
`tcp_user_timeout`, which is longer than our heartbeat: the old leader stops before
another can start.
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
from gpufleet.store.postgres.errors import BROKEN
from gpufleet.store.postgres.migrate import LOCK

_HEARTBEAT, _HEARTBEAT_TIMEOUT, _ASK_EVERY = 3.0, 5.0, 2.0
_SERVER_GIVES_UP_MS = 20_000
_log = get_logger("store")


class Leadership:
    """`async with store.leadership("aggregator") as lead:` waits until the job is ours."""

    def __init__(
        self, dsn: str, settings: StoreSettings, name: str, *, ask_every: float = _ASK_EVERY
    ) -> None:
        self.name = name
        self.lost = asyncio.Event()
        """Set once the job may be somebody else's."""
        self._dsn = dsn
        self._settings = settings
        self._ask_every = ask_every
        self._connection: asyncpg.Connection | None = None
        self._heart: asyncio.Task[None] | None = None

    @property
    def held(self) -> bool:
        """Whether the job is ours."""
        return self._connection is not None and not self.lost.is_set()

    async def __aenter__(self) -> Self:
        try:
            while not await self._try():  # noqa: ASYNC110 - another machine holds it; there is no event here
                await asyncio.sleep(self._ask_every * random.uniform(0.5, 1.5))  # noqa: S311
        except BaseException:
            # one who stops waiting must not leave the connection behind
            await self._hang_up()
            raise
        self._heart = asyncio.create_task(self._beat(), name=f"leadership {self.name}")
        _log.info("leadership_taken", job=self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lost.set()
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        await self._hang_up()

    async def _try(self) -> bool:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return bool(
                await self._connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *lock_of(self.name))
            )
        except BROKEN as error:
            _log.warning("leadership_not_reachable", job=self.name, reason=type(error).__name__)
            await self._hang_up()
            return False
        except BaseException:
            await self._hang_up()
            raise

    async def _connect(self) -> asyncpg.Connection:
        options = connection_options(self._settings, statement_seconds=_HEARTBEAT_TIMEOUT)
        options["server_settings"] |= {
            "tcp_user_timeout": str(_SERVER_GIVES_UP_MS),
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        connection = await asyncpg.connect(self._dsn, **options)
        connection.add_termination_listener(lambda _: self.lost.set() if self._heart else None)
        return connection

    async def _beat(self) -> None:
        assert self._connection is not None
        try:
            while not self.lost.is_set():
                await self._connection.execute("SELECT 1", timeout=_HEARTBEAT_TIMEOUT)
                try:
                    async with asyncio.timeout(_HEARTBEAT):
                        await self.lost.wait()
                except TimeoutError:
                    continue
        except BROKEN as error:
            _log.warning("leadership_lost", job=self.name, reason=type(error).__name__)
        finally:
            self.lost.set()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except BROKEN:
                connection.terminate()


def lock_of(name: str) -> tuple[int, int]:
    """The advisory lock of a job: never that of the migrations."""
    digest = hashlib.sha256(name.encode()).digest()
    return LOCK[0], 1 + int.from_bytes(digest[:4], "big") % (2**31 - 1)


async def lead(take: Callable[[], Leadership], work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` whenever the job is ours, stop it when it is lost, and stand for it again. Never returns."""
    while True:
        async with take() as leadership:
            doing = asyncio.ensure_future(work())
            losing = asyncio.ensure_future(leadership.lost.wait())
            try:
                await asyncio.wait({doing, losing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                losing.cancel()
                doing.cancel()
                done = await asyncio.gather(doing, return_exceptions=True)
            if leadership.held and isinstance(done[0], Exception):
                raise done[0]
