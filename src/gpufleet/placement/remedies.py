"""Find changes that would make a refused request fit.

Each constraint is relaxed by itself, and holders are removed. Every remedy is verified: it is
listed only if the changed request fits now.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import WHOLE, Exclusivity, Request, Topology
from gpufleet.placement.verdict import Fits
from gpufleet.placement.victims import Victim, least_harmful

MOST_NODES = 50
"""Nodes on which the removal of holders is tried, those with the most free GPUs first."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change after which the request fits on `node`. `kind` is stable; `text` is for display."""

    kind: str
    text: str
    node: str
    holders: tuple[str, ...] = ()


def remedies(inventory: Inventory, request: Request, among: Iterable[str] | None = None) -> list[Remedy]:
    """Return ways to make a refused request fit; empty if it fits already or nothing helps."""
    names = None if among is None else list(among)
    if isinstance(inventory.place(request, names), Fits):
        return []
    found = [
        Remedy(kind, f"{text} (then it fits on {verdict.node})", verdict.node)
        for kind, text, changed in relaxed(request)
        if isinstance(verdict := inventory.place(changed, names), Fits)
    ]
    return [*found, *_fewer(inventory, request, names), *_after_holders_end(inventory, request, names)]


def relaxed(request: Request) -> Iterator[tuple[str, str, Request]]:
    """Yield the kind, the text and the request without each of its constraints."""
    if request.topology is Topology.REQUIRED:
        yield "topology", "set topology.mode to Preferred", replace(request, topology=Topology.PREFERRED)
        if request.min_bandwidth_gbps:
            yield (
                "bandwidth",
                f"request less than {request.min_bandwidth_gbps} GB/s between GPUs",
                replace(request, min_bandwidth_gbps=0),
            )
    if request.match_labels:
        yield "selector", "drop the node selector", replace(request, match_labels=frozenset())
    if request.models:
        yield "model", "accept other GPU models", replace(request, models=frozenset())
    if request.cpu_milli:
        yield "cpu", f"ask for less than {request.cpu_milli / 1000:g} CPUs", replace(request, cpu_milli=0)
    if request.memory_mib:
        yield (
            "memory",
            f"ask for less than {request.memory_mib} MiB of memory",
            replace(request, memory_mib=0),
        )
    if request.exclusivity is Exclusivity.EXCLUSIVE and request.count == 1:
        half = replace(request, exclusivity=Exclusivity.SHARED, share_milli=WHOLE // 2)
        yield "share", "share a GPU (exclusivity Shared, share 0.5)", half


def _fewer(inventory: Inventory, request: Request, names: list[str] | None) -> Iterator[Remedy]:
    """Yield the largest count that fits, by binary search: fewer GPUs always fit where more do."""
    low, high = 0, request.count
    fits: Fits | None = None
    while high - low > 1:
        middle = (low + high) // 2
        verdict = inventory.place(replace(request, count=middle), names)
        if isinstance(verdict, Fits):
            low, fits = middle, verdict
        else:
            high = middle
    if fits is not None:
        yield Remedy(
            "count", f"ask for {low} instead of {request.count} (then it fits on {fits.node})", fits.node
        )


def _after_holders_end(inventory: Inventory, request: Request, names: list[str] | None) -> Iterator[Remedy]:
    """Yield the node on which the fewest holders have to end."""
    index = inventory.index()
    places = np.arange(len(index.names)) if names is None else index.places(names)[0]
    places = places[index.matching(request.match_labels)[places]]
    free = inventory.states.nodes(index.state[places]).free.sum(axis=1)
    nearest = places[np.argsort(-free, kind="stable")[:MOST_NODES]]
    names_there = map(index.names.__getitem__, nearest.tolist())
    candidates = ((name, [*map(Victim, inventory.holders_on(name))]) for name in names_there)
    best = least_harmful(inventory, request, candidates, MOST_NODES)
    if best is not None:
        holders = tuple(victim.holder for victim in best.victims)
        text = f"wait for {', '.join(holders)} on {best.node} to end"
        yield Remedy("wait", text, best.node, holders)
