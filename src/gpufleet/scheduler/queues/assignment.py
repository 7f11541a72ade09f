"""Assign namespaces to GpuQueues, and translate their specs.

A namespace belongs to the oldest queue that names or selects it. Namespaces in which Kueue has a LocalQueue belong to
none: Kueue's quotas apply there. All other namespaces belong to the default queue.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpufleet.kubernetes.crds.gpu_queue import DEFAULT_QUEUE, GpuQueue, NamespaceSelector
from gpufleet.kubernetes.objects import LabelSelector, NodeSelectorRequirement
from gpufleet.model.gpu_models import canonical_model
from gpufleet.queueing.shares.budget import Budget
from gpufleet.queueing.shares.quota import GPU, Quota
from gpufleet.scheduler.state.disruption_budgets import selects


@dataclass
class Assignment:
    """The queue of each namespace, and what is wrong with queues."""

    queues: dict[str, str] = field(default_factory=dict)
    """The queue by namespace."""
    taken: dict[str, dict[str, str]] = field(default_factory=dict)
    """By queue: its namespaces that belong to an older queue, with the name of that."""
    kueue: dict[str, list[str]] = field(default_factory=dict)
    """By queue: its namespaces that Kueue governs."""
    invalid: dict[str, str] = field(default_factory=dict)
    """By queue: why its parent does not count."""

    def of(self, queue: str) -> list[str]:
        """Return the namespaces of a queue, without those that only the default queue has."""
        return sorted(namespace for namespace, owner in self.queues.items() if owner == queue)


def assign(
    queues: Iterable[GpuQueue], namespaces: Mapping[str, Mapping[str, str]], kueue: Collection[str]
) -> Assignment:
    """Assign namespaces, given with their labels, to queues."""
    found = Assignment()
    by_name = {queue.metadata.name: queue for queue in queues}
    for name, queue in sorted(by_name.items(), key=lambda each: _age(each[1])):
        if problem := _parent_problem(queue, by_name):
            found.invalid[name] = problem
        for namespace in _namespaces(queue, namespaces):
            owner = found.queues.setdefault(namespace, name)
            if owner != name:
                found.taken.setdefault(name, {})[namespace] = owner
            elif namespace in kueue:
                found.kueue.setdefault(name, []).append(namespace)
    return found


def quota_of(queue: GpuQueue, assignment: Assignment, *, last: bool) -> Quota:
    """Return the spec as the scheduler computes with it."""
    spec, name = queue.spec, queue.metadata.name
    guaranteed = spec.guaranteed
    return Quota(
        name,
        guaranteed.gpus * GPU if guaranteed else 0,
        {canonical_model(each.model): each.gpus * GPU for each in guaranteed.models} if guaranteed else {},
        spec.limit.gpus * GPU if spec.limit else None,
        spec.weight,
        "" if name in assignment.invalid else spec.parent,
        last,
    )


def budget_of(queue: GpuQueue) -> Budget | None:
    """Return the budget of a queue, if it has one."""
    budget = queue.spec.budget
    if budget is None:
        return None
    total = budget.gpu_hours if budget.gpu_hours is not None else budget.cost
    return Budget(total or 0.0, budget.period, budget.hard, budget.gpu_hours is None)


def _age(queue: GpuQueue) -> tuple[str, str]:
    return str(queue.metadata.creation_timestamp), queue.metadata.name


def _namespaces(queue: GpuQueue, known: Mapping[str, Mapping[str, str]]) -> list[str]:
    spec = queue.spec
    if spec.namespace_selector is None:
        return list(spec.namespaces)
    selector = _label_selector(spec.namespace_selector)
    return [name for name, labels in sorted(known.items()) if selects(selector, labels)]


def _label_selector(selector: NamespaceSelector) -> LabelSelector:
    expressions = (
        NodeSelectorRequirement(each.key, each.operator, each.values) for each in selector.match_expressions
    )
    return LabelSelector(selector.match_labels, tuple(expressions))


def _parent_problem(queue: GpuQueue, by_name: Mapping[str, GpuQueue]) -> str:
    name, parent = queue.metadata.name, queue.spec.parent
    if not parent:
        return ""
    if parent == name:
        return "the queue is its own parent"
    if parent == DEFAULT_QUEUE:
        return f"queue {DEFAULT_QUEUE} can't be a parent"
    if parent not in by_name:
        return f"the parent {parent} does not exist"
    if by_name[parent].spec.parent:
        return f"the parent {parent} has itself a parent: queues have one level of departments"
    return ""
