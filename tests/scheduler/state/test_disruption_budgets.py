"""Which pods may be evicted under their disruption budgets."""

from typing import Any

import pytest
from msgspec import convert

from gpufleet.kubernetes.objects import Pod, PodDisruptionBudget
from gpufleet.scheduler.state.disruption_budgets import DisruptionBudgets


def pods(number: int, namespace: str = "ns", **labels: str) -> list[Pod]:
    meta = {"namespace": namespace, "labels": labels}
    return [convert({"metadata": meta}, Pod) for _ in range(number)]


def budget(allowed: int, selector: dict[str, Any] | None) -> DisruptionBudgets:
    body = {
        "metadata": {"name": "b", "namespace": "ns"},
        "spec": {"selector": selector} if selector is not None else {},
        "status": {"disruptionsAllowed": allowed},
    }
    budgets = DisruptionBudgets()
    budgets.put(convert(body, PodDisruptionBudget))
    return budgets


def test_all_pods_together_must_be_allowed() -> None:
    budgets = budget(1, {"matchLabels": {"app": "a"}})
    assert budgets.allow(pods(1, app="a"))
    assert not budgets.allow(pods(2, app="a"))
    assert budgets.allow([*pods(1, app="a"), *pods(5, app="b"), *pods(5, namespace="other", app="a")])


@pytest.mark.parametrize(
    ("selector", "protected"),
    [
        (None, False),
        ({}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_selectors_match_by_kubernetes_rules(selector: dict[str, Any] | None, protected: bool) -> None:
    assert budget(0, selector).allow(pods(1, app="a")) is not protected


def test_a_deleted_budget_protects_nothing() -> None:
    budgets = budget(0, {})
    budgets.drop(convert({"metadata": {"name": "b", "namespace": "ns"}}, PodDisruptionBudget))
    assert budgets.allow(pods(1))
