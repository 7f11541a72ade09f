"""Required node affinity, by kube-scheduler's rules."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from msgspec import convert

from gpufleet.kubernetes.objects import Affinity, Node, Pod
from gpufleet.scheduler.state.affinity import matches_affinity
from gpufleet.scheduler.state.eligible_nodes import EligibleNodes
from gpufleet.scheduler.state.nodes import admits

LABELS = {"zone": "east", "cores": "64", "odd": "64k", "empty": ""}
NODE = convert({"metadata": {"name": "n1", "labels": LABELS}}, Node)


def eligible(nodes: list[Node], pods: list[Pod]) -> list[frozenset[str]]:
    known = EligibleNodes({node.metadata.name: node for node in nodes})
    return [known.of(pod) for pod in pods]


def wants(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def name(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "met"),
    [
        (label("zone", "In", "west", "east"), True),
        (label("zone", "In", "west"), False),
        (label("rack", "In", "west"), False),
        (label("empty", "In", ""), True),
        (label("rack", "In", ""), False),
        (label("zone", "NotIn", "west"), True),
        (label("zone", "NotIn", "west", "east"), False),
        (label("rack", "NotIn", "west"), True),
        (label("zone", "Exists"), True),
        (label("rack", "Exists"), False),
        (label("rack", "DoesNotExist"), True),
        (label("empty", "DoesNotExist"), False),
        (label("cores", "Gt", "63"), True),
        (label("cores", "Gt", "64"), False),
        (label("cores", "Gt", "-64"), True),
        (label("cores", "Lt", "65"), True),
        (label("cores", "Lt", "64"), False),
        (label("rack", "Gt", "1"), False),
        (label("rack", "Lt", "1"), False),
        (label("odd", "Gt", "1"), False),
        (label("cores", "Gt", "many"), False),
        (label("cores", "Lt", "9" * 30), False),
        (label("cores", "Gt", "1", "2"), False),
        (label("zone", "Near", "east"), False),
        (name("In", "n1"), True),
        (name("In", "n2"), False),
        (name("NotIn", "n2"), True),
        ({**label("zone", "In", "east"), **name("In", "n1")}, True),
        ({**label("zone", "In", "west"), **name("In", "n1")}, False),
        ({**label("zone", "In", "east"), **name("In", "n2")}, False),
        ({}, False),
    ],
)
def test_a_node_matches_a_term_by_kubernetes_rules(term: dict[str, Any], met: bool) -> None:
    assert matches_affinity(NODE, convert(wants(term), Affinity)) is met
    assert matches_affinity(NODE, convert(wants({}, label("zone", "In", "nowhere"), term), Affinity)) is met


def test_terms_are_alternatives_and_an_empty_list_matches_no_node() -> None:
    assert matches_affinity(NODE, convert(wants(name("In", "n2"), label("zone", "In", "east")), Affinity))
    assert not matches_affinity(NODE, convert(wants(), Affinity))


def test_a_pod_without_affinity_matches_every_node() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    unbound: list[Any] = [None, {}, {"nodeAffinity": preferred}, {"podAffinity": {}}]
    for affinity in unbound:
        pod = convert({"spec": {"affinity": affinity}}, Pod)
        assert admits(NODE, pod)


def test_every_pod_is_checked_with_its_own_affinity_selector_and_tolerations() -> None:
    tainted = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    nodes = [
        NODE,
        convert({"metadata": {"name": "n2", "labels": {"zone": "west"}}, "spec": {"taints": tainted}}, Node),
        convert({"metadata": {"name": "n3", "labels": {"zone": "west"}}}, Node),
    ]
    specs: list[dict[str, Any]] = [
        {},
        {"nodeSelector": {"zone": "west"}},
        {"nodeSelector": {"zone": "west"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}]},
        {"affinity": wants(label("zone", "NotIn", "west"))},
        {},
    ]
    found = eligible(nodes, [convert({"spec": spec}, Pod) for spec in specs])
    assert [sorted(names) for names in found] == [["n1", "n3"], ["n3"], ["n2", "n3"], ["n1"], ["n1", "n3"]]
    assert found[4] is found[0]


_KEYS = st.sampled_from(["zone", "rack", "metadata.name"])
_VALUES = st.sampled_from(["1", "2", "n1", "n2"])
_REQUIREMENTS = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    _KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    st.lists(_VALUES, max_size=2),
)
_TERMS = st.builds(
    lambda expressions, fields: {"matchExpressions": expressions, "matchFields": fields},
    st.lists(_REQUIREMENTS, max_size=2),
    st.lists(_REQUIREMENTS, max_size=1),
)
_SPECS = st.builds(
    lambda selector, terms: {"nodeSelector": selector, "affinity": terms and wants(*terms)},
    st.dictionaries(_KEYS, _VALUES, max_size=2),
    st.one_of(st.none(), st.lists(_TERMS, min_size=1, max_size=3)),
)


@settings(max_examples=200, deadline=None)
@example(labels=[{"metadata.name": "n1"}], specs=[{"nodeSelector": {"metadata.name": "n1"}}])
@given(labels=st.lists(st.dictionaries(_KEYS, _VALUES), max_size=5), specs=st.lists(_SPECS, max_size=4))
def test_the_index_finds_the_same_nodes_as_checking_every_node(
    labels: list[dict[str, str]], specs: list[dict[str, Any]]
) -> None:
    nodes = [
        convert({"metadata": {"name": f"n{at}", "labels": each}}, Node) for at, each in enumerate(labels)
    ]
    pods = [convert({"spec": spec}, Pod) for spec in specs]
    asked = [{node.metadata.name for node in nodes if admits(node, pod)} for pod in pods]
    assert eligible(nodes, pods) == asked


def test_the_affinity_of_a_bound_pod_takes_no_memory() -> None:
    waiting = convert({"spec": {"affinity": wants(name("In", "n1"))}}, Pod)
    assert waiting.spec.affinity is not None
    bound = convert({"spec": {"nodeName": "n1", "affinity": wants(name("In", "n1"))}}, Pod)
    assert bound.spec.affinity is None
