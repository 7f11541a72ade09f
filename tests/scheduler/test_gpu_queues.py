"""GpuQueues in the planner: limits, lending, reclaiming, and shares over time."""

import itertools
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.queue_simulation import GRACE, QueueSimulation
from tests.scheduler.simulation import Unit, number_of

from gpufleet.kubernetes.objects import KubeObject, ObjectMeta
from gpufleet.queueing.shares.quota import Level
from gpufleet.scheduler.planning.plan import Decided, Waiting
from gpufleet.scheduler.planning.preemption import RECLAIM_AGAIN_S
from gpufleet.scheduler.queues.gpu_queues import RANK_S

HOUR, DAY = 3600, 86400
NODES = {"a": 4, "b": 4}


def reasons(simulation: QueueSimulation) -> list[str]:
    return [entry.reason for entry in simulation.scheduler.queue]


def test_a_queue_at_its_limit_waits_and_says_so() -> None:
    simulation = QueueSimulation(NODES, queues={"research": {"limit": {"gpus": 4}}})
    simulation.step([Unit(0, 4, DAY, namespace="research"), Unit(0, 1, DAY, namespace="research")], 0)
    assert list(simulation.started) == [0]
    assert reasons(simulation) == ["queue research has reached its limit of 4 GPUs"]
    simulation.step([Unit(0, 1, DAY, namespace="other"), Unit(0, 1, DAY, size=6, namespace="research")], 1)
    assert reasons(simulation)[1] == "6 GPUs are more than the limit of queue research, 4 GPUs"
    assert len(simulation.started) == 2
    simulation.put_queue("research", limit={"gpus": 5})
    simulation.plan()
    assert sorted(simulation.started) == [0, 1, 2]


def test_a_unit_that_waits_for_the_limit_starts_when_its_queue_has_room_again() -> None:
    simulation = QueueSimulation(NODES, queues={"research": {"limit": {"gpus": 4}}})
    simulation.step([Unit(0, 4, 100, namespace="research"), Unit(0, 4, 100, namespace="research")], 0)
    simulation.step([], 1000)
    assert simulation.started == {0: 0, 1: 100}


def test_unused_guarantees_are_lent_and_reclaimed_from_the_youngest_units() -> None:
    simulation = QueueSimulation(
        {"a": 1, "b": 1, "c": 1, "d": 1}, queues={"owner": {"guaranteed": {"gpus": 2}}}
    )
    for at in range(4):
        simulation.step([Unit(at, 1, DAY, namespace="guest")], at)
    assert len(simulation.started) == 4
    simulation.comes_back = False
    simulation.step([Unit(10, 1, HOUR, size=2, namespace="owner")], 10)
    (reclaim,) = simulation.evictions
    assert reclaim.reclaims == "owner"
    assert sorted(pod.metadata.name for pod in reclaim.victims) == ["u00002-0", "u00003-0"]
    simulation.step([], HOUR)
    assert simulation.started[4] == 10 + GRACE


def test_a_gang_on_borrowed_gpus_leaves_as_a_whole() -> None:
    simulation = QueueSimulation({"a": 2, "b": 2}, queues={"owner": {"guaranteed": {"gpus": 1}}})
    simulation.step([Unit(0, 2, DAY, size=2, namespace="guest")], 0)
    simulation.comes_back = False
    simulation.step([Unit(1, 1, HOUR, namespace="owner")], 1)
    (reclaim,) = simulation.evictions
    assert len(reclaim.victims) == 2
    assert isinstance(reclaim.decision, Waiting)


def test_a_refused_eviction_is_not_repeated_when_the_pod_has_come_inside_its_guarantee() -> None:
    queues = {name: {"guaranteed": {"gpus": 2}} for name in "xy"}
    simulation = QueueSimulation({"a": 1, "b": 2}, queues=queues, refuses=True)
    simulation.step([Unit(0, 1, 20, namespace="x")], 0)
    simulation.step([Unit(1, 2, DAY, namespace="x")], 1)
    simulation.step([Unit(2, 2, DAY, namespace="y")], 2)
    assert [pod.metadata.name for pod in simulation.evictions[0].victims] == ["u00001-0"]
    for at in range(3, 20):
        simulation.scheduler.ledger.note_freed()
        simulation.step([], at)
    tried = len(simulation.evictions)
    assert tried > 1, "it is repeated while the pod has borrowed GPUs"
    for at in range(20, 60):
        simulation.scheduler.ledger.note_freed()
        simulation.step([], at)
    assert len(simulation.evictions) == tried


