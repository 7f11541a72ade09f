"""Any order of leading, freezing, expiring, crashing and writing: writes of one epoch at a time are stored.

Servers write into a log, at once or in a transaction that stays open while they are frozen. What is stored must
be in the order of the epochs, and each row must be of the newest epoch at its commit.
"""

import asyncio
import itertools
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gpufleet.errors import LeadershipLost
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.errors import DATABASE_ERRORS
from gpufleet.store.postgres.fence import Fence
from gpufleet.store.postgres.leadership import LEASE, Leadership

SERVERS = 3
_jobs = itertools.count()
_WRITE = "INSERT INTO written (job, epoch, newest) SELECT $1, $2, epoch FROM leader WHERE job = $1"


class Server:
    """A server: what it believes, and the transaction that it has open."""

    def __init__(self) -> None:
        self.leadership: Leadership | None = None
        self.fence: Fence | None = None
        self.frozen = False
        self.open: asyncpg.Connection | None = None


class Leases(RuleBasedStateMachine):
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.job = f"job {next(_jobs)}"
        self.settings = StoreSettings(url=self.url, max_clock_skew=1e6)
        self.servers = [Server() for _ in range(SERVERS)]
        self.passed = 0.0
        self.loop = asyncio.new_event_loop()
        self.observer = self.run(self.connect())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url, server_settings={"search_path": "gpufleet"})

    def awake(self, number: int) -> Server | None:
        server = self.servers[number]
        return None if server.frozen else server

    @rule(number=st.integers(0, SERVERS - 1))
    def try_to_lead(self, number: int) -> None:
        if (server := self.awake(number)) is None or server.leadership is not None:
            return
        clock = f"(clock_timestamp() + make_interval(secs => {self.passed}))"
        candidate = Leadership(self.url, self.settings, self.job, clock=clock)
        if self.run(candidate._try_to_lead()):
            server.leadership, server.fence = candidate, candidate.fence
        else:
            self.run(candidate._disconnect())

    @rule(number=st.integers(0, SERVERS - 1))
    def renew(self, number: int) -> None:
        if (server := self.awake(number)) is None or server.leadership is None:
            return
        server.leadership._clock = f"(clock_timestamp() + make_interval(secs => {self.passed}))"
        try:
            renewed = self.run(server.leadership._renew())
        except DATABASE_ERRORS:
            renewed = False
        if not renewed:  # it still believes in its old epoch and may write
            self.run(server.leadership._disconnect())
            server.leadership = None

    @rule(number=st.integers(0, SERVERS - 1))
    def freeze_or_resume(self, number: int) -> None:
        self.servers[number].frozen = not self.servers[number].frozen

    @rule()
    def expire(self) -> None:
        self.passed += LEASE + 1

    @rule(number=st.integers(0, SERVERS - 1))
    def crash(self, number: int) -> None:
        server = self.servers[number]
        session = server.leadership._connection if server.leadership is not None else None
        for connection in (server.open, session):
            if connection is not None:
                connection.terminate()
        self.servers[number] = Server()
        self.run(asyncio.sleep(0.01))

    @rule(number=st.integers(0, SERVERS - 1))
    def begin_to_write(self, number: int) -> None:
        server = self.awake(number)
        if server is None or server.fence is None or server.open is not None:
            return
        connection = self.run(self.connect())
        self.run(connection.execute("BEGIN"))
        try:
            self.run(server.fence.check(connection))
        except LeadershipLost:
            connection.terminate()
            return
        self.run(connection.execute(_WRITE, self.job, server.fence.epoch))
        server.open = connection

    @rule(number=st.integers(0, SERVERS - 1))
    def finish_writing(self, number: int) -> None:
        server = self.awake(number)
        if server is None or server.open is None or server.fence is None:
            return
        connection, server.open = server.open, None
        try:
            newest = self.run(self.observer.fetchval("SELECT epoch FROM leader WHERE job = $1", self.job))
            self.run(connection.execute("COMMIT"))
            assert newest == server.fence.epoch
        except DATABASE_ERRORS:
            pass  # the next leader ended it
        connection.terminate()

    @invariant()
    def one_epoch_writes(self) -> None:
        rows = self.run(
            self.observer.fetch("SELECT epoch, newest FROM written WHERE job = $1 ORDER BY ctid", self.job)
        )
        assert all(row["epoch"] == row["newest"] for row in rows)
        assert [row["epoch"] for row in rows] == sorted(row["epoch"] for row in rows)

    def teardown(self) -> None:
        for number in range(SERVERS):
            self.crash(number)
        self.run(self.observer.close())
        self.loop.close()


@pytest.mark.long
def test_writes_of_one_epoch_at_a_time_are_stored(postgres_url: str) -> None:
    async def prepare() -> None:
        connection = await asyncpg.connect(postgres_url, server_settings={"search_path": "gpufleet"})
        await connection.execute("CREATE TABLE written (job text, epoch bigint, newest bigint)")
        await connection.close()

    asyncio.run(prepare())
    Leases.url = postgres_url
    run_state_machine_as_test(
        Leases,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
