"""The order between GpuQueues in the next hours, for estimates of start times.

It is computed with the scheduler's own rules from the specs and statuses of GpuQueues. A status has the queue's part
of the recent use, not its amount, so all queues together are taken to have used what they have now for as long as use
counts. Guarantees count by queue: a queue that has more than its guarantee has borrowed GPUs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from gpufleet.estimates.fleet_state import Rank, Used
from gpufleet.kubernetes.crds.gpu_queue import DEFAULT_QUEUE, GpuQueue
from gpufleet.model.gpu_models import canonical_model
from gpufleet.scheduler.queues.assignment import Assignment, quota_of
from gpufleet.scheduler.shares.decay import decay
from gpufleet.scheduler.shares.order import WaitingUnit, ranks
from gpufleet.scheduler.shares.quota import GPU, Quotas

HALF_LIFE_S = 7 * 86400.0
"""The default of `scheduler.share_half_life`; a status does not tell it."""


class ExpectedOrder:
    """Ranks, limits and guarantees while a queue is simulated forward."""

    def __init__(self, quotas: Quotas, use: Mapping[str, float], stopped: frozenset[str]) -> None:
        """`use` is the decayed use in GPU-seconds; `stopped` queues have used up a hard budget."""
        self._quotas = quotas
        self._use = dict(use)
        self._stopped = stopped

    def copy(self) -> "ExpectedOrder":
        """Return an independent copy for one run."""
        return ExpectedOrder(self._quotas, self._use, self._stopped)

    def advance(self, used: Used, seconds: float) -> None:
        """Count the use of the next `seconds`."""
        left = decay(seconds, HALF_LIFE_S)
        for queue in {*self._use, *used}:
            has = sum(used.get(queue, {}).values()) / GPU
            self._use[queue] = self._use.get(queue, 0.0) * left + has * seconds

    def ranks(self, used: Used, waiting: Mapping[str, Sequence[tuple[str, int]]]) -> Mapping[str, Rank]:
        """Return the rank of each waiting unit."""
        units = {queue: [WaitingUnit(*unit) for unit in mine] for queue, mine in waiting.items()}
        found: Mapping[str, Rank] = ranks(self._quotas, _canonical(used), self._use, units)
        return found

    def limited(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether a queue may not have so many more GPUs."""
        if not self._stopped.isdisjoint(self._quotas.chain(queue)):
            return True
        return self._quotas.limit_reached(queue, used, milli) is not None

    def entitled(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether so many more GPUs are inside the guarantee of a queue."""
        department = self._quotas.department(queue)
        if not (self._quotas.get(queue).guaranteed or self._quotas.get(department).guaranteed):
            return False
        return self._quotas.entitlement(queue, _canonical(used), milli) is not None

    def borrows(self, queue: str, used: Used) -> bool:
        """Return whether a queue has more GPUs than its guarantee."""
        return sum(used.get(queue, {}).values()) > self._quotas.get(queue).guaranteed


def expected_order(queues: Iterable[GpuQueue]) -> tuple[ExpectedOrder | None, dict[str, str]]:
    """Return the order and the queue of each namespace; None without GpuQueues. Others are in the default queue."""
    objects = {queue.metadata.name: queue for queue in queues}
    if not objects:
        return None, {}
    invalid = {
        name: "invalid"
        for name, queue in objects.items()
        if any(each.type == "Valid" and each.status == "False" for each in queue.status.conditions)
    }
    used_up = {name for name, queue in objects.items() if _used_up(queue)}
    soft = {name for name in used_up if not _is_hard(objects[name])}
    quotas = Quotas(
        quota_of(queue, Assignment(invalid=invalid), last=bool(soft & {name, queue.spec.parent}))
        for name, queue in objects.items()
    )
    total = sum(queue.status.used for queue in objects.values()) * HALF_LIFE_S / math.log(2)
    use = {name: queue.status.share * total for name, queue in objects.items()}
    namespaces = {each: name for name, queue in objects.items() for each in queue.status.namespaces}
    return ExpectedOrder(quotas, use, frozenset(used_up - soft)), namespaces


def queue_of(namespace: str, namespaces: Mapping[str, str]) -> str:
    """Return the queue of a namespace."""
    return namespaces.get(namespace, DEFAULT_QUEUE)


def _used_up(queue: GpuQueue) -> bool:
    return queue.status.budget is not None and queue.status.budget.percent >= 100


def _is_hard(queue: GpuQueue) -> bool:
    return queue.spec.budget is not None and queue.spec.budget.hard


def _canonical(used: Used) -> dict[str, dict[str, int]]:
    return {
        queue: {canonical_model(model): milli for model, milli in models.items()}
        for queue, models in used.items()
    }