def test_a_guarantee_is_reclaimed_when_another_queue_loses_its_own() -> None:
    queues = {name: {"guaranteed": {"gpus": 1}} for name in "xy"}
    simulation = QueueSimulation({"a": 1}, queues=queues)
    simulation.step([Unit(0, 1, DAY, namespace="x")], 0)
    simulation.step([Unit(1, 1, DAY, namespace="y")], 1)
    assert simulation.evictions == [], "both are inside their guarantees"
    simulation.put_queue("x")
    simulation.step([], 10)
    (reclaim,) = simulation.evictions
    assert reclaim.reclaims == "y"


def test_a_younger_unit_does_not_reclaim_the_guarantee_that_an_older_one_waits_for() -> None:
    simulation = QueueSimulation({"a": 2, "b": 2}, queues={"owner": {"guaranteed": {"gpus": 3}}})
    simulation.step([Unit(0, 1, 1000, size=2, namespace="owner"), Unit(0, 2, DAY, namespace="guest")], 0)
    simulation.step([Unit(1, 1, DAY, size=2, namespace="owner")], 1)
    simulation.step([], 5)
    simulation.step([Unit(5, 1, DAY, namespace="owner")], 5)
    simulation.step([], 20)
    assert simulation.evictions == []
    simulation.step([], 1000)
    simulation.step([], 2000)
    assert simulation.started[2] == 1000


def test_a_gang_starts_on_reclaimed_gpus_although_a_victim_has_reserved_them() -> None:
    queues = {name: {"guaranteed": {"gpus": gpus}} for name, gpus in {"a": 3, "b": 2, "c": 1}.items()}
    simulation = QueueSimulation(dict.fromkeys("wxyz", 2), queues=queues)
    simulation.step([Unit(0, 1, 846, size=2, namespace="c")], 0)
    simulation.step([], 100)
    simulation.step([Unit(0, 1, 1210, namespace="guest"), Unit(0, 1, 658, size=3, namespace="b")], 100)
    simulation.step([], 200)
    simulation.step([Unit(0, 1, 1593, namespace="b"), Unit(0, 1, 1069, size=2, namespace="a")], 200)
    assert [pod.metadata.name for pod in simulation.evictions[0].victims] == ["u00001-0"]
    simulation.step([], 300)
    assert simulation.started[4] == 200 + GRACE


def test_priority_counts_only_within_a_queue() -> None:
    simulation = QueueSimulation({"a": 1}, queues={"one": {"guaranteed": {"gpus": 1}}, "two": {}})
    simulation.step([Unit(0, 1, DAY, namespace="one")], 0)
    entitled = simulation.scheduler.gpu_queues.standings("one")
    assert [each.level for each in entitled.values()] == [Level.OWN]
    simulation.step([Unit(1, 1, DAY, namespace="two")], 1)
    assert simulation.evictions == []
    assert len(simulation.scheduler.queue) == 1


def test_namespaces_of_kueue_have_no_quota() -> None:
    simulation = QueueSimulation(NODES, queues={"research": {"limit": {"gpus": 1}}})
    simulation.scheduler.gpu_queues.local_queues_changed("research", 1)
    simulation.step([Unit(0, 4, DAY, namespace="research"), Unit(0, 4, DAY, namespace="research")], 0)
    assert len(simulation.started) == 2
    assert simulation.scheduler.gpu_queues.queue_of("research") is None


