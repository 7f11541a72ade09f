"""`/api/v1/gpu/map`: one quantity of every GPU in columns, for those who draw all of them at once.

`/api/v1/gpu/metrics` says everything of each GPU and takes 25 MB for 100,000 of them. A map needs
one number and one mark for each, so here the names stand once per node and the rest is in columns
in the order of the nodes: under a megabyte, and about 200 kB once compressed. An answer is made
once for each state of the fleet and handed to everybody; what it says of a node is made once for
each state of that node.
"""

from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeState, NodeView
from gpufleet.model.node import Health
from gpufleet.model.reading import Column, Quantity
from gpufleet.server.http.answers import Prepared
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterName

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
    """One letter a GPU: f free, h held, x unhealthy or on a faulty node, c cordoned, u of unknown health.

    p is perhaps held: a node has as many of them as GPUs that are held without anybody saying which.
    """
    islands: str
    """One letter a GPU: which island of its node it is on; - for none."""


def gpu_map_routes(clusters: Clusters) -> list[Route]:
    """The map of all GPUs."""
    kept: dict[tuple[str, str], tuple[int, Prepared[GpuMap]]] = {}
    drawn: dict[str, dict[str, _Node]] = {}

    @get("/api/v1/gpu/map", example=_EXAMPLE)
    async def gpu_map(query: MapAsked) -> Prepared[GpuMap]:
        """One quantity of every GPU in columns, with who is free, held or broken."""
        cluster = clusters.synced(query.cluster)
        cluster.fleet.refresh()
        key, version = (cluster.name, query.quantity), cluster.fleet.version
        known = kept.get(key)
        if known is None or known[0] != version:
            nodes = drawn[cluster.name] = _nodes(cluster, drawn.get(cluster.name, {}))
            known = kept[key] = (version, Prepared.of(_map(cluster, nodes, query.quantity)))
        return known[1]

    return [gpu_map]


class _Node(NamedTuple):
    """What the map says of one node, its readings aside: the same for as long as its view is."""

    view: NodeView
    slots: list[int]
    indexes: list[int]
    model: str
    marks: str
    islands: str


def _nodes(cluster: Cluster, known: dict[str, _Node]) -> dict[str, _Node]:
    """The nodes with GPUs by name; only those that changed are looked at anew."""
    nodes = {}
    for name, view in sorted(cluster.fleet.views().items()):
        node = known.get(name)
        if node is None or node.view is not view:
            node = _node(cluster, view)
        if node.slots:
            nodes[name] = node
    return nodes


def _node(cluster: Cluster, view: NodeView) -> _Node:
    gpus = view.gpus
    indexes = [gpu.index for gpu in gpus]
    slots = cluster.fleet.gpu_columns.slots_of(view.node.name, indexes)
    return _Node(
        view, slots, indexes, _model(view), _marks(view), _islands(tuple([gpu.island for gpu in gpus]))
    )


def _map(cluster: Cluster, nodes: dict[str, _Node], name: Name) -> GpuMap:
    gpu_columns = cluster.fleet.gpu_columns
    quantity, unit = _QUANTITIES[name]
    models: dict[str, int] = {}
    model_of = [models.setdefault(node.model, len(models)) for node in nodes.values()]
    slots = [slot for node in nodes.values() for slot in node.slots]
    return GpuMap(
        quantity=name,
        unit=unit,
        taken_at=gpu_columns.readings.taken_at,
        nodes=list(nodes),
        counts=[len(node.indexes) for node in nodes.values()],
        models=list(models),
        model_of=model_of,
        indexes=[index for node in nodes.values() for index in node.indexes],
        values=_whole(gpu_columns.column(quantity)[slots]),
        marks="".join([node.marks for node in nodes.values()]),
        islands="".join([node.islands for node in nodes.values()]),
    )


def _whole(column: Column) -> list[int | None]:
    missing = np.isnan(column)
    values: list[int | None] = np.rint(np.where(missing, 0.0, column)).astype(np.int64).tolist()
    for place in np.flatnonzero(missing).tolist():
        values[place] = None
    return values


def _model(view: NodeView) -> str:
    return next((gpu.model for gpu in view.gpus if gpu.model), view.node.gpu_model)


def _marks(view: NodeView) -> str:
    if view.state is NodeState.FAULTY and not view.node.ready:
        return "x" * len(view.gpus)
    held, cordoned = view.allocated_indices, view.node.cordoned
    marks = "".join(
        [
            "x"
            if gpu.health is Health.UNHEALTHY
            else "h"
            if gpu.index in held
            else "c"
            if cordoned or gpu.cordoned
            else "u"
            if gpu.health is Health.UNKNOWN
            else "f"
            for gpu in view.gpus
        ]
    )
    unnamed = view.allocated - len(view.holders)
    return marks.replace("f", "p", unnamed) if unnamed > 0 else marks


@lru_cache(maxsize=4096)
def _islands(names: tuple[str, ...]) -> str:
    """Letters for the islands of a node's GPUs; most nodes of a fleet are alike."""
    seen: dict[str, str] = {}
    return "".join(
        seen.setdefault(name, _ISLAND_LETTERS[len(seen) % len(_ISLAND_LETTERS)]) if name else "-"
        for name in names
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
