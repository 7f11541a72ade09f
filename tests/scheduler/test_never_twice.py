"""Never a GPU booked twice, whatever the API server and the processes do.

Two schedulers act at the same time, which is worse than any election allows. At every step a
pod that is bound has the leases that its annotation names, and no GPU is promised beyond what
it is. When faults end, one scheduler brings everything in order: no lease without its pod, no
pod left out that fits, no gang in part.
"""

import os
from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.scheduler.world import Call, Outcome, Process, World

from gpufleet.model.annotations import ALLOCATED, CLAIM, GANG_GATE
from gpufleet.model.kube_objects import Pod
from gpufleet.placement import Refused
from gpufleet.placement.kubernetes import Ledger, lease_name, read_lease, request_of
from gpufleet.placement.kubernetes.leases import Holder
from gpufleet.scheduler.statuses import status_of
from gpufleet.scheduler.waiting import WaitingRoom

CLAIMS: dict[str, dict[str, Any]] = {
    "one": {"count": 1},
    "two": {"count": 2},
    "half": {"count": 1, "exclusivity": "Shared", "share": 0.5},
}
GANG = 2
OUTCOMES: tuple[Outcome, ...] = ("done", "done", "done", "answer lost", "failed", "late")
EXAMPLES = int(os.environ.get("GPUFLEET_EXAMPLES", "20"))


def allocation(pod: Pod) -> tuple[str, list[int]]:
    node, _, ids = pod.metadata.annotations.get(ALLOCATED, "").rpartition(":")
    return node, [int(gpu) for gpu in ids.split(",") if gpu]


