"""Whether a node meets a pod's required node affinity, as kube-scheduler reads it.

Terms are alternatives; within a term every expression and every field has to hold, and a term
without any holds nowhere. Of a node's fields there is only its name.
"""

import re
from collections.abc import Mapping

from gpufleet.kubernetes.objects import Affinity, Node, NodeSelectorRequirement, NodeSelectorTerm


def meets(node: Node, affinity: Affinity | None) -> bool:
    """Whether the node is one that the affinity requires."""
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    return required is None or any(_meets_term(node, term) for term in required.node_selector_terms)


def _meets_term(node: Node, term: NodeSelectorTerm) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(_meets(fields, each) for each in term.match_fields) and all(
        _meets(node.metadata.labels, each) for each in term.match_expressions
    )


def _meets(labels: Mapping[str, str], wanted: NodeSelectorRequirement) -> bool:
    value = labels.get(wanted.key)
    match wanted.operator:
        case "In":
            return value is not None and value in wanted.values
        case "NotIn":
            return value is None or value not in wanted.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, wanted)
        case _:
            return False


def _compares(value: str | None, wanted: NodeSelectorRequirement) -> bool:
    have, bound = _number(value), _number(wanted.values[0] if len(wanted.values) == 1 else None)
    if have is None or bound is None:
        return False
    return have > bound if wanted.operator == "Gt" else have < bound


def _number(text: str | None) -> int | None:
    """A whole number of 64 bits, in the only spelling that Kubernetes reads."""
    if text is None or not re.fullmatch(r"[+-]?[0-9]{1,63}", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
