"""Parse Kubernetes quantities, and add up what a pod requests.

Containers run at the same time and init containers run before them, one after another. An init
container with `restartPolicy: Always` is a sidecar: it keeps running next to everything that
starts after it. A pod's request is the most that it needs at any one time.
"""

import math
import re

from gpufleet.kubernetes.objects import Pod

_FACTORS = {
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
_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)((?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i|)")


def parse_quantity(text: str) -> float:
    """Return a quantity such as `8`, `500m` or `2Gi` as a number; 0 if it is malformed."""
    match = _QUANTITY.fullmatch(text.strip())
    amount = float(match[1] + match[2]) * _FACTORS[match[3]] if match else 0.0
    return amount if math.isfinite(amount) else 0.0


def parse_count(text: str) -> int:
    """Return a quantity of whole things, such as GPUs."""
    return int(parse_quantity(text))


def pod_request(pod: Pod, resource: str) -> float:
    """Return how much of a resource the pod's containers need at one time."""
    sidecars = peak = 0.0
    for container in pod.spec.init_containers:
        amount = parse_quantity(container.resources.requested(resource))
        if container.restart_policy == "Always":
            sidecars += amount
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount)
    running = sum(parse_quantity(each.resources.requested(resource)) for each in pod.spec.containers)
    return max(peak, sidecars + running)
