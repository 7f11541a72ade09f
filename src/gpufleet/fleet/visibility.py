"""Which GPUs a caller sees the work of who is limited to namespaces.

Nodes and GPUs are capacity: every caller sees their names, models, health and whether they are allocated. The
readings of a GPU tell what runs on it, so they are shown only for GPUs that a pod in the caller's namespaces
holds, wholly or a share. Processes are not attributed to pods, so they are shown only for GPUs that no other
namespace holds.
"""

from collections.abc import Iterable

from gpufleet.fleet.node_view import NodeView
from gpufleet.fleet.state import Fleet
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.reading import GpuProcess, Readings


def held_indices(fleet: Fleet, view: NodeView, namespaces: frozenset[str]) -> list[int]:
    """Return the GPUs of a node that pods of `namespaces` hold, wholly or a share."""
    return [index for index, uids in view.holders.items() if _namespaces_of(fleet, uids) & namespaces]


def held_gpus(fleet: Fleet, namespaces: frozenset[str]) -> dict[str, set[int]]:
    """Return the GPUs by node that pods of `namespaces` hold, wholly or a share."""
    fleet.refresh()
    held: dict[str, set[int]] = {}
    for pod in fleet.ownership.pods.values():
        if pod.namespace in namespaces and pod.holds and not fleet.ownership.is_gone(pod.uid):
            held.setdefault(pod.node, set()).update(fleet.gpus_of(pod))
    return held


def held_slots(fleet: Fleet, namespaces: frozenset[str]) -> list[int]:
    """Return the slots in the fleet's columns of the GPUs that pods of `namespaces` hold."""
    held = held_gpus(fleet, namespaces)
    return [slot for node, indices in held.items() for slot in fleet.gpu_columns.slots_of(node, indices)]


def visible_rows(fleet: Fleet, readings: Readings, namespaces: frozenset[str]) -> frozenset[int]:
    """Return the rows of the readings whose GPUs are held by pods of `namespaces`."""
    held = held_gpus(fleet, namespaces)
    columns = fleet.gpu_columns
    return frozenset(
        row
        for node in held
        for row in readings.rows_of(node)
        if (gpu := columns.gpu_of(readings.gpus[row])) is not None and gpu[1] in held.get(gpu[0], ())
    )


def visible_processes(
    fleet: Fleet, processes: Iterable[GpuProcess], namespaces: Namespaces
) -> list[GpuProcess]:
    """Return the processes on GPUs that pods of `namespaces` hold, and pods of no other namespace."""
    if namespaces is None:
        return list(processes)
    views = fleet.views()
    shown = []
    for process in processes:
        gpu = fleet.gpu_columns.gpu_at(process.gpu)
        view = views.get(gpu[0]) if gpu is not None else None
        if gpu is None or view is None:
            continue
        holders = view.holders.get(gpu[1], ())
        if holders and _namespaces_of(fleet, holders) <= namespaces:
            shown.append(process)
    return shown


def _namespaces_of(fleet: Fleet, uids: Iterable[str]) -> set[str]:
    """Return the namespaces of pods; an unknown pod counts as one of a namespace that does not exist."""
    pods = fleet.ownership.pods
    return {pods[uid].namespace if uid in pods else "\0" for uid in uids}
