"""Collect the planner's new decisions until the scheduler acts on them."""

from collections.abc import Sequence

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler.planning.plan import Decided, Placed, Waiting
from gpufleet.scheduler.planning.queue import Entry

EVICT_AGAIN_S = 5.0
"""Seconds after which pods are evicted again that are not terminating: the eviction failed or was refused."""

TELL_S = 10.0
"""Seconds after which a change of numbers in a reason is worth an event and a status update."""


class Decisions:
    """The decisions that nothing was done about yet."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.pending: list[Decided] = []

    def take(self) -> list[Decided]:
        """Remove and return all decisions."""
        taken, self.pending = self.pending, []
        return taken

    def place(self, entry: Entry, pods: Sequence[Pod], placed: Placed) -> None:
        """Record that a unit starts."""
        entry.decision = placed
        self.pending.append(Decided(entry.name, tuple(pods), placed, gang=entry.gang))

    def wait(self, entry: Entry, pods: Sequence[Pod], why: Waiting, victims: Sequence[Pod] = ()) -> Waiting:
        """Record that a unit waits, if that is new or worth a report, and which pods leave for it."""
        now, before = self._timing.monotonic(), entry.decision
        if victims and now - entry.evicted_at < EVICT_AGAIN_S:
            victims = ()
        elif victims:
            entry.evicted_at = now
        new = not isinstance(before, Waiting) or (before.reserved, before.preempting) != (
            why.reserved,
            why.preempting,
        )
        if victims or new or (before != why and now - entry.told_at >= TELL_S):
            entry.told_at = now
            self.pending.append(Decided(entry.name, tuple(pods), why, tuple(victims), entry.gang))
        entry.decision = why
        return why