def test_a_namespace_that_gets_the_labels_of_a_queue_belongs_to_it() -> None:
    simulation = QueueSimulation(NODES)
    queues = simulation.scheduler.gpu_queues
    selector = {"matchLabels": {"team": "nlp"}}
    simulation.put_queue("labelled", namespaceSelector=selector, limit={"gpus": 1})
    assert queues.queue_of("ml") == "default"
    queues.put_namespace(KubeObject(ObjectMeta(name="ml", labels={"team": "nlp"})))
    assert queues.queue_of("ml") == "labelled"
    queues.put_namespace(KubeObject(ObjectMeta(name="ml")))
    assert queues.queue_of("ml") == "default"


def test_without_queues_units_are_in_the_order_of_their_age() -> None:
    simulation = QueueSimulation(NODES)
    simulation.step([Unit(0, 4, DAY, namespace=str(at)) for at in range(5)], 0)
    assert [entry.order[:2] for entry in simulation.scheduler.queue] == [(0, 0.0)] * 3
    assert simulation.scheduler.ledger.on_allocation is None


def test_without_the_last_queue_the_order_is_by_age_again() -> None:
    simulation = QueueSimulation({"a": 1}, queues={"b": {"weight": 9}})
    simulation.step(
        [Unit(0, 1, 9, namespace="x"), Unit(0, 1, 9, namespace="a"), Unit(0, 1, 9, namespace="b")], 0
    )
    assert [entry.pod.metadata.namespace for entry in simulation.scheduler.queue] == ["b", "a"]
    simulation.scheduler.gpu_queues.drop("b")
    simulation.plan()
    assert [entry.pod.metadata.namespace for entry in simulation.scheduler.queue] == ["a", "b"]


@pytest.mark.parametrize("seed", [1, 2])
def test_after_seven_days_of_contention_shares_are_within_two_percent_of_the_weights(seed: int) -> None:
    rng, weights = Random(seed), {"small": 1, "middle": 2, "large": 4}
    simulation = QueueSimulation(
        dict.fromkeys("abc", 8), queues={name: {"weight": weight} for name, weight in weights.items()}
    )
    while simulation.now < 7 * DAY:
        waits = [namespace for namespace, _, _ in simulation.waiting()]
        arrivals = [
            Unit(0, rng.choice([1, 1, 2, 4]), rng.randint(1, 8) * HOUR, namespace=name)
            for name in weights
            for _ in range(12 - waits.count(name))
        ]
        simulation.step(arrivals, simulation.now)
        simulation.step([], 7 * DAY)
    total = sum(simulation.used.values())
    assert total > 0.97 * 24 * 7 * DAY
    for name, weight in weights.items():
        assert simulation.used[name] / total == pytest.approx(weight / 7, abs=0.02)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Unit]:
    found = []
    at = 0
    for _ in range(draw(st.integers(1, 25))):
        at += draw(st.integers(0, 120))
        found.append(
            Unit(
                at,
                1,
                draw(st.integers(10, 2000)),
                size=draw(st.sampled_from([1, 1, 1, 2, 3])),
                namespace=draw(st.sampled_from(["a", "b", "c", "nobody"])),
            )
        )
    return found


def certainly_inside(simulation: QueueSimulation, guarantees: dict[str, int]) -> set[int]:
    """Return running units inside the guarantee of their queue: with all that is not younger, they do not exceed it.

    It is computed from the simulation's own records, without the code that decides about evictions.
    """
    running = {number_of(simulation.scheduler.ledger.pods[uid]) for uid in simulation.ends}
    found = set()
    for number in running:
        queue, at = simulation.units[number].namespace, simulation.started[number]
        older = (
            simulation.units[other]
            for other in running
            if simulation.units[other].namespace == queue and simulation.started[other] <= at
        )
        if sum(unit.gpus * unit.size for unit in older) <= guarantees.get(queue, 0):
            found.add(number)
    return found


