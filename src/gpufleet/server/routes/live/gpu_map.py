"""`/api/v1/gpu/map`: one quantity of every GPU in columns, for heat maps of the whole fleet.

`/api/v1/gpu/metrics` takes 25 MB for 100,000 GPUs. A map needs one number and one mark per GPU, so
here each node name appears once and the rest is in columns in the order of the nodes: under a
megabyte, about 200 kB compressed. `details` adds what nodes are grouped by and who holds the GPUs. An
answer is encoded once per state of the fleet for all
callers, from rows that are made once per state of a node.
"""

from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeState, NodeView
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.visibility import held_slots
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.fleet.workloads.teams import team_of, user_of
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.node import Health
from gpufleet.model.reading import Column, Quantity
from gpufleet.server.http.answers import Prepared
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.live.node_groups import NodeGroup, group_of, topology_groups

Name = Literal["utilization", "temperature", "power", "memory", "age"]
_QUANTITIES: dict[Name, tuple[Quantity | None, str]] = {
    "utilization": (Quantity.UTILIZATION, "%"),
    "temperature": (Quantity.TEMPERATURE, "℃"),
    "power": (Quantity.POWER, "W"),
    "memory": (Quantity.MEMORY_UTILIZATION, "%"),
    "age": (None, "s"),
}
ALL_CLUSTERS = "*"
MAX_LIMITED = 32
"""Maps to keep for callers who are limited to namespaces; one of 100,000 GPUs takes about a megabyte."""
_ISLAND_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class MapParams(msgspec.Struct):
    """The cluster, and the quantity to show."""

    cluster: Annotated[
        str, Meta(max_length=253, description="Cluster; the default one if not given, * for all.")
    ] = ""
    quantity: Annotated[
        Name, Meta(description="The quantity of each GPU; age: seconds from its last sample to takenAt.")
    ] = "utilization"
    details: Annotated[
        bool, Meta(description="Also return the groups of the nodes and the holders of the GPUs.")
    ] = False


class MapHolder(msgspec.Struct):
    """A workload that holds GPUs; all fields are empty if the caller may not see it."""

    uid: str
    kind: str
    name: str
    namespace: str
    team: str
    user: str


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
    groups: dict[str, NodeGroup] = {}
    """With `details`: the nodes by cluster, source and each topology label that a node has."""
    holders: list[MapHolder] = []
    """With `details`: the workloads that hold GPUs."""
    holder_of: list[int] = []
    """With `details`: the index in `holders` for each GPU, of the first if several share it; -1 without a known
    holder."""


PreparedMaps = dict[tuple[str, str, bool, Namespaces], tuple[tuple[int, ...], Prepared[GpuMap]]]
"""The map by cluster, quantity, details and visible namespaces, and the versions of the fleets that it shows."""


def gpu_map_routes(clusters: Clusters, prepared_answers: PreparedMaps | None = None) -> list[Route]:
    """Return the route of the GPU map; answers for all callers are kept in `prepared_answers`."""
    answers: PreparedMaps = prepared_answers if prepared_answers is not None else {}
    limited: PreparedMaps = {}
    """The maps of callers who are limited to namespaces, the oldest first."""
    rows: dict[str, dict[str, _NodeRow]] = {}

    @get("/api/v1/gpu/map", scope="filtered", example=_EXAMPLE)
    async def gpu_map(query: MapParams, namespaces: Namespaces) -> Prepared[GpuMap]:
        """One quantity of every GPU in columns, with marks for free, held and unhealthy GPUs."""
        shown = _clusters(clusters, query.cluster)
        for cluster in shown:
            cluster.fleet.refresh()
        key = (query.cluster or shown[0].name, query.quantity, query.details, namespaces)
        versions = tuple(cluster.fleet.version for cluster in shown)
        prepared = answers if namespaces is None else limited
        cached = prepared.get(key)
        if cached is None or cached[0] != versions:
            for cluster in shown:
                rows[cluster.name] = _node_rows(cluster, rows.get(cluster.name, {}))
            prepared.pop(key, None)
            parts = [(cluster, rows[cluster.name]) for cluster in shown]
            cached = prepared[key] = (versions, Prepared.of(_map(parts, query, namespaces)))
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


