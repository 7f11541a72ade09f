import random
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.placement.oracle import best_set
from tests.placement.worlds import clusters, requests

from gpufleet.errors import InvalidRequest
from gpufleet.errors import OperationRefused as Forbidden
from gpufleet.placement import (
    Allocation,
    CandidateGpu,
    CandidateNode,
    Demand,
    Exclusivity,
    Fits,
    Inventory,
    Kind,
    Refused,
    Request,
    Topology,
)


def eight(name: str, **more: object) -> CandidateNode:
    gpus = tuple(CandidateGpu(at, island="all", bandwidth_gbps=600) for at in range(8))
    return CandidateNode(name, gpus, **more)  # type: ignore[arg-type]


def fill(cluster: Inventory, asks: list[Request]) -> list[str]:
    holders = []
    for number, request in enumerate(asks):
        verdict = cluster.place(request)
        if isinstance(verdict, Fits):
            cluster.allocate(f"pod-{number}", verdict)
            holders.append(f"pod-{number}")
    return holders


def contents(cluster: Inventory) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]]:
    """Everything that later placements depend on."""
    states = cluster.states
    seen = {}
    for name, state in zip(cluster.index().names, cluster.index().state.tolist(), strict=True):
        occupancy = states.occupancies[states.occupancy[state]]
        seen[name] = (occupancy.free, occupancy.mig, int(states.cpu[state]), int(states.memory[state]))
    return seen


def fits_somewhere(cluster: Inventory, request: Request) -> bool:
    """By the oracle: every node, every set."""
    for name, node in cluster.nodes.items():
        _, _, cpu, memory = contents(cluster)[name]
        if (
            cpu < request.cpu_milli
            or memory < request.memory_mib
            or not request.match_labels <= node.labels.items()
        ):
            continue
        if best_set(request, node, cluster.free_milli(name)) is not None:
            return True
    return False


@settings(max_examples=40, deadline=None)
@given(
    nodes=clusters(),
    asks=st.lists(requests(), max_size=12),
    last=requests((Exclusivity.EXCLUSIVE, Exclusivity.SHARED)),
)
def test_a_request_is_placed_exactly_when_some_node_has_a_set_for_it(
    nodes: list[CandidateNode], asks: list[Request], last: Request
) -> None:
    cluster = Inventory(nodes)
    fill(cluster, asks)
    verdict = cluster.place(last)
    assert isinstance(verdict, Fits) == fits_somewhere(cluster, last)
    if isinstance(verdict, Fits):
        node = cluster.nodes[verdict.node]
        assert verdict.gpus == best_set(last, node, cluster.free_milli(verdict.node))
        assert 0 < verdict.score <= 1


@settings(max_examples=40, deadline=None)
@given(nodes=clusters(), asks=st.lists(requests(), max_size=12), seed=st.integers(0, 99))
def test_the_order_in_which_nodes_are_told_does_not_matter(
    nodes: list[CandidateNode], asks: list[Request], seed: int
) -> None:
    one, other = Inventory(nodes), Inventory(random.Random(seed).sample(nodes, len(nodes)))
    for number, request in enumerate(asks):
        first, second = one.place(request), other.place(request)
        assert first == second
        if isinstance(first, Fits) and isinstance(second, Fits):
            one.allocate(f"pod-{number}", first)
            other.allocate(f"pod-{number}", second)
        elif isinstance(first, Refused) and isinstance(second, Refused):
            assert first.reasons == second.reasons


@settings(max_examples=40, deadline=None)
@given(
    nodes=clusters(),
    asks=st.lists(requests(), max_size=10),
    request_=requests(),
    pick=st.randoms(use_true_random=False),
)
def test_freeing_never_makes_a_feasible_request_infeasible(
    nodes: list[CandidateNode], asks: list[Request], request_: Request, pick: random.Random
) -> None:
    cluster = Inventory(nodes)
    holders = fill(cluster, asks)
    fitted = isinstance(cluster.place(request_), Fits)
    pick.shuffle(holders)
    for holder in holders:
        cluster.free(holder)
        fits = isinstance(cluster.place(request_), Fits)
        assert fits or not fitted
        fitted = fits


