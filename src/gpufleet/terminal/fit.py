"""Find the nodes that have a number of GPUs free together, from the map of all GPUs.

It considers free, healthy, schedulable GPUs and their islands. It ignores taints, quotas, CPU and memory: `explain`
answers for a real claim.
"""

from dataclasses import asdict, dataclass
from typing import Literal

from gpufleet.client import types
from gpufleet.model.gpu_models import accepted_models
from gpufleet.terminal.columns import Column, short_model

Together = Literal["any", "contiguous", "island"]


@dataclass(frozen=True)
class Capacity:
    """The free GPUs of a node."""

    node: str
    model: str
    free: int
    contiguous: int
    """Longest run of free GPUs with adjacent indexes."""
    island: int
    """Most free GPUs on one island."""

    def largest(self, together: Together) -> int:
        """Return how many GPUs one pod could get."""
        return self.free if together == "any" else int(asdict(self)[together])


COLUMNS = (
    Column("NODE", lambda node: node.node),
    Column("MODEL", lambda node: node.model, text=short_model),
    Column("FREE", lambda node: node.free),
    Column("CONTIGUOUS", lambda node: node.contiguous),
    Column("ISLAND", lambda node: node.island),
)


def capacities(found: types.GpuMap, model: str = "") -> list[Capacity]:
    """Return the free GPUs of each node, of `model` in any spelling."""
    accepted = accepted_models(model)
    nodes, first = [], 0
    for place, node in enumerate(found.nodes):
        end = first + found.counts[place]
        name = found.models[found.model_of[place]] if found.models else ""
        if not model or name in accepted:
            nodes.append(_capacity(found, node, name, range(first, end)))
        first = end
    return nodes


def _capacity(found: types.GpuMap, node: str, model: str, gpus: range) -> Capacity:
    free = [gpu for gpu in gpus if found.marks[gpu] == "f"]
    run = longest = 0
    last = None
    islands: dict[str, int] = {}
    for gpu in free:
        index = found.indexes[gpu]
        run = run + 1 if last is not None and index == last + 1 else 1
        longest, last = max(longest, run), index
        if found.islands[gpu] != "-":
            islands[found.islands[gpu]] = islands.get(found.islands[gpu], 0) + 1
    return Capacity(node, model, len(free), longest, max(islands.values(), default=0))


def fitting(nodes: list[Capacity], count: int, together: Together) -> list[Capacity]:
    """Return the nodes with `count` GPUs together, the fullest first, so that whole nodes stay free."""
    fit = [node for node in nodes if node.largest(together) >= count]
    return sorted(fit, key=lambda node: (node.free, node.node))


def sentence(nodes: list[Capacity], count: int, together: Together, model: str) -> str:
    """Return in words where `count` GPUs fit, or how close the best node comes."""
    what = f"{model + ' ' if model else ''}GPU{'s' if count != 1 else ''}"
    how = {"any": "", "contiguous": " with adjacent indexes", "island": " of one island"}[together]
    fit = fitting(nodes, count, together)
    if fit:
        has = "1 node has" if len(fit) == 1 else f"{len(fit)} nodes have"
        return f"{has} {count} or more free {what}{how}."
    if not nodes:
        return f"There are no nodes with {model} GPUs." if model else "There are no nodes with GPUs."
    best = max(nodes, key=lambda node: node.largest(together))
    most = best.largest(together)
    return f"No node has {count} free {what}{how}; the most is {most}{f' on {best.node}' if most else ''}."
