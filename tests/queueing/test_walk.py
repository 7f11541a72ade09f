"""The rules of the walk, each in a small case."""

from collections.abc import Iterable, Mapping

import pytest

from gpufleet.placement import CandidateGpu, Request
from gpufleet.queueing.core import Core, Rules
from gpufleet.queueing.forward import Forward
from gpufleet.queueing.needs import Need
from gpufleet.queueing.queues import Queues
from gpufleet.queueing.shares.quota import Quota, Quotas
from gpufleet.queueing.snapshot import NodeSpec, Snapshot
from gpufleet.queueing.tables import Tables
from gpufleet.queueing.units import Group, Holder, Level, Place, Unit


def waiting(
    key: str,
    gpus: int,
    members: int = 1,
    *,
    priority: int = 0,
    declared: float | None = None,
    least: int | None = None,
    queue: str | None = None,
    level: Level | None = None,
    pool: str = "",
) -> Unit:
    labels = frozenset({("pool", pool)}) if pool else frozenset[tuple[str, str]]()
    group = Group(Need(Request(count=gpus), labels), members if least is None else least, members)
    asked = 1000 * gpus
    return Unit(
        key,
        (group,),
        (-priority, 0.0, key),
        asked * members,
        asked * group.least,
        priority,
        queue,
        declared,
        level,
    )


def held(key: str, node: int, gpus: Iterable[int], until: float | None = None, **more: object) -> Holder:
    place = Place(node, tuple(gpus), 1000)
    units = {"unit": waiting(key, len(place.gpus), priority=more.get("priority", 0), queue=more.get("queue"))}  # type: ignore[arg-type]
    gpu_use = {"": 1000 * len(place.gpus)}
    return Holder(key, (place,), -3600.0, declared_end=until, gpus=gpu_use, **{**units, **more})  # type: ignore[arg-type]


