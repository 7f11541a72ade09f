"""`/api/stragglers`: GPUs and ranks that are far slower than the others of their job, and jobs that hang."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.stragglers import StragglerWatch
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams


class StragglerRow(msgspec.Struct, rename="camel"):
    """A suspect GPU or rank of a job.

    Ranks are numbered one per GPU, pods in the order of their names, as torchrun does. What is not known is null or empty.
    """

    workload_uid: str
    workload: str
    namespace: str
    pod: str
    rank: int | None
    node: str
    gpu: int | None
    quantity: str
    """utilization, power, sm_clock, steps (far behind), reports (the rank stopped reporting), hang (all ranks did)."""
    value: float
    median: float
    """Of the job."""
    since: datetime
    message: str


def straggler_routes(clusters: Clusters, watches: Mapping[str, StragglerWatch]) -> list[Route]:
    """Return the routes."""

    @get("/api/stragglers", scope="filtered", example=[_STRAGGLER])
    async def list_stragglers(query: ClusterParams, namespaces: Namespaces) -> list[StragglerRow]:
        """GPUs and ranks that are far slower than the others of their job for two minutes, and jobs that hang."""
        return [
            StragglerRow(
                each.workload_uid,
                each.workload,
                each.namespace,
                each.pod,
                each.rank,
                each.node,
                each.gpu,
                each.quantity,
                round(each.value, 1),
                round(each.median, 1),
                datetime.fromtimestamp(int(each.since), UTC),
                each.message,
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
    29,
    "gpu-node-1",
    5,
    "power",
    210.0,
    640.5,
    datetime.fromisoformat("2026-01-01T10:00:00Z"),
    "power 210 W, the median of its job is 640 W",
)
