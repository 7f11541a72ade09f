"""What nodes are grouped by: source, cluster, and the labels of their place in the network."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

RACK = "topology.kubernetes.io/rack"
TOPOLOGY_LEVELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/block",
    RACK,
    "nvidia.com/gpu.clique",
)
"""Labels of the levels of a network, the widest first."""


class NodeGroup(msgspec.Struct):
    """One way to group the nodes of a map."""

    values: list[str]
    of: list[int]
    """The index in `values` for each node."""


def rack_of(labels: Mapping[str, str]) -> str:
    """Return the rack of a node; empty if no label names it."""
    return labels.get(RACK, "")


def group_of(values: Iterable[str]) -> NodeGroup:
    """Return the group of each node, given its value."""
    places: dict[str, int] = {}
    of = [places.setdefault(value, len(places)) for value in values]
    return NodeGroup(list(places), of)


def topology_groups(labels: Sequence[Mapping[str, str]]) -> dict[str, NodeGroup]:
    """Return the groups by each level of the network that at least one node has a label for."""
    return {
        level: group_of(each.get(level, "") for each in labels)
        for level in TOPOLOGY_LEVELS
        if any(level in each for each in labels)
    }
