"""CPU and memory of nodes, counted for the stand-alone loop, which has no kube-scheduler to do it."""

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import parse_quantity, pod_request
from gpufleet.scheduler.state.ledger import Ledger

RESOURCES = ("cpu", "memory")


def total_request(pod: Pod, resource: str) -> float:
    """Return the request of the pod's containers plus the pod's overhead."""
    return pod_request(pod, resource) + parse_quantity(pod.spec.overhead.get(resource, ""))


class FreeResources:
    """The free CPU and memory of nodes; a node that reports none has no limit."""

    def __init__(self, left: dict[str, dict[str, float]]) -> None:
        self._left = left

    def fits(self, node: str, pod: Pod) -> bool:
        """Return whether the pod's requests fit on the node."""
        left = self._left.get(node, {})
        return all(total_request(pod, resource) <= left[resource] + 1e-9 for resource in left)

    def take(self, node: str, pod: Pod) -> None:
        """Subtract the requests of a pod that is bound to the node or will be."""
        left = self._left.get(node, {})
        for resource in left:
            left[resource] -= total_request(pod, resource)

    def free_cpu(self, node: str) -> float:
        """Return the free CPU of the node."""
        return self._left.get(node, {}).get("cpu", float("inf"))


def free_resources(ledger: Ledger) -> FreeResources:
    """Return what the bound pods leave free."""
    left = {
        name: {
            resource: parse_quantity(node.status.allocatable[resource])
            for resource in RESOURCES
            if resource in node.status.allocatable
        }
        for name, node in ledger.nodes.items()
    }
    free = FreeResources(left)
    for pod in ledger.pods.values():
        if pod.spec.node_name and not pod.finished:
            free.take(pod.spec.node_name, pod)
    return free
