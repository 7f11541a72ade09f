"""The pods of the watch, without what the scheduler does not read.

It watches all pods, because they all use CPU and memory of nodes. Most have no claim. Of those it needs
only their requests, phase and node, and until they are bound also what restricts them to nodes.
A selector would not do: pods without a claim may get one while they wait, and finished pods release GPUs.
"""

from dataclasses import replace

from msgspec.structs import force_setattr

from gpufleet.kubernetes import PODS
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.client.resources import Resource
from gpufleet.kubernetes.objects import EMPTY, Pod

_OURS = "gpu.scheduling/"


class WatchedPod(Pod, frozen=True):
    """A pod that drops fields as soon as it is decoded."""

    def __post_init__(self) -> None:
        meta, spec, status = self.metadata, self.spec, self.status
        claimed = bool(meta.annotations.get(CLAIM))
        for name in ("container_statuses", "init_container_statuses"):
            force_setattr(status, name, ())
        # Whether kube-scheduler could place the pod, of those that wait for it.
        waits = claimed and not spec.node_name
        scheduled = (each for each in status.conditions if waits and each.type == "PodScheduled")
        force_setattr(status, "conditions", tuple(scheduled))
        if claimed:
            return
        ours = {name: value for name, value in meta.annotations.items() if name.startswith(_OURS)}
        force_setattr(meta, "annotations", ours or EMPTY)
        force_setattr(meta, "labels", EMPTY)
        if spec.node_name:
            force_setattr(spec, "tolerations", ())
            force_setattr(spec, "node_selector", EMPTY)


WATCHED_PODS: Resource[Pod] = replace(PODS, type=WatchedPod)
