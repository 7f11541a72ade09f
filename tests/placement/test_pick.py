import hypothesis.strategies as st
from hypothesis import example, given, settings
from tests.placement.oracle import best_set
from tests.placement.worlds import nodes, requests

from gpufleet.placement import (
    CandidateGpu,
    CandidateMigInstance,
    CandidateNode,
    Exclusivity,
    Fits,
    Inventory,
    Policy,
    Refused,
    Request,
    Topology,
)

WHOLE_OR_SHARED = (Exclusivity.EXCLUSIVE, Exclusivity.SHARED)


def gpus_of(verdict: Fits | Refused) -> tuple[int, ...] | None:
    return verdict.gpus if isinstance(verdict, Fits) else None


@settings(max_examples=100, deadline=None)
@given(
    node=nodes(),
    request=requests(WHOLE_OR_SHARED),
    busy=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([100, 500, 700, 1000]))),
)
def test_the_picked_set_is_the_best_of_all_feasible_sets(
    node: CandidateNode, request: Request, busy: list[tuple[int, int]]
) -> None:
    cluster = Inventory([node])
    for number, (gpu, milli) in enumerate(busy):
        if cluster.free_milli(node.name).get(gpu, 0) >= milli:
            used = Request(exclusivity=Exclusivity.SHARED, share_milli=milli)
            cluster.allocate(f"busy-{number}", Fits(used, node.name, (gpu,)))
    wanted = best_set(request, node, cluster.free_milli(node.name))
    roomy = (node.cpu_milli is None or node.cpu_milli >= request.cpu_milli) and (
        node.memory_mib is None or node.memory_mib >= request.memory_mib
    )
    fits_node = roomy and request.match_labels <= node.labels.items()
    assert gpus_of(cluster.place(request)) == (wanted if fits_node else None)


@settings(max_examples=100, deadline=None)
@given(
    free=st.sets(st.integers(0, 13), max_size=12),
    count=st.integers(1, 8),
    wanted=st.lists(st.integers(0, 13), unique=True, max_size=3),
    policy=st.sampled_from(list(Policy)),
)
@example(free={0, 1, 2, 4, 6, 7, 9, 10, 11}, count=7, wanted=[], policy=Policy.CONTIGUOUS)
def test_fragmented_nodes_are_searched_as_well_as_by_trying_every_set(
    free: set[int], count: int, wanted: list[int], policy: Policy
) -> None:
    node = CandidateNode(
        "node-a", tuple(CandidateGpu(at, island=f"i{at // 4}", taken=at not in free) for at in range(14))
    )
    request = Request(count=count, policy=policy, prefer_ids=tuple(wanted))
    milli = {at: 1000 if at in free else 0 for at in range(14)}
    assert gpus_of(Inventory([node]).place(request)) == best_set(request, node, milli)


def test_adjacent_ids_come_from_the_smallest_gap_that_holds_them() -> None:
    node = CandidateNode("node-a", tuple(CandidateGpu(at, taken=at in (2, 3)) for at in range(8)))
    assert gpus_of(Inventory([node]).place(Request(count=2))) == (0, 1)


def test_64_gpus_in_scattered_gaps_are_searched_at_once() -> None:
    node = CandidateNode(
        "node-a", tuple(CandidateGpu(at, taken=at % 5 == 4 or at % 7 == 3) for at in range(64))
    )
    found = gpus_of(Inventory([node]).place(Request(count=23)))
    assert found is not None
    assert len(found) == 23


def test_a_set_on_one_island_with_the_bandwidth_is_required() -> None:
    node = CandidateNode(
        "node-a",
        tuple(
            CandidateGpu(at, island="fast" if at < 4 else "slow", bandwidth_gbps=600 if at < 4 else 64)
            for at in range(8)
        ),
    )
    cluster = Inventory([node])
    four = Request(count=4, topology=Topology.REQUIRED, min_bandwidth_gbps=600)
    first = cluster.place(four)
    assert gpus_of(first) == (0, 1, 2, 3)
    assert isinstance(first, Fits)
    cluster.allocate("pod-1", first)
    second = cluster.place(four)
    assert isinstance(second, Refused)
    assert second.summary == "0/1 nodes fit: 1 lacks an island with 4 free at 600 GB/s"
    assert gpus_of(cluster.place(Request(count=4, topology=Topology.PREFERRED, min_bandwidth_gbps=600))) == (
        4,
        5,
        6,
        7,
    )


