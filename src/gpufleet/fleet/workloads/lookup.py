"""Find one workload by uid, running or ended, and the GPUs that it holds or held."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gpufleet.errors import NotFound
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.archive import WorkloadRecord
from gpufleet.fleet.workloads.hierarchy import ObjectTree, objects_of, subtree, uids_below
from gpufleet.fleet.workloads.summary import Workload, summarise
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.periods import AllocationPeriod
from gpufleet.model.reading import GpuRef
from gpufleet.model.workload import FleetPod, OwnerRef, unread_owner


class AllocatedGpu(NamedTuple):
    """A GPU that a workload holds or held from `start` to `end` (0: still), in Unix seconds."""

    gpu: GpuRef
    start: float
    end: float


def find_workload(fleet: Fleet, uid: str, namespaces: Namespaces = None) -> WorkloadRecord:
    """Return the workload with that uid, or the object below one as if it were a workload.

    Raise NotFound if the fleet does not know it, or if it is not in `namespaces`.
    """
    workload = fleet.workloads().get(uid)
    found: WorkloadRecord | None
    if workload is not None:
        found = WorkloadRecord(workload, fleet.object_tree(uid), fleet.gpu_models(workload.counted))
    else:
        found = fleet.ended().get(uid) or _object_below(fleet, uid) or _ended_object_below(fleet, uid)
    if found is None or not is_visible(namespaces, found.workload.namespace):
        raise NotFound(f"Workload with UID '{uid[:64]}' not found")
    return found if namespaces is None else _limited(found, namespaces)


def _limited(found: WorkloadRecord, namespaces: frozenset[str]) -> WorkloadRecord:
    """Return a workload without pods and objects of other namespaces: anybody may name it as their owner."""
    workload = found.workload
    pods, counted = (
        tuple(pod for pod in each if pod.namespace in namespaces)
        for each in (workload.pods, workload.counted)
    )
    if len(pods) < len(workload.pods):
        workload = msgspec.structs.replace(workload, pods=pods, counted=counted)
    return found._replace(workload=workload, tree=_limited_tree(found.tree, namespaces))


def _limited_tree(tree: ObjectTree, namespaces: frozenset[str]) -> ObjectTree:
    visible = (child for child in tree.children if child.namespace in namespaces)
    return tree._replace(children=tuple(_limited_tree(child, namespaces) for child in visible))


def _object_below(fleet: Fleet, uid: str) -> WorkloadRecord | None:
    """Return an object below an existing workload, such as a pod or a ReplicaSet."""
    ownership = fleet.ownership
    known = uid in ownership.pods or uid in ownership.owners
    if not known or ownership.root_of(uid) not in fleet.workloads():
        return None
    tree = fleet.object_tree(uid)
    pods = [ownership.pods[each] for each in (uid, *uids_below(tree)) if each in ownership.pods]
    live = [pod for pod in pods if not ownership.is_gone(pod.uid)]
    past = [pod for pod in pods if ownership.is_gone(pod.uid)]
    gone = ownership.is_gone(uid)
    queued = ownership.queue_entry_of(uid)
    workload = summarise(uid, ownership.owners.get(uid), None, live, past, gone, queued)
    return WorkloadRecord(workload, tree, fleet.gpu_models(workload.counted))


def _ended_object_below(fleet: Fleet, uid: str) -> WorkloadRecord | None:
    """Return an object below an ended workload, from its pods: its own labels are not kept."""
    record = fleet.ended_with(uid)
    tree = subtree(record.tree, uid) if record is not None else None
    if record is None or tree is None:
        return None
    uids = {uid, *uids_below(tree)}
    pods = [pod for pod in record.workload.pods if pod.uid in uids]
    reference = OwnerRef(uid, tree.kind, tree.name)
    workload = summarise(uid, None, reference, [], pods, gone=True)
    return WorkloadRecord(workload, tree, fleet.gpu_models(workload.counted))


def training_names(tree: ObjectTree) -> list[str]:
    """Return the names under which agents report the numbers of a workload's pods, by their logs.

    An agent cannot tell whether the controller that a pod names is its own, so it adds the pod's namespace.
    """
    names: dict[str, None] = {}
    for found in objects_of(tree):
        for pod in (child for child in found.children if child.kind == "Pod"):
            names[unread_owner(found.uid.partition("@")[0], pod.namespace)] = None
    names |= dict.fromkeys(found.uid for found in objects_of(tree) if found.kind != "Pod")
    names.pop(tree.uid, None)
    return list(names)


def workload_uid(fleet: Fleet, name: str, namespaces: Namespaces = None) -> str:
    """Return the uid of the workload that `name` refers to: its own uid, a pod's uid, or `slurm:JOBID`.

    Raise NotFound if there is none, or if it is not in `namespaces`.
    """
    uid = name
    if name.startswith("slurm:"):
        uid = _slurm_pod(fleet, name.removeprefix("slurm:")) or name
    if uid in fleet.ownership.pods or uid in fleet.ownership.owners:
        uid = fleet.ownership.root_of(uid)
    return find_workload(fleet, uid, namespaces).workload.uid


def _slurm_pod(fleet: Fleet, job: str) -> str | None:
    pods = fleet.ownership.pods.values()
    return next((pod.uid for pod in pods if pod.alias == job and pod.source == "slurm"), None)


def ended_without_gpus(fleet: Fleet, workload: Workload) -> list[FleetPod]:
    """Return the ended pods of a workload whose GPUs the fleet does not know."""
    return [pod for pod in workload.counted if pod.ended and not fleet.gpus_of(pod)]


def allocated_gpus(
    fleet: Fleet, workload: Workload, recorded: Iterable[AllocationPeriod] = ()
) -> list[AllocatedGpu]:
    """Return the known GPUs of a workload's pods, ordered by node and index.

    A source may no longer report the GPUs of a pod that has ended; then those of the `recorded` periods
    count. A pod that filled its node held all of its GPUs.
    """
    by_pod: dict[str, list[AllocatedGpu]] = {}
    for period in recorded:
        held = [
            AllocatedGpu(GpuRef(period.node, index), period.start, period.end) for index in {*period.held}
        ]
        by_pod.setdefault(period.pod_uid, []).extend(held)
    found: list[AllocatedGpu] = []
    for pod in workload.counted:
        indices = fleet.gpus_of(pod)
        if not indices and by_pod.get(pod.uid):
            found += by_pod[pod.uid]
        else:
            indices = indices or _whole_node(fleet, pod)
            found += [AllocatedGpu(GpuRef(pod.node, index), pod.bound, pod.ended) for index in {*indices}]
    return sorted(found)


def _whole_node(fleet: Fleet, pod: FleetPod) -> tuple[int, ...]:
    view = fleet.views().get(pod.node)
    if view is None or pod.share < 1 or not pod.gpus == view.total == len(view.gpus):
        return ()
    return tuple(gpu.index for gpu in view.gpus)