def run(
    holders: Iterable[Holder],
    units: Iterable[Unit],
    run_times: Mapping[str, float],
    *,
    nodes: int = 1,
    rules: Rules = Rules(),  # noqa: B008  (immutable)
    quotas: Iterable[Quota] = (),
) -> Forward:
    """Run until nothing happens any more; racks have two nodes, and the last node is in pool b."""
    specs = [
        NodeSpec(
            tuple(CandidateGpu(at) for at in range(8)),
            frozenset({("pool", "b" if node == nodes - 1 else "a")}),
            domains=(node // 2,),
        )
        for node in range(nodes)
    ]
    quotas = list(quotas)
    core = Core(Snapshot(Tables(), specs), rules, Queues(Quotas(quotas), {}, 86_400.0) if quotas else None)
    ends = []
    for holder in holders:
        core.take(holder)
        ends.append((run_times[holder.key], holder.key))
    for unit in units:
        core.put(unit)
    forward = Forward(core, 0.0, ends, lambda unit: run_times[unit.key])
    forward.run(100_000.0)
    return forward


def starts(*args: object, **more: object) -> dict[str, float]:
    return run(*args, **more).starts  # type: ignore[arg-type]


def test_the_example_of_the_documentation() -> None:
    holders = [held("a", 0, range(6), 60.0), held("b", 1, range(4), 30.0)]
    units = [waiting("1-train", 8), waiting("2-short", 2, declared=20.0), waiting("3-long", 2)]
    times = {"a": 60.0, "b": 30.0, "1-train": 100.0, "2-short": 20.0, "3-long": 50.0}
    assert starts(holders, units, times, nodes=2) == {"2-short": 0.0, "3-long": 20.0, "1-train": 30.0}


def test_without_reservations_small_units_pass_a_large_one_for_ever() -> None:
    holders = [held("a", 0, range(4), 30.0)]
    units = [waiting("1-large", 8), *(waiting(f"2-small-{at}", 4) for at in range(3))]
    times = {"a": 30.0, "1-large": 10.0, **{f"2-small-{at}": 40.0 for at in range(3)}}
    assert starts(holders, units, times, rules=Rules(reservations=0))["1-large"] == 80.0
    assert starts(holders, units, times)["1-large"] == 30.0


def test_a_unit_with_a_selector_waits_for_its_pool_and_nothing_else() -> None:
    holders = [held("a", 1, range(8))]
    units = [waiting("1-picky", 1, pool="b"), waiting("2-any", 1)]
    times = {"a": 500.0, "1-picky": 10.0, "2-any": 10.0}
    assert starts(holders, units, times, nodes=2) == {"2-any": 0.0, "1-picky": 500.0}


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_a_unit_of_higher_priority_evicts_the_cheapest_of_lower_priority(grace: float) -> None:
    holders = [held("old", 0, range(4), priority=0), held("high", 0, range(4, 8), priority=9)]
    found = run(holders, [waiting("urgent", 2, priority=5)], {"old": 900.0, "high": 900.0, "urgent": 10.0},
                rules=Rules(grace=grace))  # fmt: skip
    assert found.starts["urgent"] == grace
    assert [(victim, unit) for _, victim, unit in found.evictions] == [("old", "urgent")]
    # It runs again from its beginning, on GPUs that the urgent unit left free or has left.
    assert found.starts["old"] == grace + 10.0


def test_protected_holders_are_not_evicted() -> None:
    holders = [held("kept", 0, range(8), protected=True)]
    assert starts(holders, [waiting("urgent", 1, priority=5)], {"kept": 70.0, "urgent": 1.0}) == {
        "urgent": 70.0
    }


def test_a_gang_starts_whole_or_with_its_minimum() -> None:
    holders = [held("a", 0, range(8))]
    times = {"a": 50.0, "g": 10.0}
    assert starts(holders, [waiting("g", 8, 2)], times, nodes=2) == {"g": 50.0}
    found = run(holders, [waiting("g", 8, 2, least=1)], times, nodes=2)
    assert found.starts == {"g": 0.0}


def test_a_required_level_keeps_a_gang_in_one_rack_also_when_it_evicts_and_when_it_waits() -> None:
    # Rack 0 has nodes 0 and 1, rack 1 nodes 2 and 3.
    gang = waiting("g", 8, 2, level=Level((0,), required=True))
    times = {"a": 50.0, "c": 90.0, "g": 10.0}
    holders = [held("a", 0, range(8), 50.0), held("c", 2, range(8), 90.0)]
    assert starts(holders, [gang], times, nodes=4) == {"g": 50.0}
    lower = [held("a", 0, range(8), priority=9), held("c", 2, range(8))]
    urgent = waiting("g", 8, 2, priority=5, level=Level((0,), required=True))
    found = run(lower, [urgent], times, nodes=4)
    assert found.starts["g"] == 0.0
    assert [victim for _, victim, _ in found.evictions] == ["c"], "the rack whose holder may be evicted"


def test_a_queue_at_its_limit_waits_for_its_own_units() -> None:
    holders = [held("a", 0, range(4), queue="q")]
    units = [waiting("more", 2, queue="q"), waiting("other", 2, queue="r")]
    found = starts(
        holders, units, {"a": 40.0, "more": 5.0, "other": 5.0}, quotas=[Quota("q", limit=4000), Quota("r")]
    )
    assert found == {"other": 0.0, "more": 40.0}


def test_a_unit_inside_its_guarantee_reclaims_what_others_have_borrowed() -> None:
    holders = [held("guest", 0, range(8), queue="r")]
    found = run(
        holders, [waiting("mine", 4, queue="q")], {"guest": 900.0, "mine": 10.0},
        quotas=[Quota("q", guaranteed=4000), Quota("r")],
    )  # fmt: skip
    assert found.starts["mine"] == 0.0
    assert [victim for _, victim, _ in found.evictions] == ["guest"]


def test_work_inside_its_own_guarantee_is_not_reclaimed() -> None:
    holders = [held("theirs", 0, range(8), queue="r")]
    quotas = [Quota("q", guaranteed=4000), Quota("r", guaranteed=8000)]
    found = starts(holders, [waiting("mine", 4, queue="q")], {"theirs": 80.0, "mine": 10.0}, quotas=quotas)
    assert found == {"mine": 80.0}


def test_strictly_first_come_starts_nothing_behind_a_unit_that_waits() -> None:
    holders = [held("a", 0, range(4))]
    units = [waiting("1-large", 8), waiting("2-small", 1)]
    found = starts(holders, units, {"a": 30.0, "1-large": 10.0, "2-small": 5.0}, rules=Rules(backfill=False))
    assert found == {"1-large": 30.0, "2-small": 40.0}


def test_a_member_that_needs_no_cpu_starts_on_a_node_whose_cpu_is_overbooked() -> None:
    tables = Tables(("cpu",))
    snapshot = Snapshot(tables, [NodeSpec(tuple(CandidateGpu(at) for at in range(2)), free=(2,))])
    snapshot.take(Holder("a", (Place(0, (0,), 1000, amounts=(3,)),), 0.0))
    need = tables.need(Need(Request(count=1)))
    snapshot.sync()
    assert snapshot.total[need] == 1
    assert snapshot.fits(need, 0, snapshot.occupancy[0], snapshot.free[0]) is not None
