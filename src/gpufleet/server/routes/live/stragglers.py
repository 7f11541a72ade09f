"""`/api/stragglers`: GPUs that are far slower than the other GPUs of their job."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.stragglers import StragglerWatch
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams


class StragglerRow(msgspec.Struct, rename="camel"):
    """A suspect GPU of a job; `rank` is the position of its pod in the job, by name."""

    workload_uid: str
    workload: str
    namespace: str
    pod: str
    rank: int
    node: str
    gpu: int
    quantity: str
    value: float
    median: float
    since: datetime


def straggler_routes(clusters: Clusters, watches: Mapping[str, StragglerWatch]) -> list[Route]:
    """Return the routes."""

    @get("/api/stragglers", scope="filtered", example=[_STRAGGLER])
    async def list_stragglers(query: ClusterParams, namespaces: Namespaces) -> list[StragglerRow]:
        """GPUs whose utilization or power is far below that of the other GPUs of their job, for two minutes."""
        return [
            StragglerRow(
                each.workload_uid,
                each.workload,
                each.namespace,
                each.pod,
                each.rank,
                each.node,
                each.gpu,
                each.quantity.value,
                round(each.value, 1),
                round(each.median, 1),
                datetime.fromtimestamp(int(each.since), UTC),
            )
            for each in watches[clusters.synced(query.cluster).name].stragglers()
            if is_visible(namespaces, each.namespace)
        ]

    return [list_stragglers]


_STRAGGLER = StragglerRow(
    "root-uid-123",
    "llama-70b",
    "ml",
    "llama-70b-3",
    3,
    "gpu-node-1",
    5,
    "power",
    210.0,
    640.5,
    datetime.fromisoformat("2026-01-01T10:00:00Z"),
)
