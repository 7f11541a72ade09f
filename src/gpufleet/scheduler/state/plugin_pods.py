"""Count the GPUs of pods that a device plugin or KAI serves, so that claims do not get the same GPUs.

Such a pod counts from the moment it is bound. Which GPUs it has is known only when the agent has asked the kubelet.
Until then:

- While the pod starts, any GPU that no claim has may be its, so none of them is given to a claim. The agent names
  the GPUs soon after the kubelet has admitted the pod; it does not wait until the image is pulled.
- A running pod whose GPUs stay unknown (the agent does not read the kubelet, or does not know the device ids)
  counts by number.

KAI names the GPUs of a pod with NvFractions in its annotations. For older fractions of KAI the pod counts with which
KAI keeps the GPU: it requests the GPU from the device plugin.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.gpu_requests import device_request, sharing_of
from gpufleet.kubernetes.nv_fractions import NvFraction, nv_fraction
from gpufleet.kubernetes.objects import Node, Pod
from gpufleet.scheduler.state.indexes import discard

_SLACK = 1e-9
"""Sums of shares are not exact."""


@dataclass(frozen=True, slots=True)
class _PluginPod:
    pod: Pod
    running: bool
    fraction: NvFraction | None


class PluginPods:
    """The bound pods that request GPUs of a device plugin or KAI, by node."""

    def __init__(self) -> None:
        self._pods: dict[str, _PluginPod] = {}
        self._on: dict[str, set[str]] = {}

    def put(self, pod: Pod) -> bool:
        """Store a pod, if it is bound and requests GPUs; return whether it changes what may be allocated."""
        by_claim = pod.status.extended_resource_claim_status is not None  # no device plugin serves it
        if not pod.spec.node_name or pod.finished or by_claim:
            return self.drop(pod)
        uid, running = pod.metadata.uid, pod.status.phase == "Running"
        known = self._pods.get(uid)
        if known is None and not device_request(pod).gpus:
            return False
        now = _PluginPod(pod, running, nv_fraction(pod.metadata.annotations))
        self._pods[uid] = now
        self._on.setdefault(pod.spec.node_name, set()).add(uid)
        return known is None or (known.running, known.fraction) != (now.running, now.fraction)

    def drop(self, pod: Pod) -> bool:
        """Remove a pod; return whether it was known."""
        known = self._pods.pop(pod.metadata.uid, None)
        if known is not None:
            discard(self._on, known.pod.spec.node_name, pod.metadata.uid)
        return known is not None

    def on(self, node: str) -> bool:
        """Return whether the node has such pods."""
        return node in self._on

    def gpus(self, node: Node, report: GpuNodeStatus, occupied: Callable[[int], bool]) -> Collection[int]:
        """Return the GPUs to keep from claims for the pods whose GPUs the report does not name.

        `occupied` returns whether a claim has a GPU. Such GPUs are kept only if the others are not enough, so that
        they are not given away when their claim ends.
        """
        uids = self._on.get(node.metadata.name, ())
        if not uids:
            return ()
        sharing = sharing_of(node.metadata)
        devices = report.status.devices
        named: set[int] = set()
        unnamed, starting = 0.0, False
        for uid in uids:
            known = self._pods[uid]
            request = device_request(known.pod, sharing)
            by_kai = known.fraction.ids(devices) if known.fraction else frozenset()
            named |= by_kai
            missing = request.gpus - len(by_kai | {each.id for each in devices if uid in each.in_use_by})
            if missing > 0:
                unnamed += missing * request.share
                starting = starting or not known.running
        # A GPU of an ended claim is free, though the report may still name its pod.
        others = [
            device
            for device in devices
            if device.id not in named and not any(uid in uids for uid in device.in_use_by)
        ]
        # The highest ids, because claims take the lowest.
        others.sort(key=lambda device: (occupied(device.id), bool(device.in_use_by), -device.id))
        unknown = others if starting else others[: math.ceil(unnamed - _SLACK)]
        return named.union(device.id for device in unknown)
