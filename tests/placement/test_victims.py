from collections.abc import Iterator
from itertools import combinations

import hypothesis.strategies as st
from hypothesis import given, settings

from gpufleet.placement import (
    Allocation,
    CandidateGpu,
    CandidateNode,
    Exclusivity,
    Fits,
    Inventory,
    Request,
    Topology,
)
from gpufleet.placement.remedies import remedies
from gpufleet.placement.victims import MOST_CANDIDATES, Victim, evict_from, evictions, least_harmful


def node(name: str = "node-a", gpus: int = 8) -> CandidateNode:
    return CandidateNode(
        name, tuple(CandidateGpu(at, island=f"{at // 4}", bandwidth_gbps=600) for at in range(gpus))
    )


def holding(cluster: Inventory, name: str, *gpus: int, where: str = "node-a", milli: int = 1000) -> None:
    cluster.allocate(name, Allocation(name, where, gpus, milli))


@settings(max_examples=40, deadline=None)
@given(
    held=st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=1, max_size=3), st.integers(0, 3)), max_size=6
    ),
    count=st.integers(1, 4),
    required=st.booleans(),
)
def test_the_victims_are_the_least_harmful_of_all_sets_that_make_room(
    held: list[tuple[set[int], int]], count: int, required: bool
) -> None:
    cluster = Inventory([node(gpus=6)])
    victims = []
    for number, (gpus, priority) in enumerate(held):
        if all(cluster.free_milli("node-a")[gpu] >= 500 for gpu in gpus):
            holding(cluster, f"pod-{number}", *sorted(gpus), milli=500)
            victims.append(Victim(f"pod-{number}", priority))
    request = Request(count=count, topology=Topology.REQUIRED if required else Topology.IGNORE)

    def helps(chosen: tuple[Victim, ...]) -> bool:
        twin = cluster.copy()
        for victim in chosen:
            twin.free(victim.holder)
        return isinstance(twin.place(request), Fits)

    ways = [way for size in range(len(victims) + 1) for way in combinations(victims, size) if helps(way)]
    eviction = evict_from(cluster, request, "node-a", victims)
    if not ways:
        assert eviction is None
        return
    assert eviction is not None
    assert helps(eviction.victims)

    def harm(way: tuple[Victim, ...]) -> tuple[int, int, int]:
        priorities = [victim.priority for victim in way]
        return max(priorities, default=-1), len(way), sum(priorities)

    assert harm(eviction.victims) == min(map(harm, ways))


def test_nodes_are_ordered_by_the_harm_done() -> None:
    cluster = Inventory([node("node-a", 2), node("node-b", 2), node("node-c", 2)])
    holding(cluster, "important", 0, 1, where="node-a")
    holding(cluster, "one", 0, where="node-b")
    holding(cluster, "two", 1, where="node-b")
    holding(cluster, "cheap", 0, 1, where="node-c")
    candidates = {
        "node-a": [Victim("important", 9)],
        "node-b": [Victim("one", 1), Victim("two", 1)],
        "node-c": [Victim("cheap", 1)],
        "gone": [Victim("nobody")],
    }
    ordered = evictions(cluster, Request(count=2), candidates)
    assert [eviction.node for eviction in ordered] == ["node-c", "node-b", "node-a"]
    assert ordered[0].fits.gpus == (0, 1)
    assert set(cluster.allocations) == {"important", "one", "two", "cheap"}


def test_many_small_holders_are_spared_by_importance_when_sets_are_too_many_to_try() -> None:
    cluster = Inventory([node()])
    victims = []
    for number in range(80):
        holding(cluster, f"pod-{number:02}", number % 8, milli=100)
        victims.append(Victim(f"pod-{number:02}", number % 8))
    eviction = evict_from(cluster, Request(count=4), "node-a", victims)
    assert eviction is not None
    assert {victim.priority for victim in eviction.victims} == {0, 1, 2, 3}
    assert len(eviction.victims) == 40


def test_a_remedy_is_something_that_works() -> None:
    cluster = Inventory([node()])
    holding(cluster, "pod-0", 0)
    holding(cluster, "pod-1", 1)
    holding(cluster, "pod-2", 4)
    request = Request(count=4, topology=Topology.REQUIRED, min_bandwidth_gbps=600)
    found = {remedy.kind: remedy for remedy in remedies(cluster, request)}
    assert found["topology"].text == "set topology.mode to Preferred (then it fits on node-a)"
    assert found["count"].text == "ask for 3 instead of 4 (then it fits on node-a)"
    assert found["wait"].text == "wait for pod-2 on node-a to end"
    assert found["wait"].holders == ("pod-2",)
    assert set(found) == {"topology", "count", "wait"}


def test_selector_model_cpu_and_share_are_named_when_they_are_what_is_in_the_way() -> None:
    cluster = Inventory(
        [CandidateNode("node-a", (CandidateGpu(0, model="A100"),), cpu_milli=1000, memory_mib=1000)]
    )
    assert [r.kind for r in remedies(cluster, Request(models=frozenset({"H100"})))] == ["model"]
    assert [r.kind for r in remedies(cluster, Request(match_labels=frozenset({("a", "b")})))] == ["selector"]
    assert [r.kind for r in remedies(cluster, Request(cpu_milli=2000))] == ["cpu"]
    assert [r.kind for r in remedies(cluster, Request(memory_mib=2000))] == ["memory"]
    holding(cluster, "pod-1", 0, milli=500)
    assert [r.kind for r in remedies(cluster, Request())] == ["share", "wait"]
    assert remedies(cluster, Request(exclusivity=Exclusivity.SHARED)) == []


def test_the_fewest_leave_also_where_small_sets_are_many_and_none_of_them_is_enough() -> None:
    cluster = Inventory([node(gpus=12)])
    holding(cluster, "pod-00", 0, 1)
    for gpu in range(2, 12):
        holding(cluster, f"pod-{gpu:02}", gpu)
    victims = [Victim(holder) for holder in cluster.holders_on("node-a")]
    eviction = evict_from(cluster, Request(count=10), "node-a", victims)
    assert eviction is not None
    assert len(eviction.victims) == 9, "the pod with two GPUs, and eight with one"


def test_the_search_over_many_nodes_ends_once_enough_were_looked_at() -> None:
    names = [f"node-{at:03}" for at in range(100)]
    cluster = Inventory([node(name) for name in names])
    for name in names:
        for gpu in range(8):
            holding(cluster, f"pod-{gpu}@{name}", gpu, where=name)
    looked_at: list[str] = []

    def candidates() -> Iterator[tuple[str, list[Victim]]]:
        for name in names:
            looked_at.append(name)
            yield name, [Victim(holder) for holder in cluster.holders_on(name)]

    best = least_harmful(cluster, Request(count=2), candidates(), 200)
    assert best is not None
    assert (best.node, len(best.victims)) == ("node-000", 2)
    assert len(looked_at) == MOST_CANDIDATES // 8
