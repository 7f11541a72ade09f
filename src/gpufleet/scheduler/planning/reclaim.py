"""Which running pods may be evicted for a unit.

Without GpuQueues: pods of lower priority. With them: pods of lower priority in the same queue, and for a unit inside
the guarantee of its queue first the pods on GPUs that others have borrowed, the youngest first. Work inside its own
guarantee is never evicted for another queue.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.kubernetes.objects import Pod
from gpufleet.model.gpu_models import canonical_model
from gpufleet.placement import Request
from gpufleet.queueing.shares.quota import Entitlement
from gpufleet.scheduler.planning.queue import priority_of
from gpufleet.scheduler.queues.gpu_queues import GpuQueues, Standing
from gpufleet.scheduler.state import Ledger


@dataclass(frozen=True)
class Targets:
    """Pods that may be evicted: `rank` returns None for all others, and the lowest value for those to evict first."""

    key: object
    """Equal for searches among the same pods."""
    rank: Callable[[Pod], int | None]
    nodes: Callable[[frozenset[str]], frozenset[str]] = lambda nodes: nodes
    """Returns those of some nodes that have GPUs to which the unit is entitled."""
    reclaims: str = ""
    """The GpuQueue whose guarantee is reclaimed."""
    grace: float = float("inf")
    """The longest time that they have to terminate."""


class EvictablePods:
    """Finds out which pods may be evicted for a unit."""

    def __init__(self, ledger: Ledger, queues: GpuQueues, grace: float) -> None:
        self._ledger = ledger
        self._queues = queues
        self._grace = grace

    def for_unit(
        self, pods: Sequence[Pod], requests: Sequence[Request], *, reclaims: bool = True
    ) -> Iterator[Targets]:
        """Yield the groups of pods that may be evicted for a unit, in the order in which to try them.

        A unit behind one that waits for the same guarantee may not reclaim (`reclaims`).
        """
        entitlement = self._queues.entitlement(pods, requests) if reclaims else None
        if entitlement is not None:
            yield self._borrowed(pods[0].metadata.namespace, entitlement)
        yield self.by_priority(pods)

    def by_priority(self, pods: Sequence[Pod]) -> Targets:
        """Return the pods of lower priority than all of these, in the same queue if there are queues."""
        priority, queues = min(map(priority_of, pods)), self._queues
        queue = queues.queue_of(pods[0].metadata.namespace)

        def rank(pod: Pod) -> int | None:
            its = priority_of(pod)
            return its if its < priority and queues.queue_of(pod.metadata.namespace) == queue else None

        return Targets((priority, queue), rank)

    def _borrowed(self, namespace: str, entitlement: Entitlement) -> Targets:
        queues = self._queues
        queue = queues.queue_of(namespace)
        assert queue is not None
        standings: dict[str, dict[str, Standing]] = {}

        def rank(pod: Pod) -> int | None:
            other = queues.queue_of(pod.metadata.namespace)
            if other is None:
                return None
            department = queues.quotas.department(other)
            if department not in standings:
                standings[department] = queues.standings(department)
            found = standings[department].get(pod.metadata.uid)
            if found is None or not queues.quotas.may_evict(
                queue, entitlement.level, found.queue, found.level
            ):
                return None
            return -int(found.started)

        return Targets(
            ("reclaim", queue, entitlement),
            rank,
            lambda nodes: self._with_models(nodes, entitlement.models),
            queue,
            self._grace,
        )

    def _with_models(self, nodes: frozenset[str], models: frozenset[str] | None) -> frozenset[str]:
        """Return the nodes whose GPUs are all of these models."""
        if models is None:
            return nodes
        known = self._ledger.cluster.nodes
        return frozenset(
            name
            for name in nodes
            if name in known and all(canonical_model(gpu.model) in models for gpu in known[name].gpus)
        )
