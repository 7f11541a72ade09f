"""Match nodes against a pod's required node affinity, by kube-scheduler's rules.

Terms are alternatives. Within a term, every expression and every field must match; an empty term
matches no node. The only supported field is the node's name.
"""

import re
from collections.abc import Mapping

from gpufleet.kubernetes.objects import Affinity, Node, NodeSelectorRequirement, NodeSelectorTerm


def matches_affinity(node: Node, affinity: Affinity | None) -> bool:
    """Return whether the node matches the required affinity."""
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    return required is None or any(_matches_term(node, term) for term in required.node_selector_terms)


def _matches_term(node: Node, term: NodeSelectorTerm) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(_matches(fields, each) for each in term.match_fields) and all(
        _matches(node.metadata.labels, each) for each in term.match_expressions
    )


def _matches(labels: Mapping[str, str], requirement: NodeSelectorRequirement) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _matches_number(value, requirement)
        case _:
            return False


def _matches_number(value: str | None, requirement: NodeSelectorRequirement) -> bool:
    have, bound = _number(value), _number(requirement.values[0] if len(requirement.values) == 1 else None)
    if have is None or bound is None:
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def _number(text: str | None) -> int | None:
    """Parse a 64-bit integer as Kubernetes does; return None for anything else."""
    if text is None or not re.fullmatch(r"[+-]?[0-9]{1,63}", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
