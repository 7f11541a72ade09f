"""Guarantees: who is inside, who borrows, and what may be reclaimed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.queueing.shares.quota import Entitlement, Level, Quota, Quotas, RunningUnit

A100, H100 = "NVIDIA_A100_SXM4_80GB", "NVIDIA_H100_80GB_HBM3"
MODELS = st.sampled_from([A100, H100])


@st.composite
def quotas(draw: st.DrawFn) -> Quotas:
    found = [Quota("department", draw(st.integers(0, 12)) * 1000)]
    for name in ("a", "b", "c", "d"):
        part = draw(st.integers(0, 4)) * 1000
        models = {"H100": part} if part else {}
        guaranteed = part + draw(st.integers(0, 6)) * 1000
        parent = draw(st.sampled_from(["", "department"]))
        found.append(Quota(name, guaranteed, models, parent=parent, last=draw(st.booleans())))
    return Quotas(found)


@st.composite
def units(draw: st.DrawFn) -> list[RunningUnit]:
    return [
        RunningUnit(
            f"u{number}",
            draw(st.sampled_from(["a", "b", "c", "d", "default"])),
            {draw(MODELS): draw(st.integers(1, 8)) * 500},
            draw(st.integers(0, 5)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]


@given(quotas(), units())
def test_units_inside_a_guarantee_never_exceed_it(quotas: Quotas, units: list[RunningUnit]) -> None:
    levels = quotas.levels(units)
    inside: Counter[str] = Counter()
    for unit in units:
        if levels[unit.key] is Level.OWN:
            inside[unit.queue] += sum(unit.gpus.values())
    for queue, amount in inside.items():
        assert amount <= quotas.get(queue).guaranteed
        assert not quotas.get(queue).last


@given(quotas(), units())
def test_a_queue_within_its_guarantee_has_no_borrowed_unit(quotas: Quotas, units: list[RunningUnit]) -> None:
    levels = quotas.levels(units)
    for name in ("a", "b", "c", "d"):
        mine = [unit for unit in units if unit.queue == name]
        room, quota = quotas.own(name), quotas.get(name)
        if quota.last or not all(room.take(unit.gpus) for unit in mine):
            continue
        assert all(levels[unit.key] is Level.OWN for unit in mine)


@given(quotas(), units(), st.integers(1, 8))
def test_what_a_unit_is_entitled_to_is_left_of_a_guarantee(
    quotas: Quotas, units: list[RunningUnit], gpus: int
) -> None:
    used: dict[str, Counter[str]] = {}
    for unit in units:
        used.setdefault(unit.queue, Counter()).update(unit.gpus)
    for queue in ("a", "b", "c", "d"):
        found = quotas.entitlement(queue, used, gpus * 1000)
        if found is not None and found.level is Level.OWN:
            assert gpus * 1000 <= quotas.get(queue).guaranteed
            if found.models is None:
                beyond = Counter(used.get(queue, {}))
                assert quotas.own(queue).rest >= gpus * 1000
                assert beyond.total() - sum(quotas.get(queue).models.values()) <= quotas.own(queue).rest


def test_the_youngest_units_are_borrowed() -> None:
    quotas = Quotas([Quota("research", 4000)])
    units = [RunningUnit(f"u{at}", "research", {A100: 2000}, float(at)) for at in range(4)]
    assert quotas.levels(reversed(units)) == {
        "u0": Level.OWN,
        "u1": Level.OWN,
        "u2": Level.BORROWED,
        "u3": Level.BORROWED,
    }


def test_a_gang_that_is_partly_inside_a_guarantee_is_borrowed_as_a_whole() -> None:
    quotas = Quotas([Quota("research", 4000)])
    units = [
        RunningUnit("gang", "research", {A100: 6000}, 0.0),
        RunningUnit("pod", "research", {A100: 1000}, 1.0),
    ]
    assert quotas.levels(units) == {"gang": Level.BORROWED, "pod": Level.OWN}


def test_a_department_lends_to_its_own_queues_first() -> None:
    quotas = Quotas(
        [
            Quota("science", 8000),
            Quota("nlp", 4000, parent="science"),
            Quota("vision", 4000, parent="science"),
            Quota("sales", 2000),
        ]
    )
    running = RunningUnit("u", "nlp", {A100: 8000}, 0.0)
    assert quotas.levels([running]) == {"u": Level.DEPARTMENT}
    used = {"nlp": {A100: 8000}}
    assert quotas.entitlement("nlp", used, 1000) is None
    assert quotas.entitlement("vision", used, 4000) == Entitlement(Level.OWN)
    assert quotas.may_evict("vision", Level.OWN, "nlp", Level.DEPARTMENT)
    assert not quotas.may_evict("sales", Level.OWN, "nlp", Level.DEPARTMENT)
    assert quotas.may_evict("sales", Level.OWN, "nlp", Level.BORROWED)


def test_a_guarantee_of_a_model_is_not_used_up_by_other_models() -> None:
    quotas = Quotas([Quota("research", 8000, {"H100": 4000})])
    used = {"research": {A100: 4000}}
    found = quotas.entitlement("research", used, 4000)
    assert found is not None
    assert found.models is not None
    assert H100 in found.models
    assert A100 not in found.models
    assert quotas.entitlement("research", {"research": {A100: 4000, H100: 4000}}, 1000) is None


def test_the_limit_of_a_department_counts_all_of_its_queues() -> None:
    quotas = Quotas(
        [Quota("science", limit=8000), Quota("nlp", parent="science"), Quota("vision", parent="science")]
    )
    used = {"nlp": {A100: 5000}, "vision": {A100: 2000}}
    assert quotas.limit_reached("vision", used, 1000) is None
    reached = quotas.limit_reached("vision", used, 2000)
    assert reached is not None
    assert reached.name == "science"
