"""`/api/gpus`: every GPU with its state, readings and holders, in pages."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeView
from gpufleet.model.gpu_models import accepted_models
from gpufleet.model.label_selector import parse_label_selector
from gpufleet.model.namespaces import Namespaces
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.live.gpu_map import gpu_marks
from gpufleet.server.routes.live.nodes import GpuHolder, NodeGpu, node_gpu
from gpufleet.server.routes.params import ClusterParams, LabelSelector, Model, PageNumber, PageSize

State = Literal["free", "held", "unhealthy", "cordoned", "unknown", "draining", "perhaps-held"]
_STATES: dict[str, State] = {
    "f": "free",
    "h": "held",
    "x": "unhealthy",
    "c": "cordoned",
    "u": "unknown",
    "d": "draining",
    "p": "perhaps-held",
}
"""The state that each letter of the map stands for."""


class GpuListParams(ClusterParams, rename="camel"):
    """Filter and page of the list of GPUs."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    node: Annotated[str, Meta(max_length=253, description="GPUs of this node only.")] = ""
    state: Annotated[State | None, Meta(description="GPUs in this state only.")] = None
    model: Model = ""
    label_selector: LabelSelector = ""

    def __post_init__(self) -> None:
        """Reject a wrong selector."""
        parse_label_selector(self.label_selector)


class GpuRow(NodeGpu, rename="camel", kw_only=True):
    """A GPU of the fleet; rates 0.0 to 1.0, memory in GiB, null if not measured."""

    node: str
    state: State


class GpuPage(msgspec.Struct):
    """One page of GPUs, and how many there are in all."""

    data: list[GpuRow]
    total: int


def gpu_list_routes(clusters: Clusters) -> list[Route]:
    """Return the route."""

    @get("/api/gpus", scope="filtered", example=GpuPage([_EXAMPLE], 1))
    async def list_gpus(query: GpuListParams, namespaces: Namespaces) -> GpuPage:
        """GPUs by node and index, with state, health, readings and holders.

        `labelSelector` selects the nodes. Readings and names of holders that the caller may not see are missing.
        """
        cluster = clusters.synced(query.cluster)
        found = [
            (view, position, _STATES[mark])
            for view in _views(cluster, query)
            for position, mark in enumerate(gpu_marks(view))
            if query.state in (None, _STATES[mark])
        ]
        first = (query.page_num - 1) * query.page_size
        page = found[first : first + query.page_size]
        return GpuPage([_row(cluster, *each, namespaces) for each in page], len(found))

    return [list_gpus]


def _views(cluster: Cluster, query: GpuListParams) -> list[NodeView]:
    """Return the nodes with GPUs that the query selects, by name."""
    models, selects = accepted_models(query.model), parse_label_selector(query.label_selector)
    return [
        view
        for name, view in sorted(cluster.fleet.views().items())
        if query.node in ("", name)
        and (not query.model or not models.isdisjoint(view.models))
        and selects(view.node.labels)
    ]


def _row(cluster: Cluster, view: NodeView, position: int, state: State, namespaces: Namespaces) -> GpuRow:
    gpu = node_gpu(cluster, view, view.gpus[position], namespaces)
    return GpuRow(**msgspec.structs.asdict(gpu), node=view.node.name, state=state)


_EXAMPLE = GpuRow(
    index=0,
    uuid="GPU-5f2c1b1e",
    model="NVIDIA_H200",
    vendor="nvidia",
    island="nvlink-group-0",
    bandwidth_g_bps=900,
    health="Healthy",
    utilization=0.93,
    holders=[GpuHolder("ml", "train-0", "pod-uid-789", "root-uid-123", 1.0)],
    node="gpu-node-1",
    state="held",
)