def _clusters(clusters: Clusters, name: str) -> list[Cluster]:
    if name != ALL_CLUSTERS:
        return [clusters.synced(name)]
    return [clusters.synced(cluster.name) for cluster in clusters]


def _map(
    parts: list[tuple[Cluster, dict[str, _NodeRow]]], query: MapParams, namespaces: Namespaces
) -> GpuMap:
    nodes = [node for _, rows in parts for node in rows.values()]
    models: dict[str, int] = {}
    model_of = [models.setdefault(node.model, len(models)) for node in nodes]
    columns = [_column(cluster, rows, query.quantity, namespaces) for cluster, rows in parts]
    holders, holder_of = _holders(parts, namespaces) if query.details else ([], [])
    return GpuMap(
        quantity=query.quantity,
        unit=_QUANTITIES[query.quantity][1],
        taken_at=max(cluster.fleet.gpu_columns.readings.taken_at for cluster, _ in parts),
        nodes=[node.view.node.name for node in nodes],
        counts=[len(node.indexes) for node in nodes],
        models=list(models),
        model_of=model_of,
        indexes=[index for node in nodes for index in node.indexes],
        values=_rounded(np.concatenate(columns)),
        marks="".join([node.marks for node in nodes]),
        islands="".join([node.islands for node in nodes]),
        groups=_groups(parts) if query.details else {},
        holders=holders,
        holder_of=holder_of,
    )


def _column(cluster: Cluster, rows: dict[str, _NodeRow], name: Name, namespaces: Namespaces) -> Column:
    """Return one quantity of the GPUs of `rows`, NaN without a reading or if the caller may not see it."""
    gpu_columns = cluster.fleet.gpu_columns
    quantity = _QUANTITIES[name][0]
    if quantity is None:
        column = np.maximum(0.0, gpu_columns.readings.taken_at - gpu_columns.sampled)
    else:
        column = gpu_columns.column(quantity)
    if namespaces is not None:
        held = held_slots(cluster.fleet, namespaces)
        all_values, column = column, np.full(len(column), np.nan)
        column[held] = all_values[held]
    return column[[slot for node in rows.values() for slot in node.slots]]


def _groups(parts: list[tuple[Cluster, dict[str, _NodeRow]]]) -> dict[str, NodeGroup]:
    nodes = [node.view.node for _, rows in parts for node in rows.values()]
    return {
        "cluster": group_of(cluster.name for cluster, rows in parts for _ in rows),
        "source": group_of(node.source for node in nodes),
        **topology_groups([node.labels for node in nodes]),
    }


def _holders(
    parts: list[tuple[Cluster, dict[str, _NodeRow]]], namespaces: Namespaces
) -> tuple[list[MapHolder], list[int]]:
    """Return the workloads that hold GPUs, and for each GPU the index of its first holder."""
    found: dict[str, int] = {}
    holders: list[MapHolder] = []
    holder_of: list[int] = []

    def place(fleet: Fleet, pod_uid: str) -> int:
        workload = fleet.workloads().get(fleet.ownership.root_of(pod_uid))
        visible = workload is not None and is_visible(namespaces, workload.namespace)
        key = workload.uid if workload is not None and visible else ""
        if key not in found:
            found[key] = len(holders)
            holders.append(_holder(workload) if workload is not None and visible else _HIDDEN)
        return found[key]

    for cluster, rows in parts:
        places: dict[str, int] = {}
        for node in rows.values():
            by_index = node.view.holders
            for index in node.indexes:
                uids = by_index.get(index)
                if not uids:
                    holder_of.append(-1)
                    continue
                if uids[0] not in places:
                    places[uids[0]] = place(cluster.fleet, uids[0])
                holder_of.append(places[uids[0]])
    return holders, holder_of


_HIDDEN = MapHolder("", "", "", "", "", "")


def _holder(workload: Workload) -> MapHolder:
    return MapHolder(
        workload.uid,
        workload.kind,
        workload.name,
        workload.namespace,
        team_of(workload),
        user_of(workload),
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
    groups={"source": NodeGroup(["k8s"], [0, 0])},
    holders=[MapHolder("root-uid-123", "Job", "train", "ml", "nlp", "alice")],
    holder_of=[0, -1, -1],
)
