"""Check, like a kubelet, that a node has enough extended resources left for a pod.

A kubelet ignores requests for resources that its node does not have at all. This detects a scheduler that allocates a GPU twice: the second pod fails with `OutOfnvidia.com/gpu`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from e2e.fakenodes.environment import quantity


def shortage(
    pod: Mapping[str, Any], others: Iterable[Mapping[str, Any]], allocatable: Mapping[str, str]
) -> str | None:
    """Return the first extended resource that the node lacks for `pod` beside `others`, or None."""
    requested = extended_requests(pod)
    if not requested:
        return None
    used = [extended_requests(each) for each in others]
    for name, amount in sorted(requested.items()):
        if name not in allocatable:
            continue
        taken = sum(each.get(name, 0.0) for each in used)
        if taken + amount > quantity(allocatable.get(name, "0")):
            return name
    return None


def extended_requests(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return the requests of resources with a domain in their names.

    Containers add up; the largest init container counts if it requests more.
    """
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in _container_requests(container).items():
            total[name] = total.get(name, 0.0) + amount
    for container in pod["spec"].get("initContainers", []):
        for name, amount in _container_requests(container).items():
            total[name] = max(total.get(name, 0.0), amount)
    return total


def _container_requests(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources", {})
    requests = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: quantity(amount) for name, amount in requests.items() if "/" in name}