def test_mig_instances_fill_the_fullest_gpu_first() -> None:
    two = tuple(CandidateMigInstance(f"a{at}", "1g.10gb") for at in range(2))
    three = (
        *(CandidateMigInstance(f"b{at}", "1g.10gb") for at in range(3)),
        CandidateMigInstance("b3", "2g.20gb"),
    )
    cluster = Inventory(
        [CandidateNode("node-a", (CandidateGpu(0, mig=three), CandidateGpu(1, mig=two), CandidateGpu(2)))]
    )
    ask = Request(count=1, exclusivity=Exclusivity.MIG, mig_profile="1g.10gb")
    taken = []
    for number in range(5):
        verdict = cluster.place(ask)
        assert isinstance(verdict, Fits)
        taken.append(verdict.instances)
        cluster.allocate(f"pod-{number}", verdict)
    assert taken == [((1, "a0"),), ((1, "a1"),), ((0, "b0"),), ((0, "b1"),), ((0, "b2"),)]
    refused = cluster.place(ask)
    assert isinstance(refused, Refused)
    assert refused.summary == "0/1 nodes fit: 1 has fewer than 1 free MIG instances of 1g.10gb"
    cluster.free("pod-3")
    again = cluster.place(ask)
    assert isinstance(again, Fits)
    assert again.instances == ((0, "b1"),)


def test_a_request_without_a_profile_takes_the_smallest_free_instances_of_any_node() -> None:
    small = CandidateMigInstance("s", "1g.10gb")
    large, larger = CandidateMigInstance("l", "3g.40gb"), CandidateMigInstance("x", "4g.40gb")
    inventory = Inventory(
        [
            CandidateNode("a", (CandidateGpu(0, mig=(larger,)),)),
            CandidateNode("b", (CandidateGpu(0, mig=(large, small)),)),
        ]
    )
    ask = Request(count=1, exclusivity=Exclusivity.MIG)
    found = []
    for holder in ("p", "q", "r"):
        verdict = inventory.place(ask)
        assert isinstance(verdict, Fits)
        inventory.allocate(holder, verdict)
        found.append((verdict.node, verdict.instances))
    assert found == [("b", ((0, "s"),)), ("b", ((0, "l"),)), ("a", ((0, "x"),))]
    refused = inventory.place(ask)
    assert isinstance(refused, Refused)
    assert refused.summary == "0/2 nodes fit: 2 have fewer than 1 free MIG instances"


def test_a_gpu_in_mig_mode_serves_no_other_request() -> None:
    node = CandidateNode("node-a", (CandidateGpu(0, mig=(CandidateMigInstance("m", "7g.80gb"),)),))
    assert gpus_of(Inventory([node]).place(Request())) is None
    assert gpus_of(Inventory([node]).place(Request(exclusivity=Exclusivity.SHARED))) is None


def test_shares_fill_a_gpu_before_the_next_is_opened_and_spread_does_the_opposite() -> None:
    cluster = Inventory([CandidateNode("node-a", (CandidateGpu(0), CandidateGpu(1)))])
    half = Request(exclusivity=Exclusivity.SHARED, share_milli=400)
    verdict = cluster.place(half)
    assert isinstance(verdict, Fits)
    cluster.allocate("pod-1", verdict)
    assert gpus_of(cluster.place(half)) == (0,)
    apart = Request(exclusivity=Exclusivity.SHARED, share_milli=400, policy=Policy.SPREAD)
    assert gpus_of(cluster.place(apart)) == (1,)
