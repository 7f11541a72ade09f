"""Which nodes are open to each of many pods, as to the members of a gang.

Pods that are alike in what they require share one answer. Members may be pinned to a node each:
a label's values, and nodes' names, lead to the few nodes that can be meant at all, so that
not every node is looked at for every member.
"""

from collections.abc import Iterable, Sequence

from gpufleet.kubernetes.objects import Node, NodeSelectorTerm, Pod, PodSpec
from gpufleet.scheduler.state.nodes import lets_in

_NAME = ""
"""Stands for the name of a node among the keys of labels; no label has an empty key."""


def open_to(nodes: Iterable[Node], pods: Sequence[Pod]) -> list[frozenset[str]]:
    """The names of the nodes that let each of the pods in; pods that are alike share one answer."""
    roster = _Roster(nodes)
    known: dict[object, frozenset[str]] = {}
    found = []
    for pod in pods:
        spec = pod.spec
        kind = frozenset(spec.node_selector.items()), spec.affinity, spec.tolerations
        if kind not in known:
            some = roster.candidates(spec)
            known[kind] = frozenset(node.metadata.name for node in some if lets_in(node, pod))
        found.append(known[kind])
    return found


class _Roster:
    """Nodes by their labels, each label looked through once it is asked for."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._all = list(nodes)
        self._by: dict[str, dict[str, list[Node]]] = {}

    def candidates(self, spec: PodSpec) -> list[Node]:
        """All nodes that can let the pod in, and others."""
        for key, value in spec.node_selector.items():
            return self._with(key, (value,))
        affinity = spec.affinity.node_affinity if spec.affinity else None
        if affinity is None or affinity.required is None:
            return self._all
        return [node for term in affinity.required.node_selector_terms for node in self._meant(term)]

    def _meant(self, term: NodeSelectorTerm) -> list[Node]:
        for field in term.match_fields:
            if field.operator == "In" and field.key == "metadata.name":
                return self._with(_NAME, field.values)
        for label in term.match_expressions:
            if label.operator == "In":
                return self._with(label.key, label.values)
        return self._all

    def _with(self, key: str, values: Iterable[str]) -> list[Node]:
        if key not in self._by:
            found: dict[str, list[Node]] = {}
            for node in self._all:
                meta = node.metadata
                value = meta.name if key == _NAME else meta.labels.get(key)
                if value is not None:
                    found.setdefault(value, []).append(node)
            self._by[key] = found
        return [node for value in values for node in self._by[key].get(value, ())]
