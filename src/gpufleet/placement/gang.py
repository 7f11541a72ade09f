"""Place all members of a gang, or none.

Members are placed largest first on a copy of the cluster, so that nothing is held when one
of them does not fit. With a label to keep together (a rack, an NVLink domain) the group of
nodes with the least free GPUs that takes the whole gang is chosen; if none does, groups are
filled one after the other, the emptiest first, so that few are used. Where members may go to
different nodes, those with the smallest choice come first, and whoever does not fit comes
before the others the next time.

Members that are alike are placed if and only if they fit at all. For members that differ it
is a packing problem, solved in these orders: a gang that fits only in an unlucky one may wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import Exclusivity, Policy, Request
from gpufleet.placement.verdict import Fits, Refused

Places = NDArray[np.intp]

_MOST_ORDERS = 16
"""So many orders are tried for members that may go to different nodes."""


@dataclass(frozen=True)
class GangFits:
    """Where each member goes, in the order of the requests; `group` is the label's value if one group takes all."""

    members: tuple[Fits, ...]
    group: str | None = None


@dataclass(frozen=True)
class GangRefused:
    """How many members would fit, why the next does not, and how many nodes are not open to it."""

    size: int
    placed: int
    why: Refused
    closed: int = 0

    @property
    def summary(self) -> str:
        """One line for people."""
        nodes = "1 node is" if self.closed == 1 else f"{self.closed} nodes are"
        shut = f"{nodes} closed to it by its node selector, its affinity or taints" if self.closed else ""
        told = "; ".join(filter(None, (self.why.summary if self.why.counts or not shut else "", shut)))
        return f"{self.placed} of {self.size} members fit; for the next: {told}"


@dataclass(frozen=True)
class _Attempt:
    """Who got a place; and if not all did, why and for whom there was none."""

    members: dict[int, Fits]
    why: Refused | None = None
    stuck: list[int] = field(default_factory=list)


def place_gang(
    cluster: Inventory,
    requests: Sequence[Request],
    prefer_label: str | None = None,
    open_to: Sequence[frozenset[str]] | None = None,
) -> GangFits | GangRefused:
    """Place every request at once, each on nodes that are open to it if that is given; nothing is allocated."""
    total, choice = len(cluster.nodes), list[Places | None]([None] * len(requests))
    if open_to:
        cluster, choice = _narrowed(cluster, open_to)
    order = order_of(requests, open_to)
    if prefer_label is not None:
        groups = _groups(cluster, prefer_label)
        need = sum(request.gpu_milli for request in requests)
        for free, group, places in groups:
            if free < need:
                continue
            attempt = _place_all(cluster, requests, choice, order, [places])
            if attempt.why is None:
                return GangFits(_in_order(attempt.members), group)
        areas = [places for _, _, places in reversed(groups)]
        attempt = _place_all(cluster, requests, choice, order, [*areas, None])
        if attempt.why is None:
            return GangFits(_in_order(attempt.members))
    attempt = _place_anyhow(cluster, requests, choice, order)
    if attempt.why is not None and (easier := _emptiest_gpus_first(requests)) is not None:
        retried = _place_anyhow(cluster, easier, choice, order)
        if retried.why is None:
            members = {at: replace(fits, request=requests[at]) for at, fits in retried.members.items()}
            attempt = _Attempt(members)
    if attempt.why is not None:
        closed = total - len(open_to[attempt.stuck[0]].intersection(cluster.nodes)) if open_to else 0
        return GangRefused(len(requests), len(attempt.members), attempt.why, closed)
    return GangFits(_in_order(attempt.members))


def order_of(requests: Sequence[Request], open_to: Sequence[frozenset[str]] | None = None) -> list[int]:
    """The members with the smallest choice of nodes first, then the largest; those that are alike together."""
    kinds = {nodes: at for at, nodes in enumerate(open_to or ())}

    def rank(at: int) -> tuple[int, int, int, int]:
        nodes = open_to[at] if open_to else frozenset[str]()
        return len(nodes), kinds.get(nodes, 0), -requests[at].gpu_milli, -requests[at].cpu_milli

    return sorted(range(len(requests)), key=rank)


