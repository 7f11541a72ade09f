"""Run the queue forward: units end and arrive, and the core decides after each event.

The caller says how long units run; evicted units wait again and run from their beginning.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush

from gpufleet.queueing.core import Core, Eviction, Start
from gpufleet.queueing.units import NEVER, Holder, Unit

RunTime = Callable[[Unit], float]
Observer = Callable[[float, list[Start | Eviction]], None]


class Forward:
    """One run on a core of its own."""

    def __init__(
        self,
        core: Core,
        now: float,
        ends: Iterable[tuple[float, str]],
        run_time: RunTime,
        *,
        next_arrival: Callable[[float], tuple[float, Unit] | None] = lambda now: None,
        requeue: Callable[[Unit, float], Unit] | None = None,
    ) -> None:
        """`ends` are those of the holders, with their keys. `next_arrival` returns the first unit after a time."""
        self.core = core
        self.now = now
        self.starts: dict[str, float] = {}
        """The first start of each unit."""
        self.events = 0
        self.evictions: list[tuple[float, str, str]] = []
        """Time, victim and the unit for which it left."""
        self._run_time = run_time
        self._ends = [(at, number, key) for number, (at, key) in enumerate(ends)]
        """When holders end; those that were scheduled first go first at the same moment."""
        self._end_of = {key: at for at, _, key in self._ends}
        """When each holder ends; other entries of the heap are of earlier runs of the same unit."""
        self._scheduled = len(self._ends)
        heapify(self._ends)
        self._next_arrival = next_arrival
        self._requeue = requeue or _as_new

    def run(
        self,
        until: float = NEVER,
        done: Callable[[], bool] = lambda: False,
        most_events: float = NEVER,
        observe: Observer = lambda now, decisions: None,
    ) -> float:
        """Handle events until `until`, or until it is `done`; return the time reached."""
        self._decide(observe)
        arrival = self._next_arrival(self.now)
        while not done() and self.events < most_events:
            then = min(self._ends[0][0] if self._ends else NEVER, arrival[0] if arrival else NEVER)
            if then > until:
                self.now = until
                break
            if then == NEVER:
                break
            self.now, self.events = then, self.events + 1
            self.core.advance(then)
            while self._ends and self._ends[0][0] <= then:
                self._end(heappop(self._ends))
            while arrival is not None and arrival[0] <= then:
                self.core.put(arrival[1])
                arrival = self._next_arrival(then)
            self._decide(observe)
        return self.now

    def _end(self, end: tuple[float, int, str]) -> None:
        ended_at, _, key = end
        if self._end_of.get(key) != ended_at:
            return
        del self._end_of[key]
        holder = self.core.release(key)
        if holder is not None and holder.leaving and holder.unit is not None:
            self.core.put(self._requeue(holder.unit, ended_at))

    def _decide(self, observe: Observer) -> None:
        while True:
            decisions = self.core.decide(self.now)
            observe(self.now, decisions)
            again = False
            for decision in decisions:
                if isinstance(decision, Start):
                    self._started(decision)
                else:
                    again = self._evicted(decision) or again
            if not again:
                return

    def _started(self, decision: Start) -> None:
        unit, now = decision.unit, self.now
        self.starts.setdefault(unit.key, now)
        self._schedule(now + self._run_time(unit), unit.key)

    def _schedule(self, at: float, key: str) -> None:
        self._end_of[key] = at
        self._scheduled += 1
        heappush(self._ends, (at, self._scheduled, key))

    def _evicted(self, decision: Eviction) -> bool:
        """Let the victims wait again, at once or when they have left; return whether units were added."""
        added = False
        grace = self.core.rules.grace
        for victim in decision.victims:
            self.evictions.append((self.now, victim.key, decision.unit.key))
            if grace:
                self._schedule(min(self._end_of.get(victim.key, NEVER), self.now + grace), victim.key)
                continue
            self._end_of.pop(victim.key, None)
            if victim.unit is not None:
                self.core.put(self._requeue(victim.unit, self.now))
                added = True
        return added


def _as_new(unit: Unit, now: float) -> Unit:
    """Return an evicted unit as one that has just arrived."""
    priority, *_, name = unit.order
    return replace(unit, order=(priority, now, name))


def holder_end(holder: Holder, run_time: float) -> tuple[float, str]:
    """Return when a holder ends that runs so long in all."""
    return holder.since + run_time, holder.key
