"""Place all members of a gang, or none.

Members are placed largest first on a copy of the cluster, so that nothing is held when one
of them does not fit. With a label to keep together (a rack, an NVLink domain) the group of
nodes with the least free GPUs that takes the whole gang is chosen; if none does, groups are
filled one after the other, the emptiest first, so that few are used.

Members that are alike are placed if and only if they fit at all. For members that differ it
is a packing problem, solved largest first: a gang that fits only in an unlucky order may wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.cluster import Cluster
from gpufleet.placement.request import Exclusivity, Policy, Request
from gpufleet.placement.verdict import Fits, Refused

Places = NDArray[np.intp]


@dataclass(frozen=True)
class GangFits:
    """Where each member goes, in the order of the requests; `group` is the label's value if one group takes all."""

    members: tuple[Fits, ...]
    group: str | None = None


@dataclass(frozen=True)
class GangRefused:
    """How many members would fit, and why the next does not."""

    size: int
    placed: int
    why: Refused

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.placed} of {self.size} members fit; for the next: {self.why.summary}"


def place_gang(
    cluster: Cluster, requests: Sequence[Request], prefer_label: str | None = None
) -> GangFits | GangRefused:
    """Place every request at once; nothing is allocated."""
    order = sorted(range(len(requests)), key=lambda at: (-requests[at].gpu_milli, -requests[at].cpu_milli))
    if prefer_label is not None:
        groups = _groups(cluster, prefer_label)
        need = sum(request.gpu_milli for request in requests)
        for free, group, places in groups:
            if free < need:
                continue
            members, why = _place_all(cluster, requests, order, [places])
            if why is None:
                return GangFits(_in_order(members, requests), group)
        areas = [places for _, _, places in reversed(groups)]
        members, why = _place_all(cluster, requests, order, [*areas, None])
        if why is None:
            return GangFits(_in_order(members, requests))
    members, why = _place_all(cluster, requests, order, [None])
    if why is not None and (easier := _emptiest_gpus_first(requests)) is not None:
        retried, still = _place_all(cluster, easier, order, [None])
        if still is None:
            members = {at: replace(fits, request=requests[at]) for at, fits in retried.items()}
            why = None
    if why is not None:
        return GangRefused(len(requests), len(members), why)
    return GangFits(_in_order(members, requests))


def _place_all(
    cluster: Cluster, requests: Sequence[Request], order: Sequence[int], areas: Sequence[Places | None]
) -> tuple[dict[int, Fits], Refused | None]:
    """Place on a copy, in one area after the other; stops at the first member that fits in none."""
    trial = cluster.copy()
    members: dict[int, Fits] = {}
    for request, alike in groupby(order, key=requests.__getitem__):
        waiting = list(alike)
        why: Refused | None = None
        for area in areas:
            found, why = _take_alike(trial, request, len(waiting), area)
            members.update(zip(waiting, found, strict=False))
            waiting = waiting[len(found) :]
        if why is not None:
            return members, why
    return members, None


def _take_alike(
    trial: Cluster, request: Request, number: int, area: Places | None
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


def _groups(cluster: Cluster, label: str) -> list[tuple[int, str, Places]]:
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


def _in_order(members: dict[int, Fits], requests: Sequence[Request]) -> tuple[Fits, ...]:
    return tuple(members[at] for at in range(len(requests)))