def check_victims(simulation: QueueSimulation, guarantees: dict[str, int], decided: Decided) -> None:
    """Check one eviction: for a guarantee, of whole units outside of theirs, the youngest first."""
    pods, units = simulation.scheduler.ledger.pods, simulation.units
    victims = {number_of(pod) for pod in decided.victims}
    assert not victims & certainly_inside(simulation, guarantees)
    members = {uid for uid in simulation.ends if number_of(pods[uid]) in victims}
    assert members == {pod.metadata.uid for pod in decided.victims}, "gangs leave as a whole"
    unit = units[number_of(decided.pods[0])]
    asked, owner = unit.gpus * unit.size, decided.reclaims
    assert owner == unit.namespace
    used = sum(
        units[number_of(pods[uid])].gpus for uid in simulation.ends if pods[uid].metadata.namespace == owner
    )
    assert used + asked <= guarantees[owner], "only units inside a guarantee evict others"
    ahead = {
        number_of(entry.pod)
        for entry in simulation.scheduler.queue
        if entry.pod.metadata.namespace == owner
        and entry.milli <= 1000 * guarantees[owner]
        and units[number_of(entry.pod)].arrives < simulation.now  # others are ranked within a second
        and not (isinstance(entry.decision, Waiting) and entry.decision.preempting)
    }
    assert min(ahead, default=number_of(decided.pods[0])) >= number_of(decided.pods[0])
    if asked == 1:
        (victim,) = victims
        borrowed = {
            number_of(pods[uid])
            for uid in simulation.ends
            if pods[uid].metadata.namespace == "nobody" and pods[uid].metadata.deletion_timestamp is None
        }
        # Units that start at the same moment were not bound yet when the victim was chosen.
        later = {each for each in borrowed if simulation.started[each] > simulation.started[victim]}
        assert all(simulation.started[each] == simulation.now for each in later)


@pytest.mark.parametrize("reservations", [0, 4])
@settings(deadline=None, max_examples=40)
@given(arrivals())
def test_guarantees_are_honoured_within_the_grace_period_and_never_broken(
    reservations: int, units: list[Unit]
) -> None:
    guarantees = {"a": 3, "b": 2, "c": 1}
    simulation = QueueSimulation(
        dict.fromkeys("wxyz", 2),
        {"reservations": reservations},
        queues={name: {"guaranteed": {"gpus": number}} for name, number in guarantees.items()},
    )
    entitled_since: dict[str, float] = {}
    simulation.on_evict = partial(check_victims, simulation, guarantees)
    coming, arrived = sorted(units, key=lambda unit: unit.arrives), float("-inf")
    for _ in itertools.count():
        due = [unit for unit in coming if unit.arrives <= simulation.now]
        coming = coming[len(due) :]
        if not due and not coming and not simulation.ends and not len(simulation.scheduler.queue):
            break
        again = [entry.again_at for entry in simulation.scheduler.queue if entry.again_at > simulation.now]
        if simulation.now - arrived < RANK_S:
            again.append(arrived + RANK_S)
        until = min([unit.arrives for unit in coming[:1]] + again + [simulation.now + 2 * GRACE])
        simulation.step(due, simulation.now if due else until)
        arrived = simulation.now if due else arrived
        waiting = {entry.key: entry for entry in simulation.scheduler.queue}
        first: dict[str, str] = {}
        for key, entry in sorted(waiting.items(), key=lambda each: number_of(each[1].pod)):
            if entry.milli <= 1000 * guarantees.get(entry.pod.metadata.namespace, 0):
                first.setdefault(entry.pod.metadata.namespace, key)
        for key, entry in waiting.items():
            name = entry.pod.metadata.namespace
            own = sum(
                sum(simulation.scheduler.gpu_queues.held.of_pod(pod.metadata.uid).values())
                for pod in simulation.scheduler.ledger.pods.values()
                if pod.metadata.name[:6] == entry.pod.metadata.name[:6]
            )
            fits = first.get(name) == key and entry.milli <= simulation.guaranteed_left(name) + own
            since = entitled_since.setdefault(key, simulation.now) if fits else None
            if since is None:
                entitled_since.pop(key, None)
            else:
                assert simulation.now - since <= RANK_S + RECLAIM_AGAIN_S + GRACE
        for key in entitled_since.keys() - waiting.keys():
            del entitled_since[key]
