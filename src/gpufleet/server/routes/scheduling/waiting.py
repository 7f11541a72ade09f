"""`/api/queue*`: the units that wait for GPUs, in order, and when they are expected to start.

`/api/queues` is something else: the GpuQueue objects, with guarantees, shares and budgets.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.estimates.fleet_state import Grouping, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import Estimate
from gpufleet.fleet.clusters import Clusters
from gpufleet.model.gpu_models import accepted_models
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams, Model
from gpufleet.server.start_times import StartTimes


class StartEstimate(msgspec.Struct, rename="camel"):
    """When a unit is expected to start, with a 90% interval; null where that is unknown."""

    position: int
    """Its place in the queue, from 1."""
    waits_for: str
    expected_start: datetime | None
    earliest_start: datetime | None
    latest_start: datetime | None


class QueuedUnit(msgspec.Struct, rename="camel"):
    """A pod or a gang that waits for GPUs."""

    namespace: str
    name: str
    claims: list[str]
    """The GpuClaims of its pods."""
    gpus: float
    """GPUs of all its pods together."""
    estimate: StartEstimate


class QueuePage(msgspec.Struct):
    """The waiting units, in the order of the queue."""

    data: list[QueuedUnit]


OwnNamespace = Annotated[
    str,
    Meta(
        max_length=253,
        description="Namespace of the pods, whose GpuQueue counts; without it they come behind all others.",
    ),
]


GroupingParam = Annotated[Grouping, Meta(description="GPUs with adjacent indexes, or of one island.")]


class HypotheticalParams(ClusterParams, rename="camel"):
    """A unit that does not exist."""

    gpus: Annotated[int, Meta(ge=1, le=1024, description="GPUs of each pod.")] = 1
    pods: Annotated[int, Meta(ge=1, le=10_000, description="Pods that start together.")] = 1
    model: Model = ""
    grouping: GroupingParam = "any"
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    namespace: OwnNamespace = ""


def waiting_routes(clusters: Clusters, starts: Mapping[str, StartTimes]) -> list[Route]:
    """Return the routes; a cluster that is not on Kubernetes has no queue."""

    def starts_of(name: str) -> StartTimes:
        found = starts.get(clusters.synced(name).name)
        if found is None:
            raise NotFound(
                f"cluster {clusters.get(name).name} has no queue of gpufleet: it is not on Kubernetes"
            )
        return found

    @get(
        "/api/queue",
        scope="filtered",
        example=QueuePage([QueuedUnit("team-a", "team-a/train-0", ["train"], 8.0, _EXAMPLE)]),
    )
    async def list_queue(query: ClusterParams, namespaces: Namespaces) -> QueuePage:
        """Units that wait for GPUs, in the order of the queue, and when each is expected to start.

        GpuQueue objects are in /api/queues.
        """
        units = await starts_of(query.cluster).queue()
        return QueuePage(
            [
                QueuedUnit(namespace, name, claims, gpus, estimate_row(estimate))
                for namespace, name, claims, gpus, estimate in units
                if is_visible(namespaces, namespace)
            ]
        )

    @get("/api/queue/estimate", scope="filtered", example=_EXAMPLE)
    async def estimate_start(query: HypotheticalParams, namespaces: Namespaces) -> StartEstimate:
        """When a unit with these GPUs would be expected to start if it arrived now.

        With a namespace it counts as one of its GpuQueue: share, guarantee, limit and budget.
        """
        check_namespace(query.namespace, namespaces)
        unit = hypothetical_unit(query.gpus, query.pods, query.model, query.priority, query.grouping)
        return estimate_row(await starts_of(query.cluster).hypothetical(unit, query.namespace))

    return [list_queue, estimate_start]


def check_namespace(namespace: str, visible: Namespaces) -> None:
    """Raise NotFound if a caller asks for a namespace that it may not see."""
    if namespace and not is_visible(visible, namespace):
        raise NotFound(f"parameter namespace: {namespace} is not one of your namespaces")


def hypothetical_unit(gpus: int, pods: int, model: str, priority: int, grouping: Grouping) -> WaitingUnit:
    """Return pods that do not exist as a unit."""
    models = accepted_models(model) if model else frozenset[str]()
    job = Job(gpus=float(gpus * pods))
    return WaitingUnit("", job, 1000 * gpus, pods, models, priority, grouping=grouping)


def estimate_row(estimate: Estimate) -> StartEstimate:
    """Return an estimate with times, rounded to minutes."""
    now = datetime.now(UTC)

    def at(seconds: float | None) -> datetime | None:
        if seconds is None or seconds > 10 * 365 * 86400:
            return None
        return (now + timedelta(seconds=seconds + 30)).replace(second=0, microsecond=0)

    return StartEstimate(
        estimate.position,
        estimate.waits_for,
        at(estimate.expected),
        at(estimate.earliest),
        at(estimate.latest),
    )


_EXAMPLE = StartEstimate(
    3,
    "8 free H100 GPUs; 2 ahead of it in the queue",
    datetime(2026, 1, 1, 12, 40, tzinfo=UTC),
    datetime(2026, 1, 1, 12, 5, tzinfo=UTC),
    datetime(2026, 1, 1, 14, 30, tzinfo=UTC),
)
