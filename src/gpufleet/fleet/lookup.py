"""Find one workload by uid, running or ended, and the GPUs that it holds or held."""

from typing import NamedTuple

from gpufleet.errors import NotFound
from gpufleet.fleet.archive import WorkloadRecord
from gpufleet.fleet.hierarchy import ObjectTree
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workload_summary import Workload
from gpufleet.model.reading import GpuRef


class AllocatedGpu(NamedTuple):
    """A GPU that a workload holds or held from `start` to `end` (0: still), in Unix seconds."""

    gpu: GpuRef
    start: float
    end: float


def find_workload(fleet: Fleet, uid: str) -> WorkloadRecord:
    """Return the workload with that uid. Raise NotFound if the fleet does not know it."""
    workload = fleet.workloads().get(uid)
    if workload is not None:
        return WorkloadRecord(workload, fleet.object_tree(uid), fleet.gpu_models(workload.counted))
    ended = fleet.ended().get(uid)
    if ended is None:
        raise NotFound(f"Workload with UID '{uid[:64]}' not found")
    return ended


def controllers(tree: ObjectTree) -> list[str]:
    """Return the uids of the objects between a workload and its pods, such as ReplicaSets."""
    found = [child for child in tree.children if child.kind != "Pod"]
    return [uid for child in found for uid in (child.uid, *controllers(child))]


def workload_uid(fleet: Fleet, name: str) -> str:
    """Return the uid of the workload that `name` refers to: its own uid, a pod's uid, or `slurm:JOBID`."""
    uid = name
    if name.startswith("slurm:"):
        uid = _slurm_pod(fleet, name.removeprefix("slurm:")) or name
    if uid in fleet.ownership.pods or uid in fleet.ownership.owners:
        uid = fleet.ownership.root_of(uid)
    return find_workload(fleet, uid).workload.uid


def _slurm_pod(fleet: Fleet, job: str) -> str | None:
    pods = fleet.ownership.pods.values()
    return next((pod.uid for pod in pods if pod.alias == job and pod.source == "slurm"), None)


def allocated_gpus(fleet: Fleet, workload: Workload) -> list[AllocatedGpu]:
    """Return the known GPUs of a workload's pods, ordered by node and index."""
    return sorted(
        AllocatedGpu(GpuRef(pod.node, index), pod.bound, pod.ended)
        for pod in workload.counted
        for index in fleet.gpus_of(pod)
    )
