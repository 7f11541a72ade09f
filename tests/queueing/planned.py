"""Run units on the core, and on the live planner with the same clock, to compare their starts."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs
from tests.queueing.counts import booked
from tests.scheduler import simulation as planner
from tests.scheduler.simulation import number_of
from tests.simulation.test_planner_agreement import Recorded, Run

from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.objects import Pod, PodSpec
from gpufleet.placement import CandidateGpu, Request
from gpufleet.queueing.core import Core, Eviction, Rules, Start
from gpufleet.queueing.forward import Forward
from gpufleet.queueing.needs import Need
from gpufleet.queueing.queues import Queues
from gpufleet.queueing.shares.quota import Quota, Quotas
from gpufleet.queueing.snapshot import NodeSpec, Snapshot
from gpufleet.queueing.tables import Tables
from gpufleet.queueing.units import Group, Unit
from gpufleet.scheduler.planning.plan import Waiting
from gpufleet.scheduler.planning.queue import Entry

HALF_LIFE = 7 * 86400.0


@dataclass
class AtOnce(Recorded):
    """The live planner, whose victims terminate as soon as it has decided that they leave.

    In a cluster it learns that from its watch: before or after it goes on planning, which is a matter of chance.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        decisions = self.scheduler._decisions
        wait = decisions.wait

        def wait_and_terminate(
            entry: Entry, pods: Sequence[Pod], why: Waiting, victims: Sequence[Pod] = ()
        ) -> Waiting:
            decided = wait(entry, pods, why, victims)
            for victim in victims:
                if victim.metadata.uid in self.ends:
                    self.terminate(victim)
                    self.coming_back.setdefault(number_of(victim), set()).add(victim.metadata.uid)
            return decided

        decisions.wait = wait_and_terminate  # type: ignore[method-assign]

    def terminate(self, pod: Pod) -> None:
        """Let a pod terminate, once."""
        if self.scheduler.ledger.pods[pod.metadata.uid].metadata.deletion_timestamp is None:
            super().terminate(pod)


@dataclass(frozen=True)
class Picky(planner.Unit):
    """A unit with a priority, whose pods select the nodes of a pool."""

    priority: int = 0
    pool: str = ""


@dataclass
class PickyPlanner(AtOnce):
    """The live planner with pools; kube-scheduler offers each pod the nodes that it selects."""

    pools: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, pool in self.pools.items():
            node = self.scheduler.ledger.nodes[name]
            labelled = structs.replace(node, metadata=structs.replace(node.metadata, labels={"pool": pool}))
            self.scheduler.watch_events.on_nodes([CacheChange(node, self._versioned(labelled))])

    def pod_spec(self, unit: planner.Unit) -> PodSpec:
        """Return the spec of a unit's pods."""
        assert isinstance(unit, Picky)
        selector = {"pool": unit.pool} if unit.pool else {}
        return structs.replace(super().pod_spec(unit), priority=unit.priority, node_selector=selector)

    def offered(self, pod: Pod) -> list[str]:
        """Return the nodes that kube-scheduler offers."""
        selector = pod.spec.node_selector
        return [
            name
            for name in super().offered(pod)
            if selector.get("pool", self.pools[name]) == self.pools[name]
        ]


@dataclass
class CoreRuns:
    """The runs of units on the core: starts with nodes."""

    runs: dict[int, list[Run]] = field(default_factory=dict)
    evictions: int = 0

    def starts(self) -> dict[int, float]:
        """Return the first start of each unit."""
        return {number: runs[0][0] for number, runs in self.runs.items()}


def run_core(
    mixed: Sequence[planner.Unit],
    nodes: Mapping[str, int],
    rules: Rules,
    quotas: Sequence[Quota] = (),
    pools: Mapping[str, str] = {},
) -> CoreRuns:
    """Let the units of a planner simulation arrive and run on the core."""
    names = sorted(nodes)
    specs = [
        NodeSpec(
            tuple(CandidateGpu(at) for at in range(nodes[name])), frozenset({("pool", pools.get(name, ""))})
        )
        for name in names
    ]
    snapshot = Snapshot(Tables(), specs)
    queues = Queues(Quotas(quotas), {}, HALF_LIFE) if quotas else None
    core = Core(snapshot, rules, queues)
    units = [unit_of(number, each, governed=bool(quotas)) for number, each in enumerate(mixed)]
    coming = sorted(range(len(mixed)), key=lambda number: -mixed[number].arrives)
    again, found = itertools.count(), CoreRuns()

    def next_arrival(now: float) -> tuple[float, Unit] | None:
        if not coming:
            return None
        number = coming.pop()
        return float(mixed[number].arrives), units[number]

    def observe(now: float, decisions: list[Start | Eviction]) -> None:
        if not core.nominated and not any(holder.leaving for holder in snapshot.holders.values()):
            booked(snapshot)
        for each in decisions:
            if isinstance(each, Start):
                where = sorted(names[place.node] for place in each.holder.places)
                found.runs.setdefault(int(each.unit.key), []).append((now, where))

    run = Forward(
        core,
        -1.0,
        [],
        lambda unit: float(mixed[int(unit.key)].runtime),
        next_arrival=next_arrival,
        # The planner's new pods of evicted units come before others of the same second.
        requeue=lambda unit, now: replace(unit, order=(unit.order[0], now, 0, next(again))),
    )
    run.run(observe=observe)
    found.evictions = len(run.evictions)
    return found


def unit_of(number: int, unit: planner.Unit, *, governed: bool) -> Unit:
    """Return a unit of the planner simulation for the core."""
    milli = 1000 * unit.gpus * unit.size
    priority, pool = (unit.priority, unit.pool) if isinstance(unit, Picky) else (0, "")
    selector = frozenset({("pool", pool)}) if pool else frozenset[tuple[str, str]]()
    return Unit(
        f"{number:05d}",
        (Group(Need(Request(count=unit.gpus), selector), unit.size, unit.size),),
        (-priority, float(unit.arrives), 1, number),
        milli,
        milli,
        priority,
        unit.namespace if governed else None,
        float(unit.declared) if unit.declared else None,
    )
