"""What a kubelet checks before it takes a pod: that the node has the extended resources left that the pod asks for.

A scheduler that hands out a GPU twice is found out here: the second pod fails with `OutOfnvidia.com/gpu`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from e2e.fakenodes.environment import quantity


def shortage(
    pod: Mapping[str, Any], others: Iterable[Mapping[str, Any]], allocatable: Mapping[str, str]
) -> str | None:
    """The first extended resource of which the node has too little for `pod` beside `others`."""
    asked = extended_requests(pod)
    if not asked:
        return None
    used = [extended_requests(each) for each in others]
    for name, amount in sorted(asked.items()):
        taken = sum(each.get(name, 0.0) for each in used)
        if taken + amount > quantity(allocatable.get(name, "0")):
            return name
    return None


def extended_requests(pod: Mapping[str, Any]) -> dict[str, float]:
    """The pod's requests of resources with a domain in their names: the containers together, or the largest init
    container where that is more."""
    together: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in _asked(container).items():
            together[name] = together.get(name, 0.0) + amount
    for container in pod["spec"].get("initContainers", []):
        for name, amount in _asked(container).items():
            together[name] = max(together.get(name, 0.0), amount)
    return together


def _asked(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources", {})
    requests = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: quantity(amount) for name, amount in requests.items() if "/" in name}
