"""What a pod's containers need together, by Kubernetes' own rule.

Containers run side by side, init containers one after another before them, and an init container
that restarts Always is a sidecar that stays beside all that come after it. What counts is the
most that is needed at one time.
"""

from collections.abc import Callable
from typing import TypeVar

from gpufleet.kubernetes.objects import Pod

Amount = TypeVar("Amount", int, float)


def needed(pod: Pod, resource: str, amount: Callable[[str], Amount]) -> Amount:
    """The most that the containers need of a resource at one time; `amount` reads a quantity.

    Extended resources may be given as limits alone, which then are the requests too.
    """
    sidecars = peak = amount("")
    for container in pod.spec.init_containers:
        asked = amount(container.resources.asked(resource))
        if container.restart_policy == "Always":
            sidecars += asked
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asked)
    together = sum((amount(each.resources.asked(resource)) for each in pod.spec.containers), sidecars)
    return max(peak, together)
