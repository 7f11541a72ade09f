"""The extender protocol as kube-scheduler speaks it.

Upstream's types have no JSON names, so keys are Go's field names and are read in any case on
their side. We read any case, too: first as kube-scheduler writes them, which is the fast way,
then with the keys put right. Pods inside are ordinary Kubernetes objects.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.objects import KubeObject, Pod


class NodeList(msgspec.Struct, frozen=True):
    """Whole nodes, from a kube-scheduler without `nodeCacheCapable`; of them only the names are read."""

    items: list[KubeObject] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True):
    """What filter and prioritize are asked."""

    pod: Pod = msgspec.field(name="Pod")
    nodes: NodeList | None = msgspec.field(default=None, name="Nodes")
    node_names: list[str] | None = msgspec.field(default=None, name="NodeNames")

    @property
    def names(self) -> list[str]:
        """The candidates."""
        if self.node_names is not None:
            return self.node_names
        items = (self.nodes.items or []) if self.nodes else []
        return [node.metadata.name for node in items]


class FilterResult(msgspec.Struct, frozen=True):
    """Which nodes are left, and why the others are not."""

    nodes: None = msgspec.field(default=None, name="Nodes")
    node_names: list[str] = msgspec.field(default_factory=list, name="NodeNames")
    failed: Mapping[str, str] = msgspec.field(default_factory=dict, name="FailedNodes")
    unresolvable: Mapping[str, str] = msgspec.field(default_factory=dict, name="FailedAndUnresolvableNodes")
    error: str = msgspec.field(default="", name="Error")


class HostPriority(msgspec.Struct, frozen=True):
    """The score of one node, 0 to 10."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindingArgs(msgspec.Struct, frozen=True):
    """Which pod to bind to which node."""

    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindingResult(msgspec.Struct, frozen=True):
    """Nothing if the pod is bound."""

    error: str = msgspec.field(default="", name="Error")


class MetaPod(msgspec.Struct, frozen=True):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """Who would have to leave a node."""

    pods: list[MetaPod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class Victims(msgspec.Struct, frozen=True):
    """The same, with whole pods."""

    pods: list[Pod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionArgs(msgspec.Struct, frozen=True):
    """Whom kube-scheduler would remove for the pod, by node."""

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, Victims | None] | None = msgspec.field(default=None, name="NodeNameToVictims")
    meta_victims: dict[str, MetaVictims | None] | None = msgspec.field(
        default=None, name="NodeNameToMetaVictims"
    )

    def by_node(self) -> dict[str, tuple[list[str], int]]:
        """The victims' UIDs and the disruption budgets they violate, by node."""
        found: dict[str, tuple[list[str], int]] = {}
        for node, whole in (self.victims or {}).items():
            if whole is not None:
                found[node] = [pod.metadata.uid for pod in whole.pods or []], whole.violations
        for node, meta in (self.meta_victims or {}).items():
            if meta is not None:
                found[node] = [pod.uid for pod in meta.pods or []], meta.violations
        return found


class PreemptionResult(msgspec.Struct, frozen=True):
    """Who has to leave, by node; nodes that are not in it can't be helped."""

    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


T = TypeVar("T", ExtenderArgs, BindingArgs, PreemptionArgs)

_SPELLED = {
    name.lower(): name
    for name in (
        *("Pod", "Nodes", "NodeNames", "PodName", "PodNamespace", "PodUID", "Node"),
        *("NodeNameToVictims", "NodeNameToMetaVictims", "Pods", "NumPDBViolations", "UID"),
    )
}
_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (ExtenderArgs, BindingArgs, PreemptionArgs)
}


def decode(kind: type[T], body: bytes) -> T:
    """Read what kube-scheduler sent; InvalidRequest says what is wrong with it."""
    try:
        found: T = _decoders[kind].decode(body)
        if not isinstance(found, ExtenderArgs) or found.names or b'"NodeNames"' in body:
            return found
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    try:
        return msgspec.convert(_respelled(msgspec.json.decode(body)), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is no {kind.__name__}: {error}") from None


def encode(answer: Any) -> bytes:
    """The answer as JSON."""
    return msgspec.json.encode(answer)


def _respelled(body: Any) -> Any:
    """Keys in kube-scheduler's spelling, at the top and among the victims; pods are left alone."""
    if not isinstance(body, dict):
        return body
    top = {_SPELLED.get(key.lower(), key): value for key, value in body.items()}
    for key in ("NodeNameToVictims", "NodeNameToMetaVictims"):
        if isinstance(top.get(key), dict):
            top[key] = {node: _respelled_victims(entry, key) for node, entry in top[key].items()}
    return top


def _respelled_victims(entry: Any, key: str) -> Any:
    if not isinstance(entry, dict):
        return entry
    found = {_SPELLED.get(name.lower(), name): value for name, value in entry.items()}
    if key == "NodeNameToMetaVictims" and isinstance(found.get("Pods"), list):
        found["Pods"] = [
            {_SPELLED.get(name.lower(), name): value for name, value in pod.items()}
            for pod in found["Pods"]
            if isinstance(pod, dict)
        ]
    return found
