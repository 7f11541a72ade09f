"""What queues have at a moment of a simulation, and what their limits and guarantees allow then.

GPUs that are kept for a unit until the units evicted for it have left count as its queue's for all other units.
"""

from collections import Counter
from collections.abc import Sequence

from gpufleet.placement import CandidateNode
from gpufleet.simulation.fleet import Fleet, Nomination, Running
from gpufleet.simulation.queues import Held, Queues
from gpufleet.simulation.unit import Unit


class QueueUse:
    """Counts the GPUs of each queue; without `queues` it limits nothing."""

    def __init__(
        self, queues: Queues | None, fleet: Fleet, nodes: Sequence[CandidateNode], begin: float
    ) -> None:
        self.queues = queues.copy() if queues is not None else None
        self.used: dict[str, Counter[str]] = {}
        """Thousandths of GPUs that each queue has, by model."""
        self._fleet = fleet
        self._models = {node.name: node.gpus[0].model if node.gpus else "" for node in nodes}
        self._counted_to = begin

    def advance(self, now: float) -> None:
        """Count what queues have used until now."""
        if self.queues is not None and now > self._counted_to:
            self.queues.advance(self.used, now - self._counted_to)
        self._counted_to = now

    def count(self, running: Running, sign: int, now: float) -> None:
        """Count the GPUs that a unit gets (1) or leaves (-1)."""
        if self.queues is not None:
            self.advance(now)
            used = self.used.setdefault(running.unit.queue, Counter())
            for model, milli in self._gpus(running).items():
                used[model] += sign * milli

    def change(self, later: Queues | None, now: float) -> None:
        """Go on with other queues, and the use that was counted so far."""
        self.advance(now)
        use = self.queues.use() if self.queues is not None else {}
        self.queues = later.copy(use) if later is not None else None
        self.used = {}
        for running in (*self._fleet.running.values(), *self._fleet.terminating.values()):
            self.used.setdefault(running.unit.queue, Counter()).update(self._gpus(running))

    def limited(self, unit: Unit) -> bool:
        """Return whether the queue of a unit may not have its GPUs, too."""
        return self.queues is not None and self.queues.limited(
            unit.queue, self._used_or_kept(unit), unit.gpu_milli
        )

    def reclaimable(self, unit: Unit, now: float) -> list[int]:
        """Return the units on borrowed GPUs that a unit may evict; none outside the guarantee of its queue."""
        used = self._used_or_kept(unit)
        if self.queues is None or not self.queues.entitled(unit.queue, used, unit.gpu_milli):
            return []
        fleet = self._fleet
        held = [
            *(
                self._held(each, each.started)
                for each in (*fleet.running.values(), *fleet.terminating.values())
            ),
            *(self._held(each, now) for each in fleet.nominated.values()),
        ]
        found = map(int, self.queues.reclaimable(unit.queue, used, unit.gpu_milli, held))
        return [number for number in found if number not in fleet.nominated]

    def _used_or_kept(self, unit: Unit) -> dict[str, Counter[str]]:
        """Return what queues have, with what is kept for other units that have evicted some."""
        if not self._fleet.nominated:
            return self.used
        found = {queue: Counter(models) for queue, models in self.used.items()}
        for number, each in self._fleet.nominated.items():
            if number != unit.number:
                found.setdefault(each.unit.queue, Counter()).update(self._gpus(each))
        return found

    def _held(self, holder: Running | Nomination, since: float) -> Held:
        return Held(str(holder.unit.number), holder.unit.queue, self._gpus(holder), since)

    def _gpus(self, holder: Running | Nomination) -> Counter[str]:
        found: Counter[str] = Counter()
        for fits in holder.places:
            found[self._models[fits.node]] += holder.unit.request.gpu_milli
        return found
