"""`/api/v1/gpu/map`: one quantity of every GPU in columns, for heat maps of the whole fleet.

`/api/v1/gpu/metrics` takes 25 MB for 100,000 GPUs. A map needs one number and one mark per GPU, so
here each node name appears once and the rest is in columns in the order of the nodes: under a
megabyte, about 200 kB compressed. An answer is encoded once per state of the fleet for all
callers, from rows that are made once per state of a node.
"""

from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeState, NodeView
from gpufleet.fleet.visibility import held_slots
from gpufleet.model.namespaces import Namespaces
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
MAX_LIMITED = 32
"""Maps to keep for callers who are limited to namespaces; one of 100,000 GPUs takes about a megabyte."""
_ISLAND_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class MapParams(msgspec.Struct):
    """The cluster, and the quantity to show."""

    cluster: ClusterName = ""
    quantity: Annotated[Name, Meta(description="The quantity of each GPU.")] = "utilization"


class GpuMap(msgspec.Struct, rename="camel"):
    """Every GPU of a cluster, node by node; all lists of GPUs have the same order."""

    quantity: str
    unit: str
    taken_at: float
    """Unix seconds of the readings; 0 if there are none."""
    nodes: list[str]
    counts: list[int]
    """GPUs of each node."""
    models: list[str]
    model_of: list[int]
    """The index in `models` for each node."""
    indexes: list[int]
    """The index of each GPU on its node."""
    values: list[int | None]
    """The quantity of each GPU, as a whole number; null without a reading, or if the caller may not see it."""
    marks: str
    """One letter per GPU: f free, h held, x unhealthy or on a node that is not ready, c cordoned and free,
    u of unknown health, d draining: a deleted pod still has processes on it.

    p is perhaps held: a node has one for each GPU that is allocated without a known index, and all
    GPUs of a node are p if its source does not say which are allocated.
    """
    islands: str
    """One letter per GPU for its island on the node; - for none."""


PreparedMaps = dict[tuple[str, str, Namespaces], tuple[int, Prepared[GpuMap]]]
"""The map by cluster, quantity and visible namespaces, and the version of the fleet that it shows."""


def gpu_map_routes(clusters: Clusters, prepared_answers: PreparedMaps | None = None) -> list[Route]:
    """Return the route of the GPU map; answers for all callers are kept in `prepared_answers`."""
    answers: PreparedMaps = prepared_answers if prepared_answers is not None else {}
    limited: PreparedMaps = {}
    """The maps of callers who are limited to namespaces, the oldest first."""
    rows: dict[str, dict[str, _NodeRow]] = {}

    @get("/api/v1/gpu/map", scope="filtered", example=_EXAMPLE)
    async def gpu_map(query: MapParams, namespaces: Namespaces) -> Prepared[GpuMap]:
        """One quantity of every GPU in columns, with marks for free, held and unhealthy GPUs."""
        cluster = clusters.synced(query.cluster)
        cluster.fleet.refresh()
        key, version = (cluster.name, query.quantity, namespaces), cluster.fleet.version
        prepared = answers if namespaces is None else limited
        cached = prepared.get(key)
        if cached is None or cached[0] != version:
            nodes = rows[cluster.name] = _node_rows(cluster, rows.get(cluster.name, {}))
            prepared.pop(key, None)
            cached = prepared[key] = (version, Prepared.of(_map(cluster, nodes, query.quantity, namespaces)))
            if len(limited) > MAX_LIMITED:
                del limited[next(iter(limited))]
        return cached[1]

    return [gpu_map]


class _NodeRow(NamedTuple):
    """The map's data of one node without readings; valid as long as the node's view."""

    view: NodeView
    slots: list[int]
    indexes: list[int]
    model: str
    marks: str
    islands: str


def _node_rows(cluster: Cluster, previous: dict[str, _NodeRow]) -> dict[str, _NodeRow]:
    """Return the nodes with GPUs by name; reuse the rows of nodes that have not changed."""
    rows = {}
    for name, view in sorted(cluster.fleet.views().items()):
        row = previous.get(name)
        if row is None or row.view is not view:
            row = _node_row(cluster, view)
        if row.slots:
            rows[name] = row
    return rows


def _node_row(cluster: Cluster, view: NodeView) -> _NodeRow:
    gpus = view.gpus
    indexes = [gpu.index for gpu in gpus]
    slots = cluster.fleet.gpu_columns.slots_of(view.node.name, indexes)
    return _NodeRow(
        view,
        slots,
        indexes,
        view.model or next(iter(view.models), ""),
        gpu_marks(view),
        _islands(tuple([gpu.island for gpu in gpus])),
    )


def _map(cluster: Cluster, nodes: dict[str, _NodeRow], name: Name, namespaces: Namespaces) -> GpuMap:
    gpu_columns = cluster.fleet.gpu_columns
    quantity, unit = _QUANTITIES[name]
    column = gpu_columns.column(quantity)
    if namespaces is not None:
        held = held_slots(cluster.fleet, namespaces)
        all_values, column = column, np.full(len(column), np.nan)
        column[held] = all_values[held]
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
        values=_rounded(column[slots]),
        marks="".join([node.marks for node in nodes.values()]),
        islands="".join([node.islands for node in nodes.values()]),
    )


def _rounded(column: Column) -> list[int | None]:
    missing = np.isnan(column)
    values: list[int | None] = np.rint(np.where(missing, 0.0, column)).astype(np.int64).tolist()
    for index in np.flatnonzero(missing).tolist():
        values[index] = None
    return values


def gpu_marks(view: NodeView) -> str:
    """Return the letter of each GPU of a node; see `GpuMap.marks`."""
    if view.state is NodeState.FAULTY and not view.node.ready:
        return "x" * len(view.gpus)
    held, cordoned = view.allocated_indices, view.node.cordoned
    marks = "".join(
        [
            "x"
            if gpu.health is Health.UNHEALTHY
            else "h"
            if gpu.index in held
            else "d"
            if gpu.draining
            else "c"
            if cordoned or gpu.cordoned
            else "u"
            if gpu.health is Health.UNKNOWN
            else "f"
            for gpu in view.gpus
        ]
    )
    if not view.node.allocation_known:
        return marks.replace("f", "p")
    without_index = view.allocated - len(view.holders)
    return marks.replace("f", "p", without_index) if without_index > 0 else marks


@lru_cache(maxsize=4096)
def _islands(names: tuple[str, ...]) -> str:
    """Return a letter for the island of each GPU. Cached, since most nodes of a fleet are alike."""
    letters: dict[str, str] = {}
    return "".join(
        letters.setdefault(name, _ISLAND_LETTERS[len(letters) % len(_ISLAND_LETTERS)]) if name else "-"
        for name in names
    )


_EXAMPLE = GpuMap(
    quantity="utilization",
    unit="%",
    taken_at=1609459200.0,
    nodes=["gpu-node-1", "gpu-node-2"],
    counts=[2, 1],
    models=["NVIDIA_H200"],
    model_of=[0, 0],
    indexes=[0, 1, 0],
    values=[97, 0, None],
    marks="hfx",
    islands="00-",
)
