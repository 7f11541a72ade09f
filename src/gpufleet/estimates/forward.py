"""Simulate a queue forward once, with sampled ends, on the free GPUs of each node.

It follows the order and the rules of the planner (priority, then age; the first unit that does not fit gets a
reservation; a unit with a declared run time is backfilled) but counts GPUs per node instead of choosing them. So
one run over a large fleet takes milliseconds. Units that may still arrive are drawn from those of the last time.
"""

import random
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from gpufleet.estimates.fleet_state import FleetState, WaitingUnit

WHOLE = 1000
_MOST_EVENTS = 5_000
_MOST_PROBING = 2_000
"""Events after which probes alone do not keep a run going."""
_PROBE_ALWAYS, _PROBE_EVERY = 50, 25
"""Probes are tried after each of the first events, then only now and then."""
_CANDIDATES = 24
"""Nodes that are compared for a reservation."""
_TRIES = 16


@dataclass(frozen=True)
class Forward:
    """When units start, by key, and when a unit of a probe's size would have started behind all others."""

    starts: dict[str, float]
    probes: dict[str, float]
    until: float


Entry = tuple[int, float, int, WaitingUnit, float]
"""Negative priority, arrival, number, unit and run time."""


def forward(
    state: FleetState,
    ends: Sequence[float],
    runtimes: Sequence[float],
    arriving_runtimes: Sequence[float],
    probes: Sequence[WaitingUnit],
    rng: random.Random,
    horizon: float,
) -> Forward:
    """Run once: `ends` of running units, `runtimes` of waiting ones and of those that arrive later."""
    return _Run(state, ends, runtimes, arriving_runtimes, probes, rng, horizon).run()


