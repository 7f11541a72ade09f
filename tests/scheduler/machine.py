"""A machine that plays users, kube-scheduler, a failing API server and two schedulers, and looks on.

The two schedulers act at the same time, which is worse than any election allows; besides, the
office moves between them. Some steps are rounds of a scheduler in which calls go wrong here and
there, in any of the ways in which calls go wrong; some are tangles of small steps in any order;
some are small steps alone. After every step, and after every call within a step:

- a pod that is bound has the leases that its annotation names;
- no GPU is promised beyond what it is, by leases or by the choices of one process;
- an attempt that failed has left nothing new behind, unless its undoing failed too;
- no member of a gang is bound before all have come to be bound.

When faults end, one scheduler brings everything in order: no lease without its pod, no pod left
out that fits, no gang in part, no status that lies.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.scheduler.world import Call, Outcome, Process, World

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE
from gpufleet.kubernetes.leases import LeaseHolder, lease_name, read_lease
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Refused
from gpufleet.scheduler.claim_status import status_of
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.scheduler import Scheduler
from gpufleet.scheduler.state import Ledger, request_of

CLAIMS: dict[str, dict[str, Any]] = {
    "one": {"count": 1},
    "two": {"count": 2},
    "half": {"count": 1, "exclusivity": "Shared", "share": 0.5},
}
GANGS = ("g", "h")
GANG = 2
MOST_PODS = 6
WRONG: tuple[Outcome, ...] = ("answer lost", "failed", "refused", "late", "killed before", "killed after")
TANGLE = 60
STEPS = {"schedule": 3, "look": 2, "watch": 3, "answer": 8, "late": 1, "users": 1, "time": 1}
"""The small steps of a tangle, and how often each is taken."""

outcomes = st.sampled_from(("done", "done", "done", *WRONG))
either = st.integers(0, 1)
chances = st.randoms(use_true_random=True)


class Schedulers(RuleBasedStateMachine):
    """Two processes in one world; a subclass may plant a fault in every process that it starts."""

    plant: Callable[[Scheduler], None] = staticmethod(lambda scheduler: None)

    def __init__(self) -> None:
        super().__init__()
        self.world = World({"a": 2, "b": 2})
        for name, devices in CLAIMS.items():
            self.world.add_claim(name, **devices)
        for gang in GANGS:
            self.world.add_claim(f"of-{gang}", gang=gang, count=1)
            self.world.add_group(gang, GANG, 20)
        self.processes = [self.started(), self.started()]
        self.made = 0
        self.broken_gangs: set[str] = set()

    def started(self) -> Process:
        return Process(self.world, self.plant)

    # -- users -----------------------------------------------------------------------------

    @initialize(claims=st.lists(st.sampled_from(sorted(CLAIMS)), min_size=1, max_size=3), chance=chances)
    def begin_with_pods(self, claims: list[str], chance: Random) -> None:
        for claim in claims:
            self.create_a_pod(claim, 0)
        self.a_tangle(chance)

    @precondition(lambda self: len(self.world.all("pods")) < MOST_PODS)
    @rule(claim=st.sampled_from(sorted(CLAIMS)), priority=st.sampled_from((0, 0, 5)))
    def create_a_pod(self, claim: str, priority: int) -> None:
        self.made += 1
        self.world.add_pod(f"p{self.made}", claim, priority=priority)

    @precondition(lambda self: len(self.world.all("pods")) < MOST_PODS)
    @rule(gang=st.sampled_from(GANGS), gated=st.booleans(), priority=st.sampled_from((0, 0, 5)))
    def create_a_gang(self, gang: str, gated: bool, priority: int) -> None:
        if any(pod.metadata.annotations[CLAIM] == f"of-{gang}" for pod in self.world.all("pods")):
            return
        self.broken_gangs.discard(gang)
        for _ in range(GANG):
            self.made += 1
            self.world.add_pod(f"p{self.made}", f"of-{gang}", (GANG_GATE,) if gated else (), priority)

    @precondition(lambda self: self.world.all("pods"))
    @rule(at=st.integers(0, MOST_PODS), how=st.sampled_from(("finish", "delete", "delete", "replace")))
    def end_a_pod(self, at: int, how: str) -> None:
        pods = self.world.all("pods")
        pod = pods[at % len(pods)]
        self.lost(pod)
        if how == "finish" and pod.spec.node_name:
            self.world.finish(pod)
            return
        self.world.delete(pod)
        if how == "replace" and self.world.pod(pod.metadata.name) is None:
            self.world.add_pod(pod.metadata.name, "one")

    # -- schedulers ------------------------------------------------------------------------

    @rule(which=either, chance=chances)
    def a_round(self, which: int, chance: Random) -> None:
        """A scheduler hears everything, looks at everything and binds; some calls go wrong."""
        process, odds = self.processes[which], chance.choice((0.0, 0.1, 0.3))
        self.users_do_something(chance)
        for work in self.work_of(process):
            work()
            for call in self.calls_to_come():
                self.world.resolve(call, chance.choice(WRONG) if chance.random() < odds else "done")
                self.restart_the_dead()
                self.check()
            if not process.alive:
                break

    @rule(chance=chances)
    def a_tangle(self, chance: Random) -> None:
        """Small steps of users, of both schedulers and of the server, in any order; one scheduler may be slow."""
        slow = chance.choice((None, *self.processes))
        for _ in range(TANGLE):
            process = chance.choice(self.processes)
            match chance.choices(tuple(STEPS), tuple(STEPS.values()))[0]:
                case "schedule" if pods := self.unbound():
                    process.schedule(pods[0] if chance.random() < 0.5 else chance.choice(pods))
                case "look":
                    process.look(chance.choice(("lease_gc", "gangs")))
                case "watch":
                    process.watch(chance.choice((1, 3, 100, 100)))
                case "answer":
                    self.answer_one(chance, slow)
                case "late" if self.world.late:
                    self.world.arrive_late(chance.randrange(len(self.world.late)))
                case "users":
                    self.users_do_something(chance)
                case "time":
                    self.world.now += chance.choice((1.0, 11.0, 11.0))
            self.restart_the_dead()
            self.check()

    def answer_one(self, chance: Random, slow: Process | None) -> None:
        """Decide over a call; the Bindings of the slow one are long under way."""
        calls = [
            call for call in self.world.calls if call.process is not slow or not call.name.startswith("bind")
        ]
        if chance.random() < 0.05:
            calls = self.world.calls
        if calls:
            outcome = chance.choice(WRONG) if chance.random() < 0.15 else "done"
            self.world.resolve(chance.choice(calls), outcome)

    def users_do_something(self, chance: Random) -> None:
        pods = len(self.world.all("pods"))
        if pods < MOST_PODS - 1 and chance.random() < 0.3:
            self.create_a_gang(chance.choice(GANGS), chance.random() < 0.5, chance.choice((0, 0, 5)))
        elif pods < MOST_PODS and chance.random() < 0.5:
            self.create_a_pod(chance.choice(sorted(CLAIMS)), chance.choice((0, 0, 5)))
        elif pods:
            self.end_a_pod(chance.randrange(pods), chance.choice(("finish", "delete", "replace")))

    @precondition(lambda self: self.unbound())
    @rule(picks=st.lists(st.tuples(st.integers(0, MOST_PODS), either), min_size=1, max_size=3))
    def schedule_pods(self, picks: list[tuple[int, int]]) -> None:
        """Nothing is answered yet."""
        for at, which in picks:
            pods = self.unbound()
            self.processes[which].schedule(pods[at % len(pods)])
            self.no_process_chooses_a_gpu_twice()

    @rule(which=either, part=st.sampled_from(("lease_gc", "gangs", "statuses")))
    def look_around(self, which: int, part: Any) -> None:
        self.processes[which].look(part)

    @rule(which=either, events=st.sampled_from((1, 3, 100)))
    def hear_from_the_watch(self, which: int, events: int) -> None:
        self.processes[which].watch(events)

    @rule(which=either)
    def crash_and_restart(self, which: int) -> None:
        self.processes[which].kill()
        self.restart_the_dead()

    @rule(to=either)
    def leadership_moves(self, to: int) -> None:
        self.processes[1 - to].stop_leading()
        self.processes[to].start_leading()

    @rule(seconds=st.sampled_from((1.0, 6.0, 11.0, 30.0)))
    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    # -- the server ------------------------------------------------------------------------

    @precondition(lambda self: self.world.calls)
    @rule(answers=st.lists(st.tuples(st.integers(0, 5), outcomes), min_size=1, max_size=6))
    def answer_calls(self, answers: list[tuple[int, Outcome]]) -> None:
        for at, outcome in answers:
            if self.world.calls:
                self.world.resolve(self.world.calls[at % len(self.world.calls)], outcome)
                self.restart_the_dead()
                self.check()

    @precondition(lambda self: self.world.calls)
    @rule()
    def answer_all_calls(self) -> None:
        self.answer_everything()

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
            claim = self.claim(pod.metadata.annotations[CLAIM])
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

    @invariant()
    def no_process_chooses_a_gpu_twice(self) -> None:
        for process in self.processes:
            process.check_tasks()
            ledger, chosen = process.scheduler.ledger, dict[tuple[str, int], int]()
            for uid, fits in process.choices.items():
                pod = ledger.pods.get(uid)
                # What the other process has leased for a pod meanwhile is no choice of this one, and a pod that
                # has ended gets nothing, though a bind of it may still wait for its answer.
                if pod is not None and not pod.finished and not ledger.leases_of(uid):
                    for gpu in fits.gpus:
                        chosen[fits.node, gpu] = chosen.get((fits.node, gpu), 0) + fits.request.milli_per_gpu
            assert all(milli <= 1000 for milli in chosen.values()), chosen

    @invariant()
    def a_failed_attempt_leaves_nothing_behind(self) -> None:
        idle = {process.name: process for process in self.processes if process.idle}
        unbound = {pod.metadata.uid: pod.metadata.name for pod in self.unbound()}
        for lease in self.world.all("leases"):
            for uid, holder in read_lease(lease).holders.items():  # type: ignore[union-attr]
                name, _, number = holder.stamp.partition("-")
                process = idle.get(name)
                if process is None or uid not in unbound or process.scheduler.gangs.is_planned(uid):
                    continue
                if (lease.metadata.name, uid) in self.world.renewed:
                    continue
                assert int(number) <= process.excused, f"{unbound[uid]} keeps {lease.metadata.name}"

    @invariant()
    def members_are_bound_when_all_have_come(self) -> None:
        for gang in set(GANGS) - self.broken_gangs:
            members = self.members(gang)
            if any(pod.spec.node_name for pod in members):
                late = [pod.metadata.name for pod in members if pod.metadata.uid not in self.world.came]
                assert not late, f"gang {gang} runs without {late}"

    def check(self) -> None:
        """All of the above."""
        self.who_is_bound_has_the_leases()
        self.no_gpu_is_given_beyond_what_it_is()
        self.no_process_chooses_a_gpu_twice()
        self.a_failed_attempt_leaves_nothing_behind()
        self.members_are_bound_when_all_have_come()

    # -- at rest ---------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.comes_to_order()
        finally:
            for process in self.processes:
                process.kill()
            self.world.loop.close()

    def comes_to_order(self) -> None:
        """Faults end, what is late arrives, one scheduler is left."""
        world, process = self.world, self.processes[0]
        self.processes[1].kill()
        if not process.leading:
            process.start_leading()
        quiet = 0
        for _ in range(40):
            before = world.version
            while world.late:
                world.arrive_late(0)
            for work in self.work_of(process):
                work()
                self.answer_everything()
            world.now += 4.0
            # Holds, grace and deadlines run out meanwhile: quiet for longer than any of them is at rest.
            quiet = quiet + 1 if world.version == before else 0
            if quiet > 8:
                break
        process.watch()
        self.check()
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
        for pod in self.unbound():
            claim = pod.metadata.annotations[CLAIM]
            if claim in CLAIMS:
                verdict = ledger.cluster.place(request_of(self.claim(claim)))
                assert isinstance(verdict, Refused), f"{pod.metadata.name} would fit"

    def gangs_run_whole_or_not_at_all(self) -> None:
        for gang in set(GANGS) - self.broken_gangs:
            members = self.members(gang)
            assert sum(bool(pod.spec.node_name) for pod in members) in (0, len(members))

    def statuses_tell_the_truth(self) -> None:
        ledger = self.fresh_ledger()
        for claim in self.world.all("claims"):
            truth = status_of(ledger, PendingPods(), claim)
            entries = {each["podUid"]: tuple(each["gpuIds"]) for each in truth["allocations"] or ()}
            assert {each.pod_uid: each.gpu_ids for each in claim.status.allocations} == entries

    # -- doing and looking -----------------------------------------------------------------

    def work_of(self, process: Process) -> Iterator[Callable[[], Any]]:
        """A round of one scheduler, one piece after the other."""
        for part in ("gangs", "lease_gc", "statuses"):
            yield process.watch
            yield lambda part=part: process.look(part)  # type: ignore[misc]
        yield process.watch
        for name in [pod.metadata.name for pod in self.world.all("pods")]:
            if (pod := self.world.pod(name)) is not None:
                yield lambda pod=pod: process.schedule(pod)  # type: ignore[misc]
        # kubelets: who was asked to leave has left
        yield self.let_leave
        yield process.watch

    def let_leave(self) -> None:
        for pod in self.world.all("pods"):
            if pod.metadata.deletion_timestamp is not None:
                self.lost(pod)
                self.world.delete(pod)

    def lost(self, pod: Pod) -> None:
        """A member that ends or leaves breaks its gang."""
        claim = pod.metadata.annotations[CLAIM]
        if claim.startswith("of-"):
            self.broken_gangs.add(claim.removeprefix("of-"))

    def restart_the_dead(self) -> None:
        self.processes = [each if each.alive else self.started() for each in self.processes]

    def answer_everything(self) -> None:
        for call in self.calls_to_come():
            self.world.resolve(call, "done")
            self.check()

    def calls_to_come(self) -> Iterator[Call]:
        """The oldest call, until none is left; there is an end to them."""
        for _ in range(1000):
            if not self.world.calls:
                return
            yield self.world.calls[0]
        raise AssertionError(f"calls without end, such as {self.world.calls[0].name}")

    def claim(self, name: str) -> Any:
        return self.world.objects["claims", "ns", name]

    def living(self) -> Iterator[Pod]:
        return (pod for pod in self.world.all("pods") if not pod.finished)

    def unbound(self) -> list[Pod]:
        return [pod for pod in self.living() if not pod.spec.node_name]

    def bound(self) -> list[Pod]:
        return [pod for pod in self.living() if pod.spec.node_name]

    def members(self, gang: str) -> list[Pod]:
        return [pod for pod in self.living() if pod.metadata.annotations[CLAIM] == f"of-{gang}"]

    def holders(self, node: str, gpu: int) -> dict[str, LeaseHolder]:
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


def allocation(pod: Pod) -> tuple[str, list[int]]:
    """The node and the GPUs that a pod's annotation names."""
    node, _, ids = pod.metadata.annotations.get(ALLOCATED, "").rpartition(":")
    return node, [int(gpu) for gpu in ids.split(",") if gpu]
