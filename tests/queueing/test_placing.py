"""Units get the places that the inventory of the placement core gives them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.placement.worlds import clusters, requests
from tests.queueing.test_snapshot import need_of, spec_of

from gpufleet.placement import CandidateGpu, CandidateNode, Fits, Inventory, Request
from gpufleet.queueing.needs import Need
from gpufleet.queueing.placing import place_members
from gpufleet.queueing.snapshot import NodeSpec, Snapshot
from gpufleet.queueing.tables import Tables
from gpufleet.queueing.units import Holder, Level


@given(clusters(), st.lists(requests(), min_size=1, max_size=4), st.data())
def test_the_best_place_is_that_of_the_inventory(
    cluster: list[CandidateNode], asked: list[Request], data: st.DataObject
) -> None:
    cluster = [
        replace(node, cpu_milli=None, memory_mib=None) for node in sorted(cluster, key=lambda node: node.name)
    ]
    asked = [replace(request, cpu_milli=0, memory_mib=0) for request in asked]
    inventory, tables = Inventory(cluster), Tables(("cpu", "memory"))
    snapshot = Snapshot(tables, [spec_of(node) for node in cluster])
    for step in range(6):
        request = data.draw(st.sampled_from(asked))
        need = tables.need(need_of(request))
        snapshot.sync()
        verdict, found = inventory.place(request), place_members(snapshot, ((need, 1),))
        if not isinstance(verdict, Fits):
            assert found is None
            continue
        assert found is not None
        (place,) = found
        assert (cluster[place.node].name, place.gpus, place.instances) == (
            verdict.node,
            verdict.gpus,
            verdict.instances,
        )
        inventory.allocate(f"u{step}", verdict)
        snapshot.take(Holder(f"u{step}", (place,), 0.0))


def fleet(*nodes: tuple[int, str], cpu: int = 64) -> Snapshot:
    """Return nodes with so many GPUs in a rack each."""
    return Snapshot(
        Tables(("cpu",)),
        [
            NodeSpec(tuple(CandidateGpu(at) for at in range(gpus)), free=(cpu,), domains=(rack,))
            for gpus, rack in nodes
        ],
    )


def place(snapshot: Snapshot, *sizes: tuple[int, int, int], level: Level | None = None) -> list[int] | None:
    """Return the nodes for members, given as GPUs, CPU and number."""
    needs = [
        (snapshot.tables.need(Need(Request(count=gpus), amounts=(cpu,))), members)
        for gpus, cpu, members in sizes
    ]
    snapshot.sync()
    found = place_members(snapshot, tuple(needs), level)
    return None if found is None else [each.node for each in found]


def test_a_gang_stays_in_the_fullest_rack_that_takes_it() -> None:
    snapshot = fleet((8, "a"), (8, "a"), (8, "a"), (8, "b"), (8, "b"))
    assert place(snapshot, (8, 1, 2), level=Level((0,))) == [3, 4]
    assert place(snapshot, (8, 1, 3), level=Level((0,), required=True)) == [0, 1, 2]
    assert place(snapshot, (8, 1, 4), level=Level((0,), required=True)) is None
    assert place(snapshot, (8, 1, 4), level=Level((0,))) == [0, 1, 2, 3]


def test_members_of_one_node_share_its_cpu() -> None:
    snapshot = fleet((8, "a"), (8, "a"), cpu=10)
    assert place(snapshot, (1, 5, 4)) == [0, 0, 1, 1]
    assert place(snapshot, (1, 5, 5)) is None


def test_members_that_need_most_are_placed_first() -> None:
    snapshot = fleet((8, "a"), (4, "a"))
    assert place(snapshot, (4, 1, 1), (8, 1, 1)) == [1, 0]


def test_a_need_that_names_its_nodes_gets_no_other() -> None:
    snapshot = fleet((8, "a"), (8, "a"), (8, "a"))
    need = snapshot.tables.need(Need(Request(count=8), nodes=0b110))
    snapshot.sync()
    assert snapshot.total[need] == 2
    found = place_members(snapshot, ((need, 2),))
    assert found is not None
    assert [each.node for each in found] == [1, 2]
