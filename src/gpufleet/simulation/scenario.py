"""What one simulation tries: the rules of the queue, quotas, failures and prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpufleet.simulation.queues import Queues

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True)
class Rules:
    """How the queue is served.

    `priorities` orders units by priority, then by age, instead of by age alone. Without `backfill` no unit
    starts while one ahead of it waits. `reservations` is the number of units that do not fit for which GPUs
    are kept (see docs/scheduling.md). `preempt` lets units evict those of lower priority.
    """

    name: str
    priorities: bool = True
    backfill: bool = True
    reservations: int = 4
    preempt: bool = True


RULES = {
    rules.name: rules
    for rules in (
        Rules("default"),
        Rules("fifo", priorities=False, backfill=False, reservations=0, preempt=False),
        Rules("priority", reservations=0, preempt=False),
        Rules("no-backfill", backfill=False, reservations=0),
    )
}
"""The scheduler's own rules, and the baselines: first in first out, priority alone, and no backfill."""


@dataclass(frozen=True)
class Scenario:
    """The settings of one simulation."""

    name: str = "default"
    policy: str = "default"
    """The placement policy."""
    rules: Rules = RULES["default"]
    queues: Queues | None = None
    """Guarantees, limits and shares of queues; without it units go by priority, then by age."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """The price of a GPU hour by model; `""` for all other models."""
    node_mtbf_s: float = 0.0
    """Mean time between failures of one node; 0 for none."""
    repair_s: float = 4 * HOUR
    grace_s: float = 0.0
    """Seconds that evicted units take to terminate; new pods are created for them then."""
    cycle_s: float = 0.0
    """Seconds between planning cycles; 0 plans after every event."""
    seed: int = 0

    def named(self, name: str) -> "Scenario":
        """Return the scenario under another name."""
        return replace(self, name=name)
