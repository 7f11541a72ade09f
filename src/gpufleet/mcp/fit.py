"""Answer whether GPU requests fit into what is free now.

Pure. It counts free GPUs per node, as `/api/nodes` shows them: nodes that are ready and neither cordoned nor faulty. For a
claim that exists, `explain` also considers health, islands, shares and quotas.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def free_by_node(nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the free GPUs of each node that can take work."""
    return {
        node["name"]: node["gpuTotal"] - node["gpuAllocated"]
        for node in nodes
        if node["ready"] and not node["cordoned"] and node["state"] not in ("faulty", "unknown")
    }


def fit(nodes: Sequence[Mapping[str, Any]], gpus: int, copies: int) -> dict[str, Any]:
    """Place `copies` requests of `gpus` GPUs on one node each, the fullest node that fits first."""
    free = free_by_node(nodes)
    before = dict(free)
    placements: list[str] = []
    for _ in range(copies):
        candidates = [name for name, count in free.items() if count >= gpus]
        if not candidates:
            break
        chosen = min(candidates, key=lambda name: (free[name], name))
        free[chosen] -= gpus
        placements.append(chosen)
    return {
        "fits": len(placements) == copies,
        "placed": len(placements),
        "requested": copies,
        "placements": placements,
        "free_gpus": sum(before.values()),
        "largest_free_on_one_node": max(before.values(), default=0),
        "nodes_that_fit_one": sum(count >= gpus for count in before.values()),
    }
