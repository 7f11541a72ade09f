"""What would make a refused request fit: each wish relaxed by itself, and whose leaving would help.

The answers are tried out, not guessed: a remedy is listed only if the request, changed that
way, fits now.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import WHOLE, Exclusivity, Request, Topology
from gpufleet.placement.verdict import Fits
from gpufleet.placement.victims import Victim, least_harmful

MOST_NODES = 50
"""Nodes on which leaving is tried out, those with the most free GPUs first."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change after which the request fits on `node`; `kind` is stable, `text` is for people."""

    kind: str
    text: str
    node: str
    holders: tuple[str, ...] = ()


def remedies(cluster: Inventory, request: Request, among: Iterable[str] | None = None) -> list[Remedy]:
    """Ways to make a refused request fit; none if it fits already or nothing helps."""
    names = None if among is None else list(among)
    if isinstance(cluster.place(request, names), Fits):
        return []
    found = [
        Remedy(kind, f"{text} (then it fits on {verdict.node})", verdict.node)
        for kind, text, changed in _relaxed(request)
        if isinstance(verdict := cluster.place(changed, names), Fits)
    ]
    return [*found, *_fewer(cluster, request, names), *_leaving(cluster, request, names)]


def _relaxed(request: Request) -> Iterator[tuple[str, str, Request]]:
    if request.topology is Topology.REQUIRED:
        yield "topology", "set topology.mode to Preferred", replace(request, topology=Topology.PREFERRED)
        if request.min_bandwidth_gbps:
            yield (
                "bandwidth",
                f"ask for less than {request.min_bandwidth_gbps} GB/s between GPUs",
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


def _fewer(cluster: Inventory, request: Request, names: list[str] | None) -> Iterator[Remedy]:
    """The most GPUs that fit. Fewer always fit where more do, so halving finds it."""
    low, high = 0, request.count
    fits: Fits | None = None
    while high - low > 1:
        middle = (low + high) // 2
        verdict = cluster.place(replace(request, count=middle), names)
        if isinstance(verdict, Fits):
            low, fits = middle, verdict
        else:
            high = middle
    if fits is not None:
        yield Remedy(
            "count", f"ask for {low} instead of {request.count} (then it fits on {fits.node})", fits.node
        )


def _leaving(cluster: Inventory, request: Request, names: list[str] | None) -> Iterator[Remedy]:
    """The node where the fewest holders would have to leave."""
    directory = cluster.directory()
    places = np.arange(len(directory.names)) if names is None else directory.places(names)[0]
    places = places[directory.matching(request.match_labels)[places]]
    free = cluster.states.nodes(directory.state[places]).free.sum(axis=1)
    nearest = places[np.argsort(-free, kind="stable")[:MOST_NODES]]
    names_there = map(directory.names.__getitem__, nearest.tolist())
    candidates = ((name, [*map(Victim, cluster.holders_on(name))]) for name in names_there)
    best = least_harmful(cluster, request, candidates, MOST_NODES)
    if best is not None:
        holders = tuple(victim.holder for victim in best.victims)
        text = f"wait for {', '.join(holders)} on {best.node} to end"
        yield Remedy("wait", text, best.node, holders)
