"""The order in which waiting units of different queues get GPUs.

Units inside a guarantee go first, then the others, last those of queues whose soft budget is used up. Among these,
the queue with the lowest weighted use is next:

    (decayed use + HORIZON × GPUs that it has or gets first) / weight

The second term lets queues share GPUs at once, also before any has a history; over time the first one
decides. Every unit gets the value that its queue will have when its turn comes, so one sort gives the order in which
units would be taken one by one, and starting a unit changes the rank of no other. Between departments their sums
count, and within a department those of its queues.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge

from gpufleet.queueing.shares.quota import GPU, NOTHING, Amounts, Quotas

HORIZON = 4 * 3600.0
"""Seconds for which GPUs in use count in advance."""

Rank = tuple[int, float]
"""The class (0 guaranteed, 1 shared, 2 idle GPUs only) and the weighted use."""

FIRST: Rank = (0, 0.0)
"""The rank of units that no queue governs."""


@dataclass(frozen=True)
class WaitingUnit:
    """A unit that waits for so many thousandths of GPUs; with 0 it marks a place behind the guarantee of its queue."""

    key: str
    milli: int


def ranks(
    quotas: Quotas,
    used: Mapping[str, Amounts],
    use: Mapping[str, float],
    waiting: Mapping[str, Sequence[WaitingUnit]],
) -> dict[str, Rank]:
    """Return the rank of each waiting unit; the units of each queue are given in their own order.

    `used` is what each queue has now, `use` its decayed use in GPU-seconds.
    """
    departments: dict[str, list[str]] = {}
    for queue in sorted(waiting):
        departments.setdefault(quotas.department(queue), []).append(queue)
    found: dict[str, Rank] = {}
    for department, queues in departments.items():
        names = {department, *(name for name in quotas.by_name if quotas.department(name) == department)}
        has = sum(sum(used.get(name, NOTHING).values()) for name in names) / GPU
        seconds = sum(use.get(name, 0.0) for name in names)
        weight = quotas.get(department).weight
        inside = [_tagged(quotas, used, use, queue, waiting[queue]) for queue in queues]
        for klass, _, unit in merge(*inside):
            found[unit.key] = (klass, (seconds + HORIZON * has) / weight)
            has += unit.milli / GPU
    return found


_Tagged = tuple[int, "_Tag", WaitingUnit]


@dataclass(frozen=True, order=True)
class _Tag:
    """The weighted use of a queue when a unit is next; the name and number make the order definite."""

    value: float
    queue: str
    number: int


def _tagged(
    quotas: Quotas,
    used: Mapping[str, Amounts],
    use: Mapping[str, float],
    queue: str,
    units: Iterable[WaitingUnit],
) -> list[_Tagged]:
    """Return the units of one queue with their class and weighted use within the department.

    A unit that does not fit into the guarantee lets none behind it pass, unless it never will.
    """
    quota = quotas.get(queue)
    largest = max(quotas.own(queue).largest, quotas.shared(quotas.department(queue)).largest)
    has, seconds, ahead, inside = sum(used.get(queue, NOTHING).values()) / GPU, use.get(queue, 0.0), 0, True
    tagged: list[_Tagged] = []
    for number, unit in enumerate(units):
        if quota.last:
            klass = 2
        elif unit.milli > largest or not unit.milli:
            klass = 1
        else:
            inside = inside and quotas.entitlement(queue, used, ahead + unit.milli) is not None
            klass = 0 if inside else 1
            ahead += unit.milli
        value = (seconds + HORIZON * has) / quota.weight
        tagged.append((klass, _Tag(value, queue, number), unit))
        has += unit.milli / GPU
    return sorted(tagged, key=lambda each: each[:2])
