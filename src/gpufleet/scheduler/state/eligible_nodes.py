"""Find the nodes that admit a pod, such as each member of a gang.

Pods with the same requirements share one result until a node changes. If every member is pinned to its own node, an
index by label and by name finds the few candidates, so not every node is checked for every member.
"""

from collections.abc import Iterable, Mapping

from gpufleet.kubernetes.objects import Node, NodeSelectorTerm, Pod, PodSpec
from gpufleet.scheduler.state.nodes import admits

_NAME = ""
"""The index key for node names; no label has an empty key."""


class EligibleNodes:
    """The names of the nodes that admit a pod, kept until a node changes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._index: _LabelIndex | None = None
        self._known: dict[object, frozenset[str]] = {}

    def changed(self) -> None:
        """Forget all results: a node has changed."""
        self._index = None
        self._known.clear()

    def of(self, pod: Pod) -> frozenset[str]:
        """Return the names of the nodes that admit the pod; equal pods share one set."""
        spec = pod.spec
        kind = frozenset(spec.node_selector.items()), spec.affinity, spec.tolerations
        found = self._known.get(kind)
        if found is None:
            if self._index is None:
                self._index = _LabelIndex(self._nodes.values())
            candidates = self._index.candidates(spec)
            found = frozenset(node.metadata.name for node in candidates if admits(node, pod))
            self._known[kind] = found
        return found


class _LabelIndex:
    """Nodes by label and by name, indexed on first use."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._all = list(nodes)
        self._by: dict[str, dict[str, list[Node]]] = {}

    def candidates(self, spec: PodSpec) -> list[Node]:
        """Return the nodes that may admit the pod: a superset of those that do."""
        for key, value in spec.node_selector.items():
            return self._with(key, (value,))
        affinity = spec.affinity.node_affinity if spec.affinity else None
        if affinity is None or affinity.required is None:
            return self._all
        return [node for term in affinity.required.node_selector_terms for node in self._of_term(term)]

    def _of_term(self, term: NodeSelectorTerm) -> list[Node]:
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
