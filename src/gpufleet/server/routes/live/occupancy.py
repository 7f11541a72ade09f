"""`/api/nodes/{name}/occupancy`: which workload held which GPUs of a node, and when."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.errors import InvalidRequest
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.workloads.teams import team_of, user_of
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.periods import AllocationPeriod
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.live.nodes import find_node
from gpufleet.server.routes.live.workload_metrics import Seconds
from gpufleet.server.routes.params import ClusterParams
from gpufleet.store.periods import PeriodStore

MAX_DAYS = 92
MAX_PERIODS = 5000


class OccupancyParams(ClusterParams, kw_only=True):
    """A time range of at most 92 days."""

    start: Seconds
    end: Seconds


class OccupancyPeriod(msgspec.Struct, rename="camel"):
    """A pod that held GPUs; all names are empty if the caller may not see them."""

    namespace: str
    team: str
    user: str
    pod_name: str
    workload_uid: str
    workload_kind: str
    workload_name: str
    gpus: tuple[int, ...]
    """Indices of its GPUs; empty if only their number is known."""
    gpu_count: int
    share: float
    start: float
    end: Annotated[float, Meta(description="Unix seconds; 0 while it lasts.")]


class Occupancy(msgspec.Struct, rename="camel"):
    """Who held the GPUs of a node, by start."""

    gpus: list[int]
    """Indices of the node's GPUs."""
    periods: list[OccupancyPeriod]
    truncated: bool
    """Whether there were more periods than are returned: the oldest are missing."""


def occupancy_routes(clusters: Clusters, periods: PeriodStore[AllocationPeriod]) -> list[Route]:
    """Return the route of the occupancy of a node."""

    @get("/api/nodes/{name:str}/occupancy", scope="filtered", example=_EXAMPLE)
    async def node_occupancy(name: str, query: OccupancyParams, namespaces: Namespaces) -> Occupancy:
        """Which workload held which GPUs of a node in a time range, from the periods that hours are billed by."""
        cluster = clusters.synced(query.cluster)
        check_range(query)
        view = find_node(cluster, name)
        found = await periods.of_node(cluster.name, name, query.start, query.end, MAX_PERIODS + 1)
        kept = sorted(found[:MAX_PERIODS], key=lambda period: (period.start, period.pod_uid))
        return Occupancy(
            gpus=[gpu.index for gpu in view.gpus] or list(range(view.total)),
            periods=[_period(each, namespaces) for each in kept],
            truncated=len(found) > MAX_PERIODS,
        )

    return [node_occupancy]


def check_range(query: OccupancyParams) -> None:
    """Raise InvalidRequest if the range is reversed or too long."""
    if not query.start < query.end <= query.start + MAX_DAYS * 86_400:
        raise InvalidRequest(f"end must be after start, and at most {MAX_DAYS} days later")


def _period(period: AllocationPeriod, namespaces: Namespaces) -> OccupancyPeriod:
    visible = is_visible(namespaces, period.namespace)
    return OccupancyPeriod(
        namespace=period.namespace if visible else "",
        team=team_of(period) if visible else "",
        user=user_of(period) if visible else "",
        pod_name=period.pod if visible else "",
        workload_uid=period.workload_uid if visible else "",
        workload_kind=period.workload_kind if visible else "",
        workload_name=period.workload_name if visible else "",
        gpus=tuple(sorted(set(period.held))),
        gpu_count=period.gpus,
        share=period.share,
        start=period.start,
        end=period.end,
    )


_EXAMPLE = Occupancy(
    gpus=list(range(8)),
    periods=[
        OccupancyPeriod(
            namespace="research",
            team="research",
            user="alice",
            pod_name="llama-0",
            workload_uid="1f0c",
            workload_kind="Job",
            workload_name="llama",
            gpus=(0, 1, 2, 3),
            gpu_count=4,
            share=1.0,
            start=1609459200.0,
            end=0.0,
        )
    ],
    truncated=False,
)
