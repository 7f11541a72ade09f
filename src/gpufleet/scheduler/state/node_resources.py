"""CPU and memory of nodes and pods, for the loop that has no kube-scheduler to count them.

A pod needs what its containers need at one time, and its overhead.
"""

import re

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.pod_requests import needed
from gpufleet.scheduler.state.ledger import Ledger

_UNITS = {
    **{
        "": 1.0,
        "n": 1e-9,
        "u": 1e-6,
        "m": 1e-3,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "P": 1e15,
        "E": 1e18,
    },
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60},
}
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?\d+)?)([numkMGTPE]?i?)")
RESOURCES = ("cpu", "memory")


def amount(text: str) -> float:
    """A Kubernetes quantity as a number; 0 if it is none."""
    match = _QUANTITY.fullmatch(text.strip())
    return float(match[1]) * _UNITS.get(match[2], 0.0) if match else 0.0


def needs(pod: Pod, resource: str) -> float:
    """How much of a resource the pod needs at one time."""
    return needed(pod, resource, amount) + amount(pod.spec.overhead.get(resource, ""))


class FreeResources:
    """What is left of the nodes' CPU and memory; a node that says nothing has enough."""

    def __init__(self, left: dict[str, dict[str, float]]) -> None:
        self._left = left

    def fits(self, node: str, pod: Pod) -> bool:
        """Whether the pod's requests are left on the node."""
        left = self._left.get(node, {})
        return all(needs(pod, resource) <= left[resource] + 1e-9 for resource in left)

    def take(self, node: str, pod: Pod) -> None:
        """Count a pod that is about to be bound."""
        left = self._left.get(node, {})
        for resource in left:
            left[resource] -= needs(pod, resource)

    def free_cpu(self, node: str) -> float:
        """CPU that is left."""
        return self._left.get(node, {}).get("cpu", float("inf"))


def room_on(ledger: Ledger) -> FreeResources:
    """The room as the pods on the nodes leave it."""
    left = {
        name: {
            resource: amount(node.status.allocatable[resource])
            for resource in RESOURCES
            if resource in node.status.allocatable
        }
        for name, node in ledger.nodes.items()
    }
    room = FreeResources(left)
    for pod in ledger.pods.values():
        if pod.spec.node_name and not pod.finished:
            room.take(pod.spec.node_name, pod)
    return room
