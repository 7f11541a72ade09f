"""What operators ask of a repair: acknowledge, silence, resume. They write the spec of the GpuRepair, and nothing else."""

from datetime import datetime, timedelta
from typing import Any

from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import AlreadyExists, ObjectNotFound
from gpufleet.kubernetes.client.patch import merge
from gpufleet.kubernetes.client.resources import GPU_REPAIRS
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairSpec
from gpufleet.kubernetes.objects import ObjectMeta, OwnerReference

Spec = dict[str, Any]


def acknowledged(by: str, episode: int, now: datetime) -> Spec:
    """Return the change that stops alerts about the present fault and findings of a node."""
    return {"acknowledgedBy": by, "acknowledgedEpisode": episode, "acknowledgedAt": _time(now)}


def silenced(seconds: float, now: datetime) -> Spec:
    """Return the change that stops all alerts about a node for a while; 0 ends that."""
    return {"silencedUntil": _time(now + timedelta(seconds=seconds)) if seconds else None}


def resumed(now: datetime) -> Spec:
    """Return the change that has a node in phase Manual tested and returned."""
    return {"resumedAt": _time(now)}


async def change_repair(client: KubeClient, node: str, node_uid: str, spec: Spec) -> GpuRepair:
    """Change what operators say about a node, also about one that never had a fault."""
    change = merge({"spec": spec})
    try:
        return await client.patch(GPU_REPAIRS, node, change)
    except ObjectNotFound:
        await _create(client, node, node_uid)
        return await client.patch(GPU_REPAIRS, node, change)


async def _create(client: KubeClient, node: str, node_uid: str) -> None:
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=node_uid)
    new = GpuRepair(
        metadata=ObjectMeta(name=node, owner_references=(owner,)), spec=RepairSpec(node_name=node)
    )
    try:
        await client.create(GPU_REPAIRS, new)
    except AlreadyExists:
        return


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