@settings(max_examples=40, deadline=None)
@given(nodes=clusters(), asks=st.lists(requests(), max_size=10), more=st.lists(requests(), max_size=6))
def test_allocate_then_free_restores_the_state_exactly(
    nodes: list[CandidateNode], asks: list[Request], more: list[Request]
) -> None:
    cluster = Inventory(nodes)
    fill(cluster, asks)
    before, verdicts = contents(cluster), [cluster.place(request) for request in more]
    held = []
    for number, request in enumerate(more):
        verdict = cluster.place(request)
        if isinstance(verdict, Fits):
            cluster.allocate(f"more-{number}", verdict)
            held.append(f"more-{number}")
    for holder in held:
        cluster.free(holder)
    assert contents(cluster) == before
    assert [cluster.place(request) for request in more] == verdicts


@settings(max_examples=40, deadline=None)
@given(nodes=clusters(), asks=st.lists(requests(), max_size=25))
def test_no_gpu_is_given_beyond_its_capacity(nodes: list[CandidateNode], asks: list[Request]) -> None:
    cluster = Inventory(nodes)
    fill(cluster, asks)
    used: dict[tuple[str, int], int] = {}
    instances: list[tuple[str, int, str]] = []
    for allocation in cluster.allocations.values():
        for gpu in allocation.gpus if allocation.milli else ():
            used[allocation.node, gpu] = used.get((allocation.node, gpu), 0) + allocation.milli
        instances += [(allocation.node, *instance) for instance in allocation.instances]
    assert all(milli <= 1000 for milli in used.values())
    assert len(instances) == len(set(instances))
    for name in cluster.nodes:
        for gpu, left in cluster.free_milli(name).items():
            taken = next(known.taken for known in cluster.nodes[name].gpus if known.id == gpu)
            assert left == (0 if taken else 1000) - used.get((name, gpu), 0)


@settings(max_examples=40, deadline=None)
@given(
    nodes=clusters(),
    asks=st.lists(requests(), max_size=10),
    request_=requests(),
    names=st.sets(st.sampled_from(["node-a", "node-b", "node-c", "node-d", "gone"])),
)
def test_candidates_are_chosen_from_as_if_they_were_the_whole_cluster(
    nodes: list[CandidateNode], asks: list[Request], request_: Request, names: set[str]
) -> None:
    cluster = Inventory(nodes)
    fill(cluster, asks)
    small = Inventory(node for node in nodes if node.name in names)
    for allocation in cluster.allocations.values():
        small.allocate(allocation.holder, allocation)
    here, there = cluster.place(request_, list(names)), small.place(request_)
    if isinstance(here, Fits):
        assert here == there
    else:
        assert isinstance(there, Refused)
        assert set(here.reasons) == names
        assert {name: why for name, why in here.reasons.items() if name != "gone"} == there.reasons


@settings(max_examples=40, deadline=None)
@given(
    nodes=clusters(), asks=st.lists(requests(), max_size=8), more=st.lists(requests(), min_size=1, max_size=8)
)
def test_a_copy_answers_alike_and_changes_alone(
    nodes: list[CandidateNode], asks: list[Request], more: list[Request]
) -> None:
    cluster = Inventory(nodes)
    fill(cluster, asks)
    before = contents(cluster)
    twin = cluster.copy()
    for number, request in enumerate(more):
        taken = twin.take(request)
        if isinstance(taken, Fits):
            assert cluster.place(request) == taken
            cluster.allocate(f"more-{number}", taken)
        assert contents(twin) == contents(cluster)
    for number in range(len(more)):
        cluster.free(f"more-{number}")
    assert contents(cluster) == before


