"""One workload by its uid, living or ended, with what both have in common."""

from typing import NamedTuple

from gpufleet.errors import NotFound
from gpufleet.fleet.archive import WorkloadRecord
from gpufleet.fleet.hierarchy import ObjectTree
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workload_summary import Workload
from gpufleet.model.reading import GpuRef


class AllocatedGpu(NamedTuple):
    """A GPU that a workload holds or held, from when to when (0: still), in Unix seconds."""

    gpu: GpuRef
    start: float
    end: float


def find_workload(fleet: Fleet, uid: str) -> WorkloadRecord:
    """The workload of that uid; NotFound if the fleet does not know it."""
    workload = fleet.workloads().get(uid)
    if workload is not None:
        return WorkloadRecord(workload, fleet.tree(uid), fleet.models(workload.counted))
    ended = fleet.ended().get(uid)
    if ended is None:
        raise NotFound(f"Workload with UID '{uid[:64]}' not found")
    return ended


def controllers(tree: ObjectTree) -> list[str]:
    """The uids of what stands between a workload and its pods, such as the ReplicaSets of a Deployment."""
    found = [branch for branch in tree.children if branch.kind != "Pod"]
    return [uid for branch in found for uid in (branch.uid, *controllers(branch))]


def workload_uid(fleet: Fleet, name: str) -> str:
    """The uid of the workload that `name` means: its own uid, a pod's uid, or `slurm:JOBID`."""
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
    """The GPUs of a workload's pods, where they are known, in order of node and index."""
    held = [
        AllocatedGpu(GpuRef(pod.node, index), pod.bound, pod.ended)
        for pod in workload.counted
        for index in fleet.gpus_of(pod)
    ]
    return sorted(held)
