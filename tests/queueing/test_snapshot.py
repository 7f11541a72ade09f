"""The counts of a snapshot are those of a full count, whatever happens."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.placement.worlds import nodes, requests
from tests.queueing.counts import check

from gpufleet.placement import CandidateNode, Request
from gpufleet.queueing.needs import Need
from gpufleet.queueing.placing import place_members
from gpufleet.queueing.snapshot import NodeSpec, Snapshot, View
from gpufleet.queueing.tables import Tables
from gpufleet.queueing.units import Holder
from gpufleet.queueing.views import Evicted, Hidden

CPU, MEMORY = 16_000, 65_536


def spec_of(node: CandidateNode) -> NodeSpec:
    """Return a node of the placement tests for the core."""
    free = (
        CPU if node.cpu_milli is None else node.cpu_milli,
        MEMORY if node.memory_mib is None else node.memory_mib,
    )
    zone = node.labels.get("zone")
    return NodeSpec(
        node.gpus, frozenset(node.labels.items()), free, (zone,) if zone else (), node.cordoned, node.ready
    )


def need_of(request: Request, nodes: int | None = None) -> Need:
    """Return the need of a request; its labels, CPU and memory are those of the need."""
    gpus = Request(
        **{
            name: getattr(request, name)
            for name in (
                "count", "policy", "prefer_ids", "exclusivity", "share_milli", "mig_profile", "topology",
                "min_bandwidth_gbps", "models",
            )
        }
    )  # fmt: skip
    return Need(gpus, request.match_labels, nodes, (request.cpu_milli, request.memory_mib))


class Counting(RuleBasedStateMachine):
    """Place, release, hide and copy, with views and new needs in between."""

    @initialize(
        some=st.lists(nodes(most=5), min_size=2, max_size=5),
        asked=st.lists(requests(), min_size=1, max_size=3),
    )
    def begin(self, some: list[CandidateNode], asked: list[Request]) -> None:
        self.specs = [spec_of(node) for node in some]
        self.tables = Tables(("cpu", "memory"))
        self.needs = [need_of(request) for request in asked]
        self.snapshot = Snapshot(self.tables, self.specs)
        for need in self.needs:
            self.tables.need(need)
        self.snapshot.sync()
        self.number = 0

    @rule(request=requests(), nodes=st.sampled_from([None, None, 0b1, 0b110]))
    def add_need(self, request: Request, nodes: int | None) -> None:
        need = need_of(request, nodes)
        if need not in self.needs and len(self.needs) < 6:
            self.needs.append(need)
            self.tables.need(need)
            self.snapshot.sync()

    @rule(data=st.data(), members=st.integers(1, 3), priority=st.integers(0, 3))
    def start(self, data: st.DataObject, members: int, priority: int) -> None:
        need = self.tables.need(data.draw(st.sampled_from(self.needs)))
        places = place_members(self.snapshot, ((need, members),))
        assert (places is not None) == (self.snapshot.total[need] >= members)
        if places is not None:
            self.number += 1
            self.snapshot.take(Holder(f"u{self.number}", tuple(places), 0.0, priority))

    @precondition(lambda self: self.snapshot.holders)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        assert self.snapshot.release(data.draw(st.sampled_from(sorted(self.snapshot.holders)))) is not None

    @precondition(lambda self: self.snapshot.holders and len(self.snapshot.views) < 10)
    @rule(data=st.data(), priority=st.integers(0, 3))
    def look(self, data: st.DataObject, priority: int) -> None:
        key: tuple[str, int | str]
        view: View
        if data.draw(st.booleans()):
            key, view = ("lower", priority), Evicted(lambda holder: holder.priority < priority)
        else:
            holder = self.snapshot.holders[data.draw(st.sampled_from(sorted(self.snapshot.holders)))]
            key, view = ("kept", holder.key), Hidden(holder.places)
        if key not in self.snapshot.views:
            self.snapshot.add_view(key, view)

    @precondition(lambda self: self.snapshot.views)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.snapshot.drop_view(data.draw(st.sampled_from(list(self.snapshot.views))))

    @rule()
    def copy(self) -> None:
        before = self.snapshot
        self.snapshot = before.copy()
        for key in list(before.holders):
            before.release(key)

    @rule(kind=st.just(0))
    def count_domains(self, kind: int) -> None:
        if self.snapshot.domains:
            self.snapshot.domain_counts(kind)

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "snapshot"):
            check(self.snapshot, self.specs)


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
