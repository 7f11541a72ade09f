"""Refuse the writes of a server that led once, whatever it believes.

Each time a server begins to lead a job, the epoch of the job grows by one. The work of a leader runs under
a `Fence`: every transaction that `Database` opens in it locks the row of its epoch first, and fails with
LeadershipLost if there is a newer one. A new epoch waits for the transactions that hold that lock, so none
commits after it began. The fence is a context variable, so the tasks that the work starts inherit it, and a
write of the leader can't forget it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import asyncpg

from gpufleet.errors import LeadershipLost
from gpufleet.store.postgres.locks import advisory_lock

_fence: ContextVar["Fence | None"] = ContextVar("fence", default=None)
# The advisory lock excludes nothing: it shows a new leader which sessions to end if they do not (see `leadership`).
_CHECK = """
SELECT pg_advisory_xact_lock_shared($3, $4) FROM leader WHERE job = $1 AND epoch = $2 FOR KEY SHARE
"""


@dataclass(frozen=True)
class Fence:
    """The epoch in which this process leads a job."""

    job: str
    epoch: int
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as another process may lead the job."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Fence the transactions of this block and of the tasks that it starts."""
        token = _fence.set(self)
        try:
            yield
        finally:
            _fence.reset(token)

    async def check(self, connection: asyncpg.Connection) -> None:
        """Raise LeadershipLost if another leader has begun, else keep new ones waiting until the transaction ends."""
        if await connection.fetchrow(_CHECK, self.job, self.epoch, *writers_lock(self.job)) is None:
            self.lost.set()
            raise LeadershipLost(
                f"another server has led {self.job!r} since (this one in epoch {self.epoch}), so this write was refused"
            )


def current_fence() -> Fence | None:
    """Return the fence of the running task; None outside the work of a leader."""
    return _fence.get()


def writers_lock(job: str) -> tuple[int, int]:
    """Return the advisory lock key that every transaction of a leader's work shares."""
    return advisory_lock(f"writers of {job}")
