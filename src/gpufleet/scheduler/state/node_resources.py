"""CPU, memory, pods and other resources of nodes, apart from GPUs that claims allocate.

kube-scheduler counts them too, but only for the pod that it schedules now. A gang is planned before
kube-scheduler sees its members, and a gang that kube-scheduler can't bind would hold its GPUs in vain.
"""

from collections.abc import Callable, Iterable, Mapping

from gpufleet.kubernetes.extended_resources import NAMES as COUNTED_AS_GPUS
from gpufleet.kubernetes.objects import Node, Pod
from gpufleet.kubernetes.quantities import parse_quantity, pod_request

PODS = "pods"
_SLACK = 1e-9
"""Sums of fractions of a CPU are not exact."""


def requested(pod: Pod) -> dict[str, float]:
    """Return what the pod requests of each resource, with its overhead; it takes the place of one pod.

    The extended resources of claims are left out: the inventory counts their GPUs.
    """
    spec = pod.spec
    names = {
        name
        for container in (*spec.containers, *spec.init_containers)
        for amounts in (container.resources.requests, container.resources.limits)
        for name in amounts
        if name not in COUNTED_AS_GPUS
    }
    total = {name: pod_request(pod, name) for name in names}
    for name, amount in spec.overhead.items():
        total[name] = total.get(name, 0.0) + parse_quantity(amount)
    total[PODS] = 1.0
    return total


class NodeResources:
    """What the bound pods leave free on each node; a resource that a node does not report has no limit."""

    def __init__(self, nodes: Mapping[str, Node], pods_on: Callable[[str], Iterable[Pod]]) -> None:
        self._nodes = nodes
        self._pods_on = pods_on
        self._free: dict[str, dict[str, float]] = {}

    def changed(self, node: str) -> None:
        """Forget a node: it or its pods have changed."""
        self._free.pop(node, None)

    def free(self, node: str) -> Mapping[str, float]:
        """Return what is free on a node."""
        free = self._free.get(node)
        if free is None:
            known = self._nodes.get(node)
            allocatable = known.status.allocatable if known else {}
            free = {name: parse_quantity(amount) for name, amount in allocatable.items()}
            for pod in self._pods_on(node):
                _add(free, requested(pod), -1.0)
            self._free[node] = free
        return free


class Room:
    """The free resources of nodes while pods are placed one after the other; the nodes are not changed.

    `leaving` are nodes and pods whose resources there count as free.
    """

    def __init__(self, resources: NodeResources, leaving: Iterable[tuple[str, Pod]] = ()) -> None:
        self._resources = resources
        self._left: dict[str, dict[str, float]] = {}
        self._requested: dict[str, dict[str, float]] = {}
        for node, pod in leaving:
            _add(self._of(node), requested(pod), 1.0)

    def shortage(self, node: str, pod: Pod) -> str:
        """Return the first resource of which the node has too little for the pod, or an empty string."""
        left = self._left.get(node) or self._resources.free(node)
        for name, amount in self.request(pod).items():
            if name in left and amount > left[name] + _SLACK:
                return name
        return ""

    def take(self, node: str, pod: Pod) -> None:
        """Subtract the requests of a pod that is placed on the node."""
        _add(self._of(node), self.request(pod), -1.0)

    def free_cpu(self, node: str) -> float:
        """Return the free CPU of the node."""
        return self._of(node).get("cpu", float("inf"))

    def copy(self) -> "Room":
        """Return an independent copy."""
        twin = Room(self._resources)
        twin._left = {node: dict(left) for node, left in self._left.items()}
        twin._requested = self._requested
        return twin

    def _of(self, node: str) -> dict[str, float]:
        if node not in self._left:
            self._left[node] = dict(self._resources.free(node))
        return self._left[node]

    def request(self, pod: Pod) -> dict[str, float]:
        """Return what the pod requests."""
        uid = pod.metadata.uid
        found = self._requested.get(uid)
        if found is None:
            found = self._requested[uid] = requested(pod)
        return found


def _add(left: dict[str, float], amounts: Mapping[str, float], sign: float) -> None:
    for name, amount in amounts.items():
        if name in left:
            left[name] += sign * amount
