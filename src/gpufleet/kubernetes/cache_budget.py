"""Count the memory that the caches of a client use together.

Users may create many objects, or fill theirs with annotations. Watches and lists end with an error before
the objects need more memory than the process has.

The objects of one namespace may be limited to a part, so that its users cannot keep the objects of others out. What
is beyond that is left out of the caches. This is for processes that only show objects: a scheduler that does not
see a pod would give its GPUs to another.
"""

import math
from collections import Counter

import msgspec

from gpufleet.kubernetes.objects import KubeObject

_OBJECT_BYTES = 1000
"""Memory of an object beside its text, in the cache and in what listeners derive from it."""


class CacheBudget:
    """The memory that caches may use together; `used` is an estimate in bytes."""

    def __init__(self, max_bytes: int, namespace_share: float = 1.0) -> None:
        self.max_bytes = max_bytes
        self.max_namespace_bytes = max_bytes * namespace_share if namespace_share < 1 else math.inf
        self.used = 0
        self._of_namespace: Counter[str] = Counter()

    def admits(self, namespace: str, growth: int) -> bool:
        """Return whether the objects of a namespace may grow by so many bytes."""
        return not namespace or self._of_namespace[namespace] + growth <= self.max_namespace_bytes

    def add(self, namespace: str, growth: int) -> None:
        """Count so many bytes more, or less, for a namespace; empty for objects without one."""
        self.used += growth
        self._of_namespace[namespace] += growth
        if not self._of_namespace[namespace]:
            del self._of_namespace[namespace]


def memory_of(item: KubeObject) -> int:
    """Estimate the memory that a cached object uses."""
    return _OBJECT_BYTES + len(msgspec.json.encode(item))