def _narrowed(cluster: Inventory, open_to: Sequence[frozenset[str]]) -> tuple[Inventory, list[Places | None]]:
    """The cluster with only the nodes that are open to somebody, and the places open to each (None for all)."""
    kinds = set(open_to)
    somebody = frozenset(cluster.nodes).intersection(frozenset[str]().union(*kinds))
    if len(somebody) < len(cluster.nodes):
        cluster = cluster.copy()
        for name in [name for name in cluster.nodes if name not in somebody]:
            cluster.remove_node(name)
    places = {
        kind: None if kind >= somebody else cluster.directory().places(kind.intersection(somebody))[0]
        for kind in kinds
    }
    return cluster, [places[kind] for kind in open_to]


def _place_anyhow(
    cluster: Inventory, requests: Sequence[Request], choice: Sequence[Places | None], order: Sequence[int]
) -> _Attempt:
    """Place all; where they have different choices, in several orders."""
    attempt = best = _place_all(cluster, requests, choice, order, [None])
    for _ in range(_MOST_ORDERS if any(places is not None for places in choice) else 0):
        if attempt.why is None:
            return attempt
        stuck = set(attempt.stuck)
        order = [*attempt.stuck, *(at for at in order if at not in stuck)]
        attempt = _place_all(cluster, requests, choice, order, [None])
        best = max(best, attempt, key=lambda one: len(one.members))
    return best


def _place_all(
    cluster: Inventory,
    requests: Sequence[Request],
    choice: Sequence[Places | None],
    order: Sequence[int],
    areas: Sequence[Places | None],
) -> _Attempt:
    """Place on a copy, in one area after the other; stops at the first member that fits in none."""
    trial = cluster.copy()
    members: dict[int, Fits] = {}
    for (request, _), alike in groupby(order, key=lambda at: (requests[at], id(choice[at]))):
        group = list(alike)
        waiting, own = group, choice[group[0]]
        why: Refused | None = None
        for area in areas:
            found, why = _take_alike(trial, request, len(waiting), _both(own, area))
            members.update(zip(waiting, found, strict=False))
            waiting = waiting[len(found) :]
        if why is not None:
            return _Attempt(members, why, group)
    return _Attempt(members)


def _both(some: Places | None, others: Places | None) -> Places | None:
    if some is None or others is None:
        return others if some is None else some
    return np.intersect1d(some, others)


def _take_alike(
    trial: Inventory, request: Request, number: int, area: Places | None
) -> tuple[list[Fits], Refused | None]:
    if area is None and not request.match_labels:
        return trial.take_alike(request, number)
    found: list[Fits] = []
    while len(found) < number:
        verdict = trial.take(request, area)
        if isinstance(verdict, Refused):
            return found, verdict
        found.append(verdict)
    return found, None


def _groups(cluster: Inventory, label: str) -> list[tuple[int, str, Places]]:
    """The groups of nodes by the label's value with their free GPU capacity, the fullest first."""
    directory = cluster.directory()
    free = cluster.states.nodes(directory.state).free.sum(axis=1)
    groups = [(int(free[places].sum()), value, places) for value, places in directory.groups(label).items()]
    return sorted(groups, key=lambda group: group[:2])


def _emptiest_gpus_first(requests: Sequence[Request]) -> list[Request] | None:
    """Shares of several GPUs each: taking the emptiest GPUs first fits the most members, though it opens more."""
    if not any(request.exclusivity is Exclusivity.SHARED and request.count > 1 for request in requests):
        return None
    return [
        replace(request, policy=Policy.SPREAD) if request.exclusivity is Exclusivity.SHARED else request
        for request in requests
    ]


def _in_order(members: dict[int, Fits]) -> tuple[Fits, ...]:
    return tuple(members[at] for at in range(len(members)))
