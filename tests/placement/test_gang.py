from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings
from tests.placement.worlds import clusters, requests

from gpufleet.placement import Allocation, CandidateGpu, CandidateNode, Exclusivity, Inventory, Request
from gpufleet.placement.gang import GangFits, GangRefused, place_gang


def rack_of(name: str, rack: str, gpus: int = 8) -> CandidateNode:
    return CandidateNode(name, tuple(CandidateGpu(at) for at in range(gpus)), {"rack": rack})


def most_alike(cluster: Inventory, request: Request) -> int:
    """How many equal members fit, one by one."""
    twin, members = cluster.copy(), 0
    while members < 50 and not hasattr(twin.take(request), "counts"):
        members += 1
    return members


@settings(max_examples=40, deadline=None)
@given(nodes=clusters(), request=requests((Exclusivity.EXCLUSIVE, Exclusivity.MIG)))
def test_as_many_equal_members_fit_as_the_nodes_hold_and_not_one_more(
    nodes: list[CandidateNode], request: Request
) -> None:
    cluster = Inventory(nodes)
    most = most_alike(cluster, request)
    assert isinstance(place_gang(cluster, [request] * most), GangFits)
    refused = place_gang(cluster, [request] * (most + 1))
    assert isinstance(refused, GangRefused)
    assert (refused.placed, refused.size) == (most, most + 1)
    assert not cluster.allocations


@settings(max_examples=40, deadline=None)
@given(nodes=clusters(), asks=st.lists(requests(), max_size=8))
def test_the_members_of_a_gang_can_be_allocated_together(
    nodes: list[CandidateNode], asks: list[Request]
) -> None:
    cluster = Inventory(nodes)
    verdict = place_gang(cluster, asks)
    if isinstance(verdict, GangFits):
        for number, fits in enumerate(verdict.members):
            assert fits.request == asks[number]
            cluster.allocate(f"member-{number}", fits)


def test_a_gang_prefers_the_tightest_rack_that_takes_all_of_it() -> None:
    cluster = Inventory(
        [*(rack_of(f"a{at}", "big") for at in range(4)), *(rack_of(f"b{at}", "small") for at in range(2))]
    )
    verdict = place_gang(cluster, [Request(count=8)] * 2, prefer_label="rack")
    assert isinstance(verdict, GangFits)
    assert verdict.group == "small"
    verdict = place_gang(cluster, [Request(count=8)] * 3, prefer_label="rack")
    assert isinstance(verdict, GangFits)
    assert verdict.group == "big"


def test_a_gang_too_large_for_a_rack_uses_few_of_them() -> None:
    cluster = Inventory([rack_of(f"{rack}{at}", rack) for rack in "abcd" for at in range(4)])
    cluster.allocate("busy", Allocation("busy", "a0", tuple(range(8)), 1000))
    verdict = place_gang(cluster, [Request(count=8)] * 8, prefer_label="rack")
    assert isinstance(verdict, GangFits)
    assert verdict.group is None
    assert len({fits.node[0] for fits in verdict.members}) == 2


def test_a_preference_never_makes_a_gang_fail() -> None:
    cluster = Inventory([rack_of("a", "one"), CandidateNode("b", tuple(CandidateGpu(at) for at in range(8)))])
    verdict = place_gang(cluster, [Request(count=8)] * 2, prefer_label="rack")
    assert isinstance(verdict, GangFits)


def test_shares_of_several_gpus_are_packed_so_that_the_most_members_fit() -> None:
    node = CandidateNode("node-a", (CandidateGpu(0), CandidateGpu(1), CandidateGpu(2)))
    cluster = Inventory([node])
    for gpu in (0, 1):
        cluster.allocate(f"busy-{gpu}", Allocation(f"busy-{gpu}", "node-a", (gpu,), 500))
    pair = Request(count=2, exclusivity=Exclusivity.SHARED, share_milli=500)
    verdict = place_gang(cluster, [pair, pair])
    assert isinstance(verdict, GangFits)
    assert [fits.request for fits in verdict.members] == [pair, pair]
    for number, fits in enumerate(verdict.members):
        cluster.allocate(f"pod-{number}", fits)