@settings(max_examples=40, deadline=None)
@given(nodes=clusters(), asks=st.lists(requests(), max_size=8), request_=requests(), number=st.integers(0, 9))
def test_taking_many_alike_is_taking_one_by_one(
    nodes: list[CandidateNode], asks: list[Request], request_: Request, number: int
) -> None:
    cluster = Inventory(nodes)
    fill(cluster, asks)
    request_ = replace(request_, match_labels=frozenset())
    one, many = cluster.copy(), cluster.copy()
    verdicts = [one.take(request_) for _ in range(number)]
    found, why = many.take_alike(request_, number)
    assert found == [verdict for verdict in verdicts if isinstance(verdict, Fits)]
    assert (why is None) == (len(found) == number)
    assert contents(one) == contents(many)


def test_a_refusal_counts_reasons_and_names_one_for_each_node() -> None:
    sick = CandidateNode(
        "node-sick", tuple(CandidateGpu(at, health="Unknown" if at else "Healthy") for at in range(4))
    )
    cluster = Inventory(
        [
            eight("node-full"),
            eight("node-cordoned", cordoned=True),
            eight("node-lost", ready=False),
            CandidateNode("node-small", (CandidateGpu(0), CandidateGpu(1))),
            sick,
            CandidateNode(
                "node-slow",
                tuple(CandidateGpu(at, island=f"{at % 2}", bandwidth_gbps=600) for at in range(6)),
            ),
        ]
    )
    cluster.allocate("pod-1", Allocation("pod-1", "node-full", tuple(range(5)), 1000))
    verdict = cluster.place(Request(count=4, topology=Topology.REQUIRED, min_bandwidth_gbps=600))
    assert isinstance(verdict, Refused)
    assert verdict.reasons == {
        "node-cordoned": "node(s) had been cordoned",
        "node-full": "node(s) had fewer than 4 free GPUs",
        "node-lost": "node(s) were not ready",
        "node-sick": "node(s) had fewer than 4 healthy GPUs",
        "node-slow": "node(s) lacked an island with 4 free at 600 GB/s",
        "node-small": "node(s) had fewer than 4 GPUs",
    }
    assert verdict.unresolvable == {"node-cordoned", "node-lost", "node-sick", "node-small"}
    assert verdict.summary == (
        "0/6 nodes fit: 1 has been cordoned, 1 is not ready, 1 has fewer than 4 GPUs, "
        "1 has fewer than 4 healthy GPUs, 1 has fewer than 4 free GPUs, "
        "1 lacks an island with 4 free at 600 GB/s"
    )


def test_the_summary_puts_the_commonest_reason_first() -> None:
    cluster = Inventory(
        [
            *(CandidateNode(f"small-{at}", (CandidateGpu(0),)) for at in range(3)),
            eight("zz", labels={"zone": "y"}),
        ]
    )
    verdict = cluster.place(Request(count=2, match_labels=frozenset({("zone", "x")})))
    assert isinstance(verdict, Refused)
    assert verdict.summary == "0/4 nodes fit: 4 have other labels than the claim's selector"
    verdict = cluster.place(Request(count=2), among=["small-0", "small-1", "nowhere"])
    assert isinstance(verdict, Refused)
    assert verdict.summary == "0/3 nodes fit: 2 have fewer than 2 GPUs, 1 has no GPU report"


def test_an_empty_cluster_refuses_politely() -> None:
    verdict = Inventory().place(Request())
    assert isinstance(verdict, Refused)
    assert verdict.summary == "0/0 nodes fit: no node is known"


def test_cpu_and_memory_count_where_they_are_known() -> None:
    cluster = Inventory([eight("node-a", cpu_milli=4000, memory_mib=1024), eight("node-b")])
    verdict = cluster.place(Request(cpu_milli=5000))
    assert isinstance(verdict, Fits)
    assert verdict.node == "node-b"
    cluster.remove_node("node-b")
    refused = cluster.place(Request(cpu_milli=5000))
    assert isinstance(refused, Refused)
    assert refused.summary == "0/1 nodes fit: 1 has too little free CPU"
    refused = cluster.place(Request(memory_mib=2000))
    assert isinstance(refused, Refused)
    assert refused.summary == "0/1 nodes fit: 1 has too little free memory"


