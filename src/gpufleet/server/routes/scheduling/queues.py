"""`/api/queues`: GpuQueues with what they have, borrow and wait for.

`/api/queue` is something else: the waiting units in their order.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams


class QueueBudget(msgspec.Struct, rename="camel"):
    """The budget of a queue in the current period."""

    unit: Literal["gpuHours", "cost"]
    period: str
    hard: bool
    total: float
    used: float
    percent: int
    renewed_at: datetime | None


class QueueCondition(msgspec.Struct, rename="camel"):
    """A condition; True is the normal state."""

    type: str
    status: str
    reason: str
    message: str


class QueueRow(msgspec.Struct, rename="camel"):
    """A queue: its spec and its current use in GPUs."""

    name: str
    parent: str
    namespaces: list[str]
    """Its namespaces, as far as the caller may see them."""
    weight: int
    guaranteed: int
    guaranteed_models: dict[str, int]
    limit: int | None
    used: float
    used_guaranteed: float
    """The used GPUs that are inside the guarantee."""
    borrowed: float
    pending: float
    share: float
    """The queue's part of the recent use of all queues, from 0 to 1."""
    models: dict[str, float]
    budget: QueueBudget | None
    accounted_until: datetime | None
    """Until when the use comes from accounting; from then on the scheduler counts."""
    conditions: list[QueueCondition]
    created_at: datetime | None


class QueueList(msgspec.Struct):
    """All queues by name."""

    data: list[QueueRow]
    total: int


ReadQueues = Callable[[], Iterable[GpuQueue]]


def queue_routes(clusters: Clusters, queues: Mapping[str, ReadQueues]) -> list[Route]:
    """Return the route; `queues` returns the GpuQueues of each cluster on Kubernetes."""

    @get("/api/queues", scope="filtered", example=QueueList([_QUEUE], 1))
    async def list_queues(query: ClusterParams, namespaces: Namespaces) -> QueueList:
        """GpuQueues by name. The waiting units, in order, are in /api/queue.

        A caller who is limited to namespaces gets the queues of these, without other namespaces and messages.
        """
        read = queues.get(clusters.synced(query.cluster).name, tuple)
        rows = [
            _row(queue, namespaces)
            for queue in sorted(read(), key=lambda queue: queue.metadata.name)
            if namespaces is None or any(is_visible(namespaces, each) for each in queue.status.namespaces)
        ]
        return QueueList(rows, len(rows))

    return [list_queues]


def _row(queue: GpuQueue, namespaces: Namespaces) -> QueueRow:
    spec, status, limited = queue.spec, queue.status, namespaces is not None
    guaranteed = spec.guaranteed
    return QueueRow(
        name=queue.metadata.name,
        parent="" if limited else spec.parent,
        namespaces=[each for each in status.namespaces if is_visible(namespaces, each)],
        weight=spec.weight,
        guaranteed=guaranteed.gpus if guaranteed else 0,
        guaranteed_models={each.model: each.gpus for each in guaranteed.models} if guaranteed else {},
        limit=spec.limit.gpus if spec.limit else None,
        used=status.used,
        used_guaranteed=status.guaranteed,
        borrowed=status.borrowed,
        pending=status.pending,
        share=status.share,
        models={each.model: each.gpus for each in status.models},
        budget=_budget(queue),
        accounted_until=status.accounted_until,
        conditions=[
            QueueCondition(each.type, each.status, each.reason, "" if limited else each.message)
            for each in status.conditions
        ],
        created_at=queue.metadata.creation_timestamp,
    )


def _budget(queue: GpuQueue) -> QueueBudget | None:
    budget, status = queue.spec.budget, queue.status.budget
    if budget is None:
        return None
    return QueueBudget(
        unit="cost" if budget.gpu_hours is None else "gpuHours",
        period=budget.period,
        hard=budget.hard,
        total=(budget.cost if budget.gpu_hours is None else budget.gpu_hours) or 0.0,
        used=status.used if status else 0.0,
        percent=status.percent if status else 0,
        renewed_at=status.renewed_at if status else None,
    )


_QUEUE = QueueRow(
    name="research",
    parent="science",
    namespaces=["nlp", "vision"],
    weight=2,
    guaranteed=16,
    guaranteed_models={"H100": 8},
    limit=32,
    used=20.0,
    used_guaranteed=16.0,
    borrowed=4.0,
    pending=8.0,
    share=0.31,
    models={"NVIDIA_H100_80GB_HBM3": 20.0},
    budget=QueueBudget("gpuHours", "Month", False, 5000.0, 4100.0, 82, None),
    accounted_until=None,
    conditions=[
        QueueCondition("WithinBudget", "True", "NearlyUsed", "80 percent or more of the budget are used")
    ],
    created_at=None,
)
