"""Count the memory that the caches of a client use together.

Users may create many objects, or fill theirs with annotations. Watches and lists end with an error before
the objects need more memory than the process has.
"""

import msgspec

from gpufleet.kubernetes.objects import KubeObject

_OBJECT_BYTES = 1000
"""Memory of an object beside its text, in the cache and in what listeners derive from it."""


class CacheBudget:
    """The memory that caches may use together; `used` is an estimate in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0


def memory_of(item: KubeObject) -> int:
    """Estimate the memory that a cached object uses."""
    return _OBJECT_BYTES + len(msgspec.json.encode(item))
