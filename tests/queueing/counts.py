"""Count a snapshot again the slow way: every node on its own, without rows, buckets or totals."""

from collections.abc import Hashable

import numpy as np

from gpufleet.placement.node_shape import Occupancy
from gpufleet.placement.pick import Pick, pick
from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import MOST_GPUS, WHOLE
from gpufleet.queueing.needs import Amounts, Need, labels_exclude
from gpufleet.queueing.snapshot import NodeSpec, Snapshot


def members(need: Need, labels: Hashable, node: int, occupancy: Occupancy, free: Amounts) -> int:
    """Return how many members of a need fit on a node, placed one after the other."""
    if need.nodes is not None and not need.nodes >> node & 1:
        return 0
    if labels_exclude(labels, need.admission) is not Reason.NONE:
        return 0
    left, number = list(free), 0
    while isinstance(found := pick(need.request, occupancy), Pick):
        if (
            any(ask and have < ask for have, ask in zip(left, need.amounts, strict=False))
            or number == MOST_GPUS
        ):
            break
        number += 1
        if not found.gpus and not any(need.amounts):
            return MOST_GPUS
        left = [have - ask for have, ask in zip(left, need.amounts, strict=False)] + left[len(need.amounts) :]
        occupancy = Occupancy(
            occupancy.shape, *occupancy.without(found.gpus, need.request.milli_per_gpu, found.instances)
        )
    return number


def occupancy_of(snapshot: Snapshot, node: int) -> Occupancy:
    """Return the occupancy that follows from the holders of a node."""
    shape = snapshot.tables.shapes[snapshot.shapes[node]]
    occupancy = Occupancy(shape, shape.idle, shape.idle_mig)
    for _, place in snapshot.on[node]:
        occupancy = Occupancy(shape, *occupancy.without(place.gpus, place.milli, place.instances))
    return occupancy


def check(snapshot: Snapshot, specs: list[NodeSpec]) -> None:
    """Compare occupancies, free resources, buckets, totals, domains and views with a full count."""
    tables = snapshot.tables
    counts = np.zeros((len(snapshot), len(tables.needs)), np.int64)
    for node, spec in enumerate(specs):
        occupancy = occupancy_of(snapshot, node)
        known = tables.occupancies[snapshot.occupancy[node]]
        assert (known.free, known.mig) == (occupancy.free, occupancy.mig)
        free = list(spec.free)
        for _, place in snapshot.on[node]:
            free = [have - took for have, took in zip(free, place.amounts, strict=True)]
        assert snapshot.free[node] == tuple(free)
        assert snapshot.buckets[snapshot.states[node]] >> node & 1
        for number, need in enumerate(tables.needs):
            counts[node, number] = members(need, spec.node_class, node, occupancy, snapshot.free[node])
    assert sum(nodes.bit_count() for nodes in snapshot.buckets.values()) == len(snapshot)
    assert np.array_equal(np.array(snapshot.counts).reshape(counts.shape), counts)
    assert np.array_equal(snapshot.total, counts.sum(axis=0))
    for kind, domains in enumerate(snapshot.domains):
        expected = [
            sum(
                (counts[node] for node, domain in enumerate(domains.of) if domain == number),
                np.zeros_like(counts[0]),
            )
            for number in range(len(domains.values))
        ]
        assert np.array_equal(snapshot.domain_counts(kind), np.array(expected).reshape(-1, counts.shape[1]))
    for view in snapshot.views.values():
        seen = counts.copy()
        for node in range(len(snapshot)):
            found = view.on(snapshot, node) if view.follows or node in view.counts else None
            if found is not None:
                occupancy = tables.occupancies[found[0]]
                for number, need in enumerate(tables.needs):
                    seen[node, number] = members(need, specs[node].node_class, node, occupancy, found[1])
        assert np.array_equal(view.total, seen.sum(axis=0))


def booked(snapshot: Snapshot) -> dict[tuple[int, int], int]:
    """Return how many thousandths of each GPU the holders have."""
    found: dict[tuple[int, int], int] = {}
    for holder in snapshot.holders.values():
        for place in holder.places:
            for gpu in place.gpus:
                found[place.node, gpu] = found.get((place.node, gpu), 0) + place.milli
    assert all(milli <= WHOLE for milli in found.values()), "two units share a GPU"
    return found
