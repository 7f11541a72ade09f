"""Compute the status of GpuQueues: what they have, borrow and wait for, and their conditions."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec

from gpufleet.kubernetes.crds.gpu_queue import (
    BudgetStatus,
    GpuQueue,
    ModelUse,
    QueueCondition,
    QueueStatus,
)
from gpufleet.queueing.shares.budget import BudgetState, period_at
from gpufleet.queueing.shares.quota import GPU
from gpufleet.scheduler.queues.gpu_queues import GpuQueues

STALE_S = 7200.0
"""Seconds after which the accounted use counts as old: an hour is accounted for shortly after its end."""


def status_of(
    queues: GpuQueues,
    queue: GpuQueue,
    waiting: Mapping[str, int],
    use: Mapping[str, float],
    now: datetime,
    problem: str,
) -> QueueStatus:
    """Return the status of a queue; `problem` is why the use can't be read from the server."""
    name = queue.metadata.name
    used = queues.used().get(name, Counter[str]())
    everything, total, inside = sum(use.values()), sum(used.values()), queues.inside_guarantee(name)
    reading = queues.reading
    return QueueStatus(
        namespaces=tuple(queues.assignment.of(name)),
        kueue_namespaces=tuple(sorted(queues.assignment.kueue.get(name, ()))),
        used=total / GPU,
        guaranteed=inside / GPU,
        borrowed=(total - inside) / GPU,
        pending=waiting.get(name, 0) / GPU,
        share=round(use.get(name, 0.0) / everything, 3) if everything else 0.0,
        half_life_seconds=round(queues.half_life),
        models=tuple(ModelUse(model, milli / GPU) for model, milli in sorted(used.items())),
        budget=_budget(queues, name, now),
        accounted_until=datetime.fromtimestamp(reading.until, UTC) if isfinite(reading.until) else None,
        conditions=_with_times(
            (
                _valid(queues, name),
                _namespaces(queues, name),
                _quota_applies(queues, name),
                _use_current(queues, now, problem),
                _within_budget(queues, name),
            ),
            queue.status.conditions,
            now,
        ),
    )


def as_patch(status: QueueStatus, before: QueueStatus) -> dict[str, Any] | None:
    """Return the status as a patch, with None for fields that are gone; None if nothing has changed."""
    if status == before:
        return None
    new = _plain(status)
    return {**dict.fromkeys(_plain(before)), **new}


def _plain(status: QueueStatus) -> dict[str, Any]:
    # Defaults are left out of objects, but a number that has become 0 must be written.
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return {"used": 0, "guaranteed": 0, "borrowed": 0, "pending": 0, "share": 0} | found


def _budget(queues: GpuQueues, name: str, now: datetime) -> BudgetStatus | None:
    budget = queues.budget(name)
    if budget is None:
        return None
    used = queues.budget_use(name, budget)
    # In steps of a thousandth, so that the status is not written every few seconds.
    thousandths = int(1000 * used / budget.total) if budget.total else 1000
    return BudgetStatus(
        round(thousandths * budget.total / 1000, 3),
        budget.total,
        thousandths // 10,
        period_at(budget.period, now)[1],
    )


def _valid(queues: GpuQueues, name: str) -> QueueCondition:
    if problem := queues.assignment.invalid.get(name):
        return QueueCondition("Valid", "False", "InvalidParent", f"{problem}; the queue has no department")
    return QueueCondition("Valid", "True", "Valid")


def _namespaces(queues: GpuQueues, name: str) -> QueueCondition:
    taken = queues.assignment.taken.get(name, {})
    if not taken:
        return QueueCondition("NamespacesAssigned", "True", "Assigned")
    some = [f"namespace {namespace} belongs to the older queue {owner}" for namespace, owner in taken.items()]
    return QueueCondition("NamespacesAssigned", "False", "InOlderQueue", _few(some))


def _quota_applies(queues: GpuQueues, name: str) -> QueueCondition:
    kueue = queues.assignment.kueue.get(name, [])
    if not kueue:
        return QueueCondition("QuotaApplies", "True", "Applies")
    return QueueCondition(
        "QuotaApplies",
        "False",
        "Kueue",
        f"Kueue has LocalQueues in {_few(kueue)}: its quotas apply there, and those of this queue do not",
    )


def _use_current(queues: GpuQueues, now: datetime, problem: str) -> QueueCondition:
    reading = queues.reading
    if reading.read_at is None:
        why = f"the use was never read from the server: {problem}" if problem else "no server has been read"
        return QueueCondition(
            "UseCurrent", "Unknown", "NotRead", f"{why}; the scheduler counts what it sees itself"
        )
    if problem:
        return QueueCondition(
            "UseCurrent", "False", "ServerDown", f"{problem}; the last known shares are used"
        )
    if now.timestamp() - reading.until > STALE_S:
        return QueueCondition(
            "UseCurrent", "False", "AccountingLate", "the server has not accounted for the last hours"
        )
    return QueueCondition("UseCurrent", "True", "Read")


def _within_budget(queues: GpuQueues, name: str) -> QueueCondition:
    budget, state = queues.budget(name), queues.budgets.get(name, BudgetState.AVAILABLE)
    if budget is None:
        return QueueCondition("WithinBudget", "True", "NoBudget")
    if state is BudgetState.USED_UP:
        return QueueCondition("WithinBudget", "False", "UsedUp", queues.budget_sentence(name))
    if state is BudgetState.NEARLY_USED:
        return QueueCondition(
            "WithinBudget", "True", "NearlyUsed", "80 percent or more of the budget are used"
        )
    return QueueCondition("WithinBudget", "True", "Available")


def _few(texts: list[str]) -> str:
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


def _with_times(
    conditions: tuple[QueueCondition, ...], before: tuple[QueueCondition, ...], now: datetime
) -> tuple[QueueCondition, ...]:
    """Return the conditions with the time of their last change."""
    known = {each.type: each for each in before}
    return tuple(
        msgspec.structs.replace(
            each,
            last_transition_time=known[each.type].last_transition_time
            if each.type in known and known[each.type].status == each.status
            else now.replace(microsecond=0),
        )
        for each in conditions
    )