def test_a_node_that_is_reported_anew_keeps_its_allocations() -> None:
    cluster = Inventory([eight("node-a")])
    cluster.allocate("pod-1", Allocation("pod-1", "node-a", (0, 1, 2), 1000))
    sick = CandidateNode(
        "node-a", tuple(CandidateGpu(at, health="Unhealthy" if at == 7 else "Healthy") for at in range(8))
    )
    cluster.put_node(sick)
    verdict = cluster.place(Request(count=5))
    assert isinstance(verdict, Refused)
    assert verdict.summary == "0/1 nodes fit: 1 has fewer than 5 free GPUs"
    cluster.free("pod-1")
    assert isinstance(cluster.place(Request(count=7)), Fits)


def test_allocations_outlive_their_node_and_count_again_when_it_returns() -> None:
    cluster = Inventory([eight("node-a")])
    cluster.allocate("pod-1", Allocation("pod-1", "node-a", tuple(range(8)), 1000))
    cluster.remove_node("node-a")
    cluster.remove_node("node-a")
    cluster.put_node(eight("node-a"))
    assert isinstance(cluster.place(Request()), Refused)


def test_a_gpu_is_not_given_twice_but_what_was_seen_is_recorded() -> None:
    cluster = Inventory([eight("node-a")])
    mine = Allocation("pod-1", "node-a", (3,), 1000)
    assert cluster.allocate("pod-1", mine) == cluster.allocate("pod-1", mine)
    with pytest.raises(Forbidden, match="pod-2 can't have GPU 3 of node-a: 0 of it is free"):
        cluster.allocate("pod-2", Allocation("pod-2", "node-a", (3,), 1000))
    with pytest.raises(Forbidden, match="pod-1 already holds"):
        cluster.allocate("pod-1", Allocation("pod-1", "node-a", (4,), 1000))
    cluster.allocate("pod-2", Allocation("pod-2", "node-a", (3,), 1000), observed=True)
    cluster.free("pod-1")
    assert cluster.free_milli("node-a")[3] == 0
    assert cluster.free("pod-1") is None


def test_many_states_are_forgotten_without_changing_an_answer() -> None:
    cluster = Inventory([eight("node-a", cpu_milli=10**9), eight("node-b", cpu_milli=10**9)])
    for number in range(5000):
        verdict = cluster.take(Request(count=0, cpu_milli=1 + number % 7))
        assert isinstance(verdict, Fits)
    assert cluster.states.size < 4200
    left = sum(int(cpu) for cpu in cluster.states.nodes(cluster.population()[0]).cpu)
    assert left == 2 * 10**9 - sum(1 + number % 7 for number in range(5000))


def test_a_learned_demand_changes_where_work_goes() -> None:
    small, large = CandidateNode("a-small", (CandidateGpu(0), CandidateGpu(1))), eight("b-large")
    for name, gpus in (("b-large", 8), ("a-small", 2)):
        cluster = Inventory([small, large])
        cluster.learn(Demand.of({Kind(10 - gpus, 1000): 1.0}))
        verdict = cluster.place(Request())
        assert isinstance(verdict, Fits)
        assert verdict.node == name


def test_a_request_that_makes_no_sense_is_refused_with_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"devices\.share is 0; it must be 0\.01 to 1\.0"):
        Request(exclusivity=Exclusivity.SHARED, share_milli=0)
    with pytest.raises(InvalidRequest, match=r"devices\.count is -1"):
        Request(count=-1)
    with pytest.raises(InvalidRequest, match="they must differ"):
        Inventory([CandidateNode("node-a", (CandidateGpu(0), CandidateGpu(0)))])
