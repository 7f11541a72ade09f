"""The namespaces that a caller may see: a set, or None for every namespace.

What stands for a namespace outside Kubernetes: the account of a Slurm job, or its user without accounts; the
Compose project of a container; the user of a process on a single machine.
"""

Namespaces = frozenset[str] | None


def is_visible(namespaces: Namespaces, namespace: str) -> bool:
    """Return whether a caller who may see `namespaces` may see what is in `namespace`."""
    return namespaces is None or namespace in namespaces