class Schedulers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World({"a": 2, "b": 1, "c": 2})
        for name, devices in CLAIMS.items():
            self.world.add_claim(name, **devices)
        for gang in ("g", "h"):
            self.world.add_claim(f"of-{gang}", gang=gang, count=1)
            self.world.add_group(gang, GANG, 20)
        self.processes = [Process(self.world), Process(self.world)]
        self.made = 0
        self.broken_gangs: set[str] = set()

    # -- users -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.all("pods")) < 8)
    @rule(claim=st.sampled_from(sorted(CLAIMS)))
    def create_a_pod(self, claim: str) -> None:
        self.made += 1
        self.world.add_pod(f"p{self.made}", claim)

    @precondition(lambda self: len(self.world.all("pods")) < 8)
    @rule(gang=st.sampled_from(["g", "h"]), gated=st.booleans())
    def create_a_gang(self, gang: str, gated: bool) -> None:
        if any(pod.metadata.annotations[CLAIM] == f"of-{gang}" for pod in self.world.all("pods")):
            return
        self.broken_gangs.discard(gang)
        for _ in range(GANG):
            self.made += 1
            self.world.add_pod(f"p{self.made}", f"of-{gang}", (GANG_GATE,) if gated else ())

    @precondition(lambda self: self.world.all("pods"))
    @rule(data=st.data(), finish=st.booleans())
    def end_a_pod(self, data: st.DataObject, finish: bool) -> None:
        pod = data.draw(st.sampled_from(self.world.all("pods")))
        claim = pod.metadata.annotations[CLAIM]
        if claim.startswith("of-"):
            self.broken_gangs.add(claim.removeprefix("of-"))
        if finish and pod.spec.node_name and not pod.finished:
            self.world.finish(pod)
        else:
            self.world.remove("pods", "ns", pod.metadata.name)

    # -- schedulers ------------------------------------------------------------------------

    @precondition(lambda self: any(self.unbound()))
    @rule(picks=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1)), min_size=1, max_size=3))
    def schedule_pods(self, picks: list[tuple[int, int]]) -> None:
        for at, which in picks:
            pods = self.unbound()
            self.processes[which].schedule(pods[at % len(pods)])

    @rule(which=st.integers(0, 1), part=st.sampled_from(["care", "gangs", "statuses"]))
    def look_around(self, which: int, part: Any) -> None:
        self.processes[which].look(part)

    @rule(which=st.integers(0, 1), events=st.sampled_from([1, 3, 100]))
    def hear_from_the_watch(self, which: int, events: int) -> None:
        self.processes[which].watch(events)
        self.world.settle()

    @rule(which=st.integers(0, 1))
    def crash_and_restart(self, which: int) -> None:
        self.processes[which].kill()
        self.processes[which] = Process(self.world)

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    # -- the server ------------------------------------------------------------------------

    @precondition(lambda self: self.world.calls)
    @rule(answers=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(OUTCOMES)), min_size=1, max_size=6))
    def answer_calls(self, answers: list[tuple[int, Outcome]]) -> None:
        for at, outcome in answers:
            if self.world.calls:
                self.world.resolve(self.world.calls[at % len(self.world.calls)], outcome)
                self.check_safety()

    @precondition(lambda self: self.world.calls)
    @rule()
    def answer_all_calls(self) -> None:
        self.answer_everything()

    @precondition(lambda self: self.world.calls)
    @rule(
        kind=st.sampled_from(["bind", "nudge", "create lease", "replace lease", "delete lease", "read"]),
        outcome=st.sampled_from(OUTCOMES[-3:]),
    )
    def answer_all_calls_but_one(self, kind: str, outcome: Outcome) -> None:
        """All goes well but for the first call of a kind."""
        for call in self.calls_to_come():
            if kind and call.name.startswith(kind):
                self.world.resolve(call, outcome)
                kind = ""
            else:
                self.world.resolve(call, "done")
            self.check_safety()

    @precondition(lambda self: self.world.late)
    @rule(at=st.integers(0, 3))
    def do_a_late_request(self, at: int) -> None:
        self.world.arrive_late(at % len(self.world.late))

    # -- what must be so -------------------------------------------------------------------

    @invariant()
    def who_is_bound_has_the_leases(self) -> None:
        for pod in self.bound():
            node, gpus = allocation(pod)
            assert node == pod.spec.node_name
            for gpu in gpus:
                assert pod.metadata.uid in self.holders(node, gpu), (
                    f"{pod.metadata.name} runs on GPU {gpu} of {node} without its lease"
                )

    @invariant()
    def no_gpu_is_given_beyond_what_it_is(self) -> None:
        running: dict[tuple[str, int], int] = {}
        for pod in self.bound():
            node, gpus = allocation(pod)
            claim: Any = self.world.objects["claims", "ns", pod.metadata.annotations[CLAIM]]
            assert len(gpus) == claim.spec.devices.count
            for gpu in gpus:
                running[node, gpu] = running.get((node, gpu), 0) + request_of(claim).milli_per_gpu
        assert all(milli <= 1000 for milli in running.values()), running
        for lease in self.world.all("leases"):
            read = read_lease(lease)
            assert read is not None
            assert not read.foreign
            assert sum(holder.milli for holder in read.holders.values()) <= 1000

    @invariant()
    def nothing_fails_but_with_an_answer(self) -> None:
        for process in self.processes:
            process.check_tasks()

    def teardown(self) -> None:
        try:
            self.comes_to_order()
        finally:
            for process in self.processes:
                process.kill()
            self.world.loop.close()

    def comes_to_order(self) -> None:
        """Faults end, what is late arrives, one scheduler is left."""
        world = self.world
        self.processes[1].kill()
        process = self.processes[0]
        for _ in range(25):
            while world.late:
                world.arrive_late(0)
            self.answer_everything()
            process.watch(len(world.history))
            for part in ("gangs", "care", "statuses"):
                process.look(part)
                self.answer_everything()
                process.watch(len(world.history))
            for pod in world.all("pods"):
                if not pod.finished and process.schedule(world.pod(pod.metadata.name) or pod):
                    self.answer_everything()
            process.watch(len(world.history))
            world.now += 4.0
        self.check_safety()
        self.nothing_fails_but_with_an_answer()
        self.no_lease_is_left_behind()
        self.nobody_is_left_out()
        self.gangs_run_whole_or_not_at_all()
        self.statuses_tell_the_truth()

    def no_lease_is_left_behind(self) -> None:
        needed = {
            (lease_name(node, gpu), pod.metadata.uid)
            for pod in self.bound()
            for node, gpus in [allocation(pod)]
            for gpu in gpus
        }
        there = {
            (lease.metadata.name, uid)
            for lease in self.world.all("leases")
            for uid in (lease.spec.holder_identity or "").split(",")
        }
        assert there == needed

    def nobody_is_left_out(self) -> None:
        ledger = self.fresh_ledger()
        for pod in self.living():
            claim = pod.metadata.annotations[CLAIM]
            if not pod.spec.node_name and claim in CLAIMS:
                request = request_of(self.world.objects["claims", "ns", claim])  # type: ignore[arg-type]
                assert isinstance(ledger.cluster.place(request), Refused), f"{pod.metadata.name} would fit"

    def gangs_run_whole_or_not_at_all(self) -> None:
        for gang in {"g", "h"} - self.broken_gangs:
            members = [pod for pod in self.living() if pod.metadata.annotations[CLAIM] == f"of-{gang}"]
            assert sum(bool(pod.spec.node_name) for pod in members) in (0, len(members))

    def statuses_tell_the_truth(self) -> None:
        ledger = self.fresh_ledger()
        for claim in self.world.all("claims"):
            truth = status_of(ledger, WaitingRoom(), claim)
            entries = {each["podUid"]: tuple(each["gpuIds"]) for each in truth["allocations"] or ()}
            assert {each.pod_uid: each.gpu_ids for each in claim.status.allocations} == entries

    # -- looking ---------------------------------------------------------------------------

    def answer_everything(self) -> None:
        for call in self.calls_to_come():
            self.world.resolve(call, "done")

    def calls_to_come(self) -> Iterator[Call]:
        """The oldest call, until none is left; there is an end to them."""
        for _ in range(1000):
            if not self.world.calls:
                return
            yield self.world.calls[0]
        raise AssertionError(f"calls without end, such as {self.world.calls[0].name}")

    def living(self) -> Iterator[Pod]:
        return (pod for pod in self.world.all("pods") if not pod.finished)

    def unbound(self) -> list[Pod]:
        return [pod for pod in self.living() if not pod.spec.node_name]

    def check_safety(self) -> None:
        self.who_is_bound_has_the_leases()
        self.no_gpu_is_given_beyond_what_it_is()

    def bound(self) -> list[Pod]:
        return [pod for pod in self.living() if pod.spec.node_name]

    def holders(self, node: str, gpu: int) -> dict[str, Holder]:
        lease: Any = self.world.objects.get(("leases", "gpufleet", lease_name(node, gpu)))
        read = read_lease(lease) if lease else None
        return dict(read.holders) if read else {}

    def fresh_ledger(self) -> Ledger:
        ledger = Ledger()
        for node in self.world.all("nodes"):
            ledger.put_node(node)
        for report in self.world.all("reports"):
            ledger.put_report(report)
        for lease in self.world.all("leases"):
            ledger.put_lease(lease)
        for claim in self.world.all("claims"):
            ledger.claims["ns", claim.metadata.name] = claim
        for pod in self.world.all("pods"):
            ledger.put_pod(pod)
        return ledger


TestSchedulers = Schedulers.TestCase
TestSchedulers.settings = settings(max_examples=EXAMPLES, stateful_step_count=60, deadline=None)
