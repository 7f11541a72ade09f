"""Place all members of a gang, or none.

Members are placed on a copy of the inventory, largest first, so that nothing is allocated when
one of them does not fit. With a label to keep together (a rack, an NVLink domain), the group of
nodes with the fewest free GPUs that takes the whole gang is chosen. If no group does, groups are
filled one after the other, the emptiest first, so that few are used. If members are limited to
different nodes, those with the fewest eligible nodes go first. A member that does not fit goes
first in the next attempt.

Identical members are placed whenever a placement exists. Different members are a packing problem
that is solved by this heuristic: a gang that fits only in another order may have to wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import Exclusivity, Policy, Request
from gpufleet.placement.verdict import Fits, Refused

Places = NDArray[np.intp]

_MOST_ORDERS = 16
"""Orders that are tried for members with different eligible nodes."""


class Room(Protocol):
    """What else nodes must have for a member, such as CPU; members are numbers."""

    def has(self, node: str, member: int) -> bool:
        """Return whether the node has room for the member."""

    def take(self, node: str, member: int) -> None:
        """Count the member as placed on the node."""

    def copy(self) -> "Room":
        """Return an independent copy."""


@dataclass(frozen=True)
class GangFits:
    """The placement of each member, in the order of the requests.

    `group` is the value of the label if one group of nodes takes the whole gang.
    """

    members: tuple[Fits, ...]
    group: str | None = None


@dataclass(frozen=True)
class GangRefused:
    """The number of members that would fit, and why the next one does not.

    `closed` counts the nodes that are not eligible for that member, which is number `stuck`.
    """

    size: int
    placed: int
    why: Refused
    closed: int = 0
    stuck: int = 0
    label: str = ""
    """The label of which all members need the same value; only one group of nodes was looked at."""

    @property
    def summary(self) -> str:
        """Return one line that explains the refusal."""
        nodes = "1 node is" if self.closed == 1 else f"{self.closed} nodes are"
        closed = f"{nodes} excluded by its node selector, affinity or taints" if self.closed else ""
        refusal = self.why.summary if self.why.counts or not closed else ""
        return f"{self.placed} of {self.size} members fit; next member: {'; '.join(filter(None, (refusal, closed)))}"


@dataclass(frozen=True)
class _Attempt:
    """The members placed; if not all, the reason and the members that did not fit."""

    members: dict[int, Fits]
    why: Refused | None = None
    stuck: list[int] = field(default_factory=list)


def place_gang(
    inventory: Inventory,
    requests: Sequence[Request],
    prefer_label: str | None = None,
    eligible_nodes: Sequence[frozenset[str]] | None = None,
    room: Room | None = None,
    *,
    label_required: bool = False,
) -> GangFits | GangRefused:
    """Place all requests together, each on its eligible nodes and with room if given. Nothing is allocated.

    With `label_required` all of them must be on nodes with the same value of the label.
    """
    total, choice = len(inventory.nodes), list[Places | None]([None] * len(requests))
    if eligible_nodes:
        inventory, choice = _narrowed(inventory, eligible_nodes)
    order = order_of(requests, eligible_nodes)
    if prefer_label is not None:
        groups = _groups(inventory, prefer_label)
        need = sum(request.gpu_milli for request in requests)
        for free, group, places in groups:
            if free < need:
                continue
            attempt = _place_all(inventory, requests, choice, order, [places], room)
            if attempt.why is None:
                return GangFits(_in_order(attempt.members), group)
        if label_required:
            # Explain the refusal by the group with the most free GPUs.
            most = groups[-1][2] if groups else np.empty(0, np.intp)
            attempt = _place_all(inventory, requests, choice, order, [most], room)
            assert attempt.why is not None
            return GangRefused(
                len(requests), len(attempt.members), attempt.why, 0, attempt.stuck[0], prefer_label
            )
        areas = [places for _, _, places in reversed(groups)]
        attempt = _place_all(inventory, requests, choice, order, [*areas, None], room)
        if attempt.why is None:
            return GangFits(_in_order(attempt.members))
    attempt = _place_in_any_order(inventory, requests, choice, order, room)
    if attempt.why is not None and (easier := _emptiest_gpus_first(requests)) is not None:
        retried = _place_in_any_order(inventory, easier, choice, order, room)
        if retried.why is None:
            members = {at: replace(fits, request=requests[at]) for at, fits in retried.members.items()}
            attempt = _Attempt(members)
    if attempt.why is not None:
        closed = (
            total - len(eligible_nodes[attempt.stuck[0]].intersection(inventory.nodes))
            if eligible_nodes
            else 0
        )
        return GangRefused(len(requests), len(attempt.members), attempt.why, closed, attempt.stuck[0])
    return GangFits(_in_order(attempt.members))


def order_of(
    requests: Sequence[Request], eligible_nodes: Sequence[frozenset[str]] | None = None
) -> list[int]:
    """Order members by the number of eligible nodes, then by size; identical members stay together."""
    kinds = {nodes: at for at, nodes in enumerate(eligible_nodes or ())}

    def rank(at: int) -> tuple[int, int, int, int]:
        nodes = eligible_nodes[at] if eligible_nodes else frozenset[str]()
        return len(nodes), kinds.get(nodes, 0), -requests[at].gpu_milli, -requests[at].cpu_milli

    return sorted(range(len(requests)), key=rank)


def _narrowed(
    inventory: Inventory, eligible_nodes: Sequence[frozenset[str]]
) -> tuple[Inventory, list[Places | None]]:
    """Return the inventory of nodes eligible for any member, and each member's positions (None for all)."""
    kinds = set(eligible_nodes)
    eligible = frozenset(inventory.nodes).intersection(frozenset[str]().union(*kinds))
    if len(eligible) < len(inventory.nodes):
        inventory = inventory.copy()
        for name in [name for name in inventory.nodes if name not in eligible]:
            inventory.remove_node(name)
    places = {
        kind: None if kind >= eligible else inventory.index().places(kind.intersection(eligible))[0]
        for kind in kinds
    }
    return inventory, [places[kind] for kind in eligible_nodes]