def test_a_refused_gang_says_how_far_it_got_and_why() -> None:
    cluster = Inventory([rack_of("a", "one"), rack_of("b", "one")])
    verdict = place_gang(cluster, [Request(count=8)] * 3)
    assert isinstance(verdict, GangRefused)
    assert verdict.summary == "2 of 3 members fit; next member: 0/2 nodes fit: 2 have fewer than 8 free GPUs"


def test_an_empty_gang_fits() -> None:
    assert place_gang(Inventory(), []) == GangFits(())


def test_larger_members_go_first_but_keep_their_place_in_the_answer() -> None:
    cluster = Inventory([rack_of("a", "one", 4), rack_of("b", "one", 4)])
    asks = [Request(count=1), Request(count=4), replace(Request(count=2))]
    verdict = place_gang(cluster, asks)
    assert isinstance(verdict, GangFits)
    assert [len(fits.gpus) for fits in verdict.members] == [1, 4, 2]


@settings(max_examples=60, deadline=None)
@given(nodes=clusters(), asks=st.lists(requests(), min_size=1, max_size=6), data=st.data())
def test_members_go_only_where_they_may(
    nodes: list[CandidateNode], asks: list[Request], data: st.DataObject
) -> None:
    cluster = Inventory(nodes)
    names = st.sampled_from([*(node.name for node in nodes), "gone"])
    open_to = [data.draw(st.frozensets(names)) for _ in asks]
    verdict = place_gang(cluster, asks, eligible_nodes=open_to)
    if isinstance(verdict, GangFits):
        for number, fits in enumerate(verdict.members):
            assert fits.request == asks[number]
            assert fits.node in open_to[number]
            cluster.allocate(f"member-{number}", fits)
    else:
        assert verdict.placed < len(asks)
    everywhere = [frozenset(node.name for node in nodes)] * len(asks)
    assert place_gang(Inventory(nodes), asks, eligible_nodes=everywhere) == place_gang(Inventory(nodes), asks)


def test_whoever_has_the_smallest_choice_comes_first() -> None:
    cluster = Inventory([rack_of("a", "one", 4), rack_of("b", "one", 4)])
    anywhere, only_a = frozenset("ab"), frozenset("a")
    verdict = place_gang(cluster, [Request(count=4), Request(count=1)], eligible_nodes=[anywhere, only_a])
    assert isinstance(verdict, GangFits)
    assert [fits.node for fits in verdict.members] == ["b", "a"]


def test_a_member_without_a_place_comes_before_the_others_the_next_time() -> None:
    """The small one has the smaller choice, and likes the only node that takes the large one."""
    sizes = {"a": 4, "b": 5, "c": 1, "d": 1}
    cluster = Inventory([rack_of(name, "one", gpus) for name, gpus in sizes.items()])
    small, large = Request(count=3), Request(count=4)
    alone = place_gang(cluster, [small], eligible_nodes=[frozenset("ab")])
    assert isinstance(alone, GangFits)
    assert alone.members[0].node == "a"
    verdict = place_gang(cluster, [small, large], eligible_nodes=[frozenset("ab"), frozenset("acd")])
    assert isinstance(verdict, GangFits)
    assert [fits.node for fits in verdict.members] == ["b", "a"]


def test_a_refused_gang_says_how_many_nodes_are_not_open_to_the_next() -> None:
    cluster = Inventory([rack_of("a", "one", 1), rack_of("b", "one", 1), rack_of("c", "one", 1)])
    verdict = place_gang(cluster, [Request(count=1)] * 2, eligible_nodes=[frozenset("a"), frozenset("a")])
    assert isinstance(verdict, GangRefused)
    assert verdict.summary == (
        "1 of 2 members fit; next member: 0/1 nodes fit: 1 has no free GPU; "
        "2 nodes are excluded by its node selector, affinity or taints"
    )
