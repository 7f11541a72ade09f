"""CPU and memory of nodes and pods, for the loop that has no kube-scheduler to count them.

A pod needs what its containers need at one time, and its overhead.
"""

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import parse_quantity, pod_request
from gpufleet.scheduler.state.ledger import Ledger

RESOURCES = ("cpu", "memory")


def needs(pod: Pod, resource: str) -> float:
    """How much of a resource the pod needs at one time."""
    return pod_request(pod, resource) + parse_quantity(pod.spec.overhead.get(resource, ""))


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
            resource: parse_quantity(node.status.allocatable[resource])
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