def _place_in_any_order(
    inventory: Inventory,
    requests: Sequence[Request],
    choice: Sequence[Places | None],
    order: Sequence[int],
    room: Room | None,
) -> _Attempt:
    """Place all members; if their eligible nodes differ, try several orders."""
    attempt = best = _place_all(inventory, requests, choice, order, [None], room)
    for _ in range(_MOST_ORDERS if len(set(map(id, choice))) > 1 else 0):
        if attempt.why is None:
            return attempt
        stuck = set(attempt.stuck)
        order = [*attempt.stuck, *(at for at in order if at not in stuck)]
        attempt = _place_all(inventory, requests, choice, order, [None], room)
        best = max(best, attempt, key=lambda one: len(one.members))
    return best


def _place_all(
    inventory: Inventory,
    requests: Sequence[Request],
    choice: Sequence[Places | None],
    order: Sequence[int],
    areas: Sequence[Places | None],
    room: Room | None,
) -> _Attempt:
    """Place on a copy, one area after the other. Stop at the first member that fits in none."""
    trial, room = inventory.copy(), room.copy() if room is not None else None
    members: dict[int, Fits] = {}
    for (request, _), alike in groupby(order, key=lambda at: (requests[at], id(choice[at]))):
        group = list(alike)
        waiting, own = group, choice[group[0]]
        why: Refused | None = None
        for area in areas:
            there = _intersection(own, area)
            if room is None:
                found, why = _take_alike(trial, request, len(waiting), there)
            else:
                found, why = _take_with_room(trial, request, waiting, there, room)
            members.update(zip(waiting, found, strict=False))
            waiting = waiting[len(found) :]
        if why is not None:
            return _Attempt(members, why, group)
    return _Attempt(members)


def _intersection(some: Places | None, others: Places | None) -> Places | None:
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


def _take_with_room(
    trial: Inventory, request: Request, members: Sequence[int], area: Places | None, room: Room
) -> tuple[list[Fits], Refused | None]:
    index = trial.index()
    places = np.arange(len(index.names)) if area is None else area
    found: list[Fits] = []
    for member in members:
        while isinstance(verdict := trial.place(request, places), Fits):
            place = index.place_of(verdict.node)
            if room.has(verdict.node, member):
                break
            places = places[places != place]
        else:
            return found, verdict
        room.take(verdict.node, member)
        trial.take(request, np.array([place]))
        found.append(verdict)
    return found, None


def _groups(inventory: Inventory, label: str) -> list[tuple[int, str, Places]]:
    """Return the groups of nodes by the label's value with their free GPU capacity, the fullest first."""
    index = inventory.index()
    free = inventory.states.nodes(index.state).free.sum(axis=1)
    groups = [(int(free[places].sum()), value, places) for value, places in index.groups(label).items()]
    return sorted(groups, key=lambda group: group[:2])


def _emptiest_gpus_first(requests: Sequence[Request]) -> list[Request] | None:
    """Return the requests with shared GPUs spread out, which fits the most members of several shares each."""
    if not any(request.exclusivity is Exclusivity.SHARED and request.count > 1 for request in requests):
        return None
    return [
        replace(request, policy=Policy.SPREAD) if request.exclusivity is Exclusivity.SHARED else request
        for request in requests
    ]


def _in_order(members: dict[int, Fits]) -> tuple[Fits, ...]:
    return tuple(members[at] for at in range(len(members)))
