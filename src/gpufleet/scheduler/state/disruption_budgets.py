"""PodDisruptionBudgets: which running pods may be evicted now."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpufleet.kubernetes.objects import LabelSelector, Pod, PodDisruptionBudget

Key = tuple[str, str]


class DisruptionBudgets:
    """The budgets by namespace and name."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, PodDisruptionBudget]] = {}

    def put(self, budget: PodDisruptionBudget) -> None:
        """Store a budget."""
        self._by_namespace.setdefault(budget.metadata.namespace, {})[budget.metadata.name] = budget

    def drop(self, budget: PodDisruptionBudget) -> None:
        """Remove a budget."""
        self._by_namespace.get(budget.metadata.namespace, {}).pop(budget.metadata.name, None)

    def allow(self, pods: Iterable[Pod]) -> bool:
        """Return whether all of these pods may be evicted together."""
        used: Counter[Key] = Counter()
        for pod in pods:
            for name, budget in self._by_namespace.get(pod.metadata.namespace, {}).items():
                if selects(budget.spec.selector, pod.metadata.labels):
                    used[pod.metadata.namespace, name] += 1
        return all(
            number <= self._by_namespace[namespace][name].status.disruptions_allowed
            for (namespace, name), number in used.items()
        )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether the selector matches; no selector matches no pod, an empty one matches all."""
    if selector is None or any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for each in selector.match_expressions:
        value = labels.get(each.key)
        match each.operator:
            case "In":
                met = value is not None and value in each.values
            case "NotIn":
                met = value is None or value not in each.values
            case "Exists":
                met = value is not None
            case _:
                met = value is None
        if not met:
            return False
    return True
