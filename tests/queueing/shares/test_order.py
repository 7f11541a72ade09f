"""The order between queues: guarantees first, then the weighted use."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.queueing.shares.order import WaitingUnit, ranks
from gpufleet.queueing.shares.quota import Quota, Quotas

DAY = 86400.0


def waiting(queue: str, number: int, gpus: int = 1) -> list[WaitingUnit]:
    return [WaitingUnit(f"{queue}{at}", gpus * 1000) for at in range(number)]


def test_queues_without_a_history_share_by_their_weights() -> None:
    quotas = Quotas([Quota("a", weight=1), Quota("b", weight=2), Quota("c", weight=4)])
    found = ranks(quotas, {}, {}, {name: waiting(name, 100) for name in "abc"})
    first = sorted(found, key=lambda key: (found[key], key))[:70]
    assert {name: sum(key.startswith(name) for key in first) for name in "abc"} == {"a": 10, "b": 20, "c": 40}


def test_the_queue_that_has_used_less_than_its_share_goes_first() -> None:
    quotas = Quotas([Quota("a"), Quota("b")])
    found = ranks(quotas, {}, {"a": 10 * DAY, "b": DAY}, {name: waiting(name, 2) for name in "ab"})
    assert sorted(found, key=lambda key: found[key]) == ["b0", "b1", "a0", "a1"]


def test_units_inside_a_guarantee_go_before_all_others() -> None:
    quotas = Quotas([Quota("a", guaranteed=2000), Quota("b")])
    found = ranks(quotas, {}, {"a": 10 * DAY}, {name: waiting(name, 3) for name in "ab"})
    assert sorted(found, key=lambda key: found[key]) == ["a0", "a1", "b0", "b1", "b2", "a2"]


def test_a_unit_larger_than_the_guarantee_does_not_keep_others_from_it() -> None:
    quotas = Quotas([Quota("a", guaranteed=2000)])
    units = [WaitingUnit("large", 8000), WaitingUnit("small", 1000)]
    assert {key: rank[0] for key, rank in ranks(quotas, {}, {}, {"a": units}).items()} == {
        "large": 1,
        "small": 0,
    }


def test_a_queue_whose_budget_is_used_up_comes_last() -> None:
    quotas = Quotas([Quota("a", guaranteed=4000, last=True), Quota("b")])
    found = ranks(quotas, {}, {"b": 10 * DAY}, {name: waiting(name, 2) for name in "ab"})
    assert sorted(found, key=lambda key: found[key]) == ["b0", "b1", "a0", "a1"]


def test_departments_share_first_and_then_their_queues() -> None:
    quotas = Quotas(
        [
            Quota("science"),
            Quota("a", weight=1, parent="science"),
            Quota("b", weight=3, parent="science"),
            Quota("c"),
        ]
    )
    found = ranks(quotas, {}, {}, {name: waiting(name, 100) for name in "abc"})
    first = sorted(found, key=lambda key: (found[key], key))[:80]
    assert {name: sum(key.startswith(name) for key in first) for name in "abc"} == {"a": 10, "b": 30, "c": 40}


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(1, 16), min_size=1, max_size=8), min_size=1
    ),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e7)),
    st.lists(st.integers(1, 8), min_size=4, max_size=4),
)
def test_starting_the_first_unit_changes_no_other_rank(
    gpus: dict[str, list[int]], use: dict[str, float], weights: list[int]
) -> None:
    quotas = Quotas([Quota(name, weight=weight) for name, weight in zip("abcd", weights, strict=True)])
    units = {
        queue: [WaitingUnit(f"{queue}{at}", each * 1000) for at, each in enumerate(sizes)]
        for queue, sizes in gpus.items()
    }
    before = ranks(quotas, {}, use, units)
    first = min(before, key=lambda key: (before[key], key))
    queue = first[0]
    started, rest = units[queue][0], units[queue][1:]
    assert started.key == first
    after = ranks(quotas, {queue: {"": started.milli}}, use, {**units, queue: rest})
    assert all(abs(after[key][1] - before[key][1]) < 1e-6 * (1 + before[key][1]) for key in after)
