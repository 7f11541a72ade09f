"""`/api/v1/gpu/map`: one quantity of every GPU in columns, for those who draw all of them at once.

`/api/v1/gpu/metrics` says everything of each GPU and takes 25 MB for 100,000 of them. A map needs
one number and one mark for each, so here the names stand once per node and the rest is in columns
in the order of the nodes: under a megabyte, and about 200 kB once compressed. An answer is made
once for each state of the fleet and handed to everybody.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta

from gpufleet.api.answers import Prepared
from gpufleet.api.asked import ClusterName
from gpufleet.api.routes import get
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeState, NodeView
from gpufleet.model.node import Gpu, Health
from gpufleet.model.reading import Quantity

Name = Literal["utilization", "temperature", "power", "memory"]
_QUANTITIES: dict[Name, tuple[Quantity, str]] = {
    "utilization": (Quantity.UTILIZATION, "%"),
    "temperature": (Quantity.TEMPERATURE, "℃"),
    "power": (Quantity.POWER, "W"),
    "memory": (Quantity.MEMORY_UTILIZATION, "%"),
}
_ISLAND_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class MapAsked(msgspec.Struct):
    """Which cluster, and what of each GPU."""

    cluster: ClusterName = ""
    quantity: Annotated[Name, Meta(description="What is told of each GPU.")] = "utilization"


class GpuMap(msgspec.Struct, rename="camel"):
    """Every GPU of a cluster, node after node. The lists of GPUs are all in one order."""

    quantity: str
    unit: str
    taken_at: float
    """Unix seconds of the readings; 0 if there are none."""
    nodes: list[str]
    counts: list[int]
    """GPUs of each node."""
    models: list[str]
    model_of: list[int]
    """The place in `models` for each node."""
    indexes: list[int]
    """The index that a GPU has on its node."""
    values: list[int | None]
    """The quantity of each GPU, as a whole number; null without a reading."""
    marks: str
    """One letter a GPU: f free, h held, x unhealthy or on a faulty node, c cordoned, u of unknown health."""
    islands: str
    """One letter a GPU: which island of its node it is on; - for none."""


def gpu_map_routes(clusters: Clusters) -> list[HTTPRouteHandler]:
    """The map of all GPUs."""
    kept: dict[tuple[str, str], tuple[int, Prepared[GpuMap]]] = {}

    @get("/api/v1/gpu/map", example=_EXAMPLE)
    async def gpu_map(query: MapAsked) -> Prepared[GpuMap]:
        """One quantity of every GPU in columns, with who is free, held or broken."""
        cluster = clusters.get(query.cluster)
        cluster.fleet.refresh()
        key, version = (cluster.name, query.quantity), cluster.fleet.version
        known = kept.get(key)
        if known is None or known[0] != version:
            known = kept[key] = (version, Prepared.of(_map(cluster, query.quantity)))
        return known[1]

    return [gpu_map]


def _map(cluster: Cluster, name: Name) -> GpuMap:
    fleet = cluster.fleet
    quantity, unit = _QUANTITIES[name]
    column = fleet.board.column(quantity).tolist()
    views = [view for _, view in sorted(fleet.views().items()) if view.gpus]
    models: dict[str, int] = {}
    model_of = [models.setdefault(_model(view), len(models)) for view in views]
    values: list[int | None] = []
    for view in views:
        places = fleet.board.slots_of(view.node.name, (gpu.index for gpu in view.gpus))
        values += [_whole(column[place]) for place in places]
    return GpuMap(
        quantity=name,
        unit=unit,
        taken_at=fleet.board.readings.taken_at,
        nodes=[view.node.name for view in views],
        counts=[len(view.gpus) for view in views],
        models=list(models),
        model_of=model_of,
        indexes=[gpu.index for view in views for gpu in view.gpus],
        values=values,
        marks="".join(_mark(view, gpu) for view in views for gpu in view.gpus),
        islands="".join(_islands(view.gpus) for view in views),
    )


def _whole(value: float) -> int | None:
    return round(value) if value == value else None


def _model(view: NodeView) -> str:
    return next((gpu.model for gpu in view.gpus if gpu.model), view.node.gpu_model)


def _mark(view: NodeView, gpu: Gpu) -> str:
    if gpu.health is Health.UNHEALTHY or (view.state is NodeState.FAULTY and not view.node.ready):
        return "x"
    if gpu.index in view.held:
        return "h"
    if gpu.cordoned or view.node.cordoned:
        return "c"
    return "u" if gpu.health is Health.UNKNOWN else "f"


def _islands(gpus: Iterable[Gpu]) -> str:
    seen: dict[str, str] = {}
    return "".join(
        seen.setdefault(gpu.island, _ISLAND_LETTERS[len(seen) % len(_ISLAND_LETTERS)]) if gpu.island else "-"
        for gpu in gpus
    )


_EXAMPLE = GpuMap(
    quantity="utilization",
    unit="%",
    taken_at=1609459200.0,
    nodes=["gpu-node-1", "gpu-node-2"],
    counts=[2, 1],
    models=["NVIDIA H200"],
    model_of=[0, 0],
    indexes=[0, 1, 0],
    values=[97, 0, None],
    marks="hfx",
    islands="00-",
)
