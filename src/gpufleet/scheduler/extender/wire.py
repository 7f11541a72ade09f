"""The JSON types of kube-scheduler's extender protocol.

The Go types have no JSON names, so keys are Go's field names, which Go decodes in any case. So do
we: first as kube-scheduler writes them, which is fast, then with canonical keys. Pods inside are
ordinary Kubernetes objects.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.objects import KubeObject, Pod


class NodeList(msgspec.Struct, frozen=True):
    """Whole nodes, from a kube-scheduler without `nodeCacheCapable`; only the names are read."""

    items: list[KubeObject] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True):
    """The arguments of filter and prioritize."""

    pod: Pod = msgspec.field(name="Pod")
    nodes: NodeList | None = msgspec.field(default=None, name="Nodes")
    node_names: list[str] | None = msgspec.field(default=None, name="NodeNames")

    @property
    def names(self) -> list[str]:
        """Return the names of the candidate nodes."""
        if self.node_names is not None:
            return self.node_names
        items = (self.nodes.items or []) if self.nodes else []
        return [node.metadata.name for node in items]


class FilterResult(msgspec.Struct, frozen=True):
    """The nodes that fit, and why the others don't."""

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
    """The arguments of bind."""

    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindingResult(msgspec.Struct, frozen=True):
    """The result of bind: an empty error if the pod is bound."""

    error: str = msgspec.field(default="", name="Error")


class MetaPod(msgspec.Struct, frozen=True):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on a node, by UID."""

    pods: list[MetaPod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class Victims(msgspec.Struct, frozen=True):
    """The victims on a node, as whole pods."""

    pods: list[Pod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionArgs(msgspec.Struct, frozen=True):
    """The arguments of preempt: the victims that kube-scheduler proposes, by node."""

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, Victims | None] | None = msgspec.field(default=None, name="NodeNameToVictims")
    meta_victims: dict[str, MetaVictims | None] | None = msgspec.field(
        default=None, name="NodeNameToMetaVictims"
    )

    def by_node(self) -> dict[str, tuple[list[str], int]]:
        """Return the victims' UIDs and the number of violated disruption budgets, by node."""
        found: dict[str, tuple[list[str], int]] = {}
        for node, whole in (self.victims or {}).items():
            if whole is not None:
                found[node] = [pod.metadata.uid for pod in whole.pods or []], whole.violations
        for node, meta in (self.meta_victims or {}).items():
            if meta is not None:
                found[node] = [pod.uid for pod in meta.pods or []], meta.violations
        return found


class PreemptionResult(msgspec.Struct, frozen=True):
    """The result of preempt: the victims by node; on other nodes preemption does not help."""

    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


T = TypeVar("T", ExtenderArgs, BindingArgs, PreemptionArgs)

_KEYS = {
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
    """Decode the arguments of a verb; raise InvalidRequest if they are malformed."""
    try:
        found: T = _decoders[kind].decode(body)
        if not isinstance(found, ExtenderArgs) or found.names or b'"NodeNames"' in body:
            return found
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    try:
        return msgspec.convert(_canonical(msgspec.json.decode(body)), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is not a valid {kind.__name__}: {error}") from None


def encode(result: Any) -> bytes:
    """Encode a result."""
    return msgspec.json.encode(result)


def _canonical(body: Any) -> Any:
    """Return the body with canonical keys at the top level and in victims; pods are not changed."""
    if not isinstance(body, dict):
        return body
    top = {_KEYS.get(key.lower(), key): value for key, value in body.items()}
    for key in ("NodeNameToVictims", "NodeNameToMetaVictims"):
        if isinstance(top.get(key), dict):
            top[key] = {node: _canonical_victims(entry, key) for node, entry in top[key].items()}
    return top


def _canonical_victims(entry: Any, key: str) -> Any:
    if not isinstance(entry, dict):
        return entry
    found = {_KEYS.get(name.lower(), name): value for name, value in entry.items()}
    if key == "NodeNameToMetaVictims" and isinstance(found.get("Pods"), list):
        found["Pods"] = [
            {_KEYS.get(name.lower(), name): value for name, value in pod.items()}
            for pod in found["Pods"]
            if isinstance(pod, dict)
        ]
    return found