class _Run:
    def __init__(
        self,
        state: FleetState,
        ends: Sequence[float],
        runtimes: Sequence[float],
        arriving_runtimes: Sequence[float],
        probes: Sequence[WaitingUnit],
        rng: random.Random,
        horizon: float,
    ) -> None:
        self._state = state
        self._rng = rng
        self._free = list(state.free)
        self._pools: dict[str, list[dict[int, None]]] = {}
        for node, model in enumerate(state.models):
            self._pools.setdefault(model, [])
            self._bucket(model, self._free[node] // WHOLE)[node] = None
        self._events: list[tuple[float, int, tuple[tuple[int, int], ...]]] = [
            (end, at, state.running[at].places) for at, end in enumerate(ends) if end <= horizon
        ]
        heapify(self._events)
        self._holders: dict[int, list[tuple[float, int]]] | None = None
        self._ends = ends
        self._waiting: list[Entry] = [
            (-unit.priority, -1.0, at, unit, runtimes[at]) for at, unit in enumerate(state.waiting)
        ]
        self._arriving_runtimes = arriving_runtimes
        self._next = len(state.running) + len(self._waiting)
        self._starts: dict[str, float] = {}
        self._open = {unit.key for unit in state.waiting if not unit.waits_for}
        self._probes = {probe.key: probe for probe in probes}
        self._probed: dict[str, float] = {}
        self._reserved: dict[int, None] = {}
        self._walks = 0
        self._reservation: tuple[int, dict[int, None]] | None = None
        self._horizon = horizon

    def run(self) -> Forward:
        now, handled = 0.0, 0
        rate = self._state.arrivals_per_s if self._state.arrivals else 0.0
        arrival = self._rng.expovariate(rate) if rate else float("inf")
        self._walk(0.0)
        while handled < _MOST_EVENTS and (self._open or (self._probes and handled < _MOST_PROBING)):
            end = self._events[0][0] if self._events else float("inf")
            now = min(end, arrival)
            if now > self._horizon:
                break
            handled += 1
            if arrival <= end:
                self._arrive(now)
                arrival = now + self._rng.expovariate(rate)
            else:
                while self._events and self._events[0][0] <= now:
                    for node, milli in heappop(self._events)[2]:
                        self._change(node, milli)
            self._walk(now)
        return Forward(self._starts, self._probed, min(now, self._horizon))

    def _arrive(self, now: float) -> None:
        at = self._rng.randrange(len(self._state.arrivals))
        unit = self._state.arrivals[at]
        self._next += 1
        insort(
            self._waiting, (-unit.priority, now, self._next, unit, self._arriving_runtimes[at]), key=_order
        )

    def _walk(self, now: float) -> None:
        """Start what fits, in order."""
        refused: dict[frozenset[str], int] = {}
        started: list[int] = []
        self._reserved.clear()
        blocked = False
        for at, (_, _, number, unit, runtime) in enumerate(self._waiting):
            if unit.waits_for:
                continue
            least = refused.get(unit.models)
            need = unit.milli * unit.members
            if least is not None and need >= least and unit.milli >= min(least, WHOLE):
                continue
            places = self._place(unit)
            if places is None:
                refused[unit.models] = min(need, least or need)
                if not self._state.backfill:
                    break
                if not blocked and self._state.reservations:
                    self._reserve(number, unit, now)
                    blocked = True
                if len(refused) == 1 and unit.models == frozenset() and need <= 100:
                    break
                continue
            started.append(at)
            heappush(self._events, (now + runtime, self._next + number, places))
            if unit.key in self._open:
                self._open.discard(unit.key)
                self._starts[unit.key] = now
        for at in reversed(started):
            del self._waiting[at]
        self._walks += 1
        if self._walks < _PROBE_ALWAYS or self._walks % _PROBE_EVERY == 0:
            for key in [key for key, probe in self._probes.items() if self._would_fit(probe)]:
                del self._probes[key]
                self._probed[key] = now

    def _place(self, unit: WaitingUnit) -> tuple[tuple[int, int], ...] | None:
        """Take GPUs for all members, each on the fullest node that fits; None and nothing if one does not fit."""
        taken: list[tuple[int, int]] = []
        for _ in range(unit.members):
            node = self._find(unit)
            if node is None:
                for back, milli in taken:
                    self._change(back, milli)
                return None
            self._change(node, -unit.milli)
            taken.append((node, unit.milli))
        return tuple(taken)

    def _would_fit(self, probe: WaitingUnit) -> bool:
        places = self._place(probe)
        if places is None:
            return False
        for node, milli in places:
            self._change(node, milli)
        return True

    def _find(self, unit: WaitingUnit) -> int | None:
        need = unit.milli
        for model, buckets in self._pools.items():
            if unit.models and model not in unit.models:
                continue
            for bucket in buckets[need // WHOLE :]:
                for tries, node in enumerate(bucket):
                    if self._free[node] >= need and node not in self._reserved:
                        return node
                    if tries >= _TRIES and need >= WHOLE and not self._reserved:
                        break
        return None

    def _reserve(self, number: int, unit: WaitingUnit, now: float) -> None:
        """Keep the nodes that are expected to be free first for a unit, until it starts."""
        if self._reservation is not None and self._reservation[0] == number:
            self._reserved.update(self._reservation[1])
            return
        found: list[tuple[float, int]] = []
        for model, buckets in self._pools.items():
            if unit.models and model not in unit.models:
                continue
            for bucket in reversed(buckets):
                for node in bucket:
                    if self._state.capacity[node] >= unit.milli:
                        found.append((self._drained(node, unit.milli, now), node))
                    if len(found) >= _CANDIDATES * unit.members:
                        break
        found.sort()
        nodes = dict.fromkeys(node for _, node in found[: unit.members])
        self._reservation = number, nodes
        self._reserved.update(nodes)

    def _drained(self, node: int, milli: int, now: float) -> float:
        """Return when a node is expected to have so much free, from the run times of its holders so far."""
        if self._holders is None:
            self._holders = {}
            for unit in self._state.running:
                expected = (
                    max(unit.elapsed, 60.0) if unit.job.declared is None else unit.job.declared - unit.elapsed
                )
                for place, held in unit.places:
                    self._holders.setdefault(place, []).append((expected, held))
            for holders in self._holders.values():
                holders.sort()
        free = self._free[node]
        for expected, held in self._holders.get(node, ()):
            if free >= milli:
                return 0.0
            free += held
            if free >= milli:
                return expected
        return float("inf") if free < milli else 0.0

    def _change(self, node: int, milli: int) -> None:
        before = self._free[node]
        self._free[node] = after = before + milli
        if before // WHOLE != after // WHOLE:
            model = self._state.models[node]
            del self._pools[model][before // WHOLE][node]
            self._bucket(model, after // WHOLE)[node] = None

    def _bucket(self, model: str, whole: int) -> dict[int, None]:
        buckets = self._pools[model]
        while len(buckets) <= whole:
            buckets.append({})
        return buckets[whole]


def _order(entry: Entry) -> tuple[int, float, int]:
    return entry[:3]
