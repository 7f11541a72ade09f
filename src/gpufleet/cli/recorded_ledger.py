"""Read what a server has recorded, for `gpufleet simulate --from-ledger`: allocations, capacity and the rules of GpuQueues."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from gpufleet.errors import SettingsError
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings import Settings, StoreSettings
from gpufleet.scheduler.queues.expected_order import HALF_LIFE_S, QueueRules, queue_of
from gpufleet.simulation.ledger import Recorded, recorded
from gpufleet.simulation.queues import Queues

if TYPE_CHECKING:
    from gpufleet.store import Store

Rules = Sequence[tuple[float, QueueRules]]
"""The rules of GpuQueues, each with the time from which on they applied; the first ones stand for the time before."""


@dataclass(frozen=True)
class RecordedLedger:
    """What was recorded, with its units in the GpuQueues of their time."""

    recorded: Recorded
    rules: Rules = ()
    use: Mapping[str, float] = field(default_factory=dict)
    """The decayed use of each queue in GPU-seconds at the begin."""

    @property
    def queues(self) -> set[str]:
        """Return the names of all queues."""
        return {quota.name for _, rules in self.rules for quota in rules.quotas}

    def orders(
        self, weights: Mapping[str, float], limits: Mapping[str, float], guarantees: Mapping[str, float]
    ) -> list[tuple[float, Queues | None]]:
        """Return the order between queues from each time on, with other quotas for some of them."""
        begin = self.recorded.begin
        first, *later = self.rules or [(begin, QueueRules())]
        return [
            (start, each.with_quotas(weights, limits, guarantees).order(self.use))
            for start, each in [(begin, first[1]), *later]
        ]


async def read_ledger(settings: Settings, cluster: str, since: float, *, quotas: bool) -> RecordedLedger:
    """Read the last `since` seconds of a cluster; without `quotas`, namespaces are the queues."""
    from gpufleet.store.store import open_store  # only the server's extra has a PostgreSQL client

    store_settings = settings[StoreSettings]
    if not store_settings.url and not (store_settings.data / "postgres").exists():
        # The store would create an empty database there.
        raise SettingsError(
            f"--data {store_settings.data}: no server has recorded anything there; give the server's --data, "
            "or its database in DATABASE_URL"
        )
    end = time.time()
    async with open_store(store_settings) as store:
        names = [cluster] if cluster else await store.accounted.names()
        if len(names) != 1:
            problem = f"--cluster: name one of {', '.join(names)}" if names else "the ledger is empty"
            raise SettingsError(problem)
        allocations = await store.allocation_periods.overlapping(names[0], end - since, end)
        capacity = await store.capacity_periods.overlapping(names[0], end - since, end)
        begin = max(end - since, min((period.start for period in capacity), default=end - since))
        rules = await _rules(store, names[0], begin, end) if quotas else []
        use = await _use(store, names[0], begin, rules[0][1].half_life) if rules else {}
    return replayed(allocations, capacity, begin, end, rules, use)


def replayed(
    allocations: Iterable[AllocationPeriod],
    capacity: Iterable[CapacityPeriod],
    begin: float,
    end: float,
    rules: Rules = (),
    use: Mapping[str, float] | None = None,
) -> RecordedLedger:
    """Return what was recorded; `use` is the decayed use of namespaces in GPU-seconds at the begin."""

    def queue_at(namespace: str, at: float) -> str:
        if not rules:
            return namespace
        _, current = next((each for each in reversed(rules) if each[0] <= at), rules[0])
        return queue_of(namespace, current.namespaces) if current.quotas else namespace

    used: dict[str, float] = {}
    for namespace, seconds in (use or {}).items():
        queue = queue_at(namespace, begin)
        used[queue] = used.get(queue, 0.0) + seconds
    return RecordedLedger(recorded(allocations, capacity, begin, end, queue_at), rules, used)


async def _rules(store: "Store", cluster: str, begin: float, end: float) -> Rules:
    rows = await store.queue_rules.overlapping(cluster, begin, end)
    return [(start, msgspec.json.decode(rules, type=QueueRules)) for start, rules in rows]


async def _use(
    store: "Store", cluster: str, begin: float, half_life: float = HALF_LIFE_S
) -> dict[str, float]:
    hour = int(begin // 3600)
    rows = await store.namespace_use.sums(cluster, hour, half_life, {"until": hour})
    return {row.namespace: row.decayed * 3600 for row in rows}
