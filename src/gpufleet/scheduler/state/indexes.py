"""Indexes of objects by other keys than their own."""

from typing import TypeVar

from gpufleet.kubernetes.objects import Pod

Key = tuple[str, str]
"""Namespace and name."""

_Index = TypeVar("_Index")


def discard(index: dict[_Index, set[str]], key: _Index, name: str) -> None:
    """Remove a name from one set of an index, and the set if it is empty."""
    names = index.get(key)
    if names is not None:
        names.discard(name)
        if not names:
            del index[key]


def by_age(pod: Pod) -> tuple[str, str]:
    """Return the sort key of pods, oldest first."""
    return str(pod.metadata.creation_timestamp), pod.metadata.name
