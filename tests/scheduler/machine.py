"""A state machine of users, kube-scheduler, a failing API server and two schedulers.

Both schedulers act at the same time, which is worse than any election allows; leadership also
moves between them. Some steps are rounds of a scheduler in which calls fail in any possible way,
some are small steps of all parties in random order, some are single small steps. After every step,
and after every call within a step:

- a bound pod has the leases that its annotation names;
- no GPU is overcommitted, neither by leases nor by the choices of one process;
- a failed attempt leaves no new leases, unless its undo failed too;
- no member of a gang is bound before all are ready to be bound.

When the faults end, one scheduler repairs everything: no lease without its pod, no pending pod that
fits, no partial gang, no wrong status.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.scheduler.world import Call, Outcome, Process, World

from gpufleet.kubernetes.allocation import AllocatedGpus, parse_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE
from gpufleet.kubernetes.leases import LeaseHolder, lease_name, read_lease
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Refused
from gpufleet.scheduler.claim_status import status_of
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
FAILURES: tuple[Outcome, ...] = ("answer lost", "failed", "refused", "late", "killed before", "killed after")
RANDOM_STEPS = 60
STEPS = {"schedule": 3, "look": 2, "watch": 3, "answer": 8, "late": 1, "users": 1, "time": 1}
"""The steps of `random_steps`, with their weights."""

outcomes = st.sampled_from(("done", "done", "done", *FAILURES))
either = st.integers(0, 1)
chances = st.randoms(use_true_random=True)


class Schedulers(RuleBasedStateMachine):
    """Two processes in one world; subclasses may plant a fault in every process that starts."""

    plant: Callable[[Scheduler], None] = staticmethod(lambda scheduler: None)

    def __init__(self) -> None:
        super().__init__()
        self.world = World({"a": 2, "b": 2}, some_bound_directly=True)
        for name, devices in CLAIMS.items():
            self.world.add_claim(name, **devices)
        for gang in GANGS:
            self.world.add_claim(f"of-{gang}", gang=gang, count=1)
            self.world.add_group(gang, GANG, 20)
        self.processes = [self.start_process(), self.start_process()]
        self.made = 0
        self.broken_gangs: set[str] = set()

    def start_process(self) -> Process:
        # A half-bound gang ends before the final state is checked.
        return Process(self.world, self.plant, gang_grace=20.0)

    # -- users -----------------------------------------------------------------------------

    @initialize(claims=st.lists(st.sampled_from(sorted(CLAIMS)), min_size=1, max_size=3), chance=chances)
    def begin_with_pods(self, claims: list[str], chance: Random) -> None:
        for claim in claims:
            self.create_a_pod(claim, 0)
        self.random_steps(chance)

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
    def scheduler_round(self, which: int, chance: Random) -> None:
        """Run one scheduler: deliver all events, reconcile and bind; some calls fail."""
        process, odds = self.processes[which], chance.choice((0.0, 0.1, 0.3))
        self.user_action(chance)
        for work in self.work_of(process):
            work()
            for call in self.remaining_calls():
                self.world.resolve(call, chance.choice(FAILURES) if chance.random() < odds else "done")
                self.restart_killed()
                self.check()
            if not process.alive:
                break

    @rule(chance=chances)
    def random_steps(self, chance: Random) -> None:
        """Run random small steps of users, schedulers and server; one scheduler may be slow."""
        slow = chance.choice((None, *self.processes))
        for _ in range(RANDOM_STEPS):
            process = chance.choice(self.processes)
            match chance.choices(tuple(STEPS), tuple(STEPS.values()))[0]:
                case "schedule" if pods := self.unbound():
                    process.schedule(pods[0] if chance.random() < 0.5 else chance.choice(pods))
                case "look":
                    process.reconcile_with(chance.choice(("lease_gc", "plan")))
                case "watch":
                    process.watch(chance.choice((1, 3, 100, 100)))
                case "answer":
                    self.answer_one(chance, slow)
                case "late" if self.world.late:
                    self.world.arrive_late(chance.randrange(len(self.world.late)))
                case "users":
                    self.user_action(chance)
                case "time":
                    self.world.now += chance.choice((1.0, 11.0, 11.0))
            self.restart_killed()
            self.check()

    def answer_one(self, chance: Random, slow: Process | None) -> None:
        """Resolve a call; the Bindings of the slow process stay in flight."""
        calls = [
            call for call in self.world.calls if call.process is not slow or not call.name.startswith("bind")
        ]
        if chance.random() < 0.05:
            calls = self.world.calls
        if calls:
            outcome = chance.choice(FAILURES) if chance.random() < 0.15 else "done"
            self.world.resolve(chance.choice(calls), outcome)

    def user_action(self, chance: Random) -> None:
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
        """Start to schedule pods without resolving any call."""
        for at, which in picks:
            pods = self.unbound()
            self.processes[which].schedule(pods[at % len(pods)])
            self.no_process_chooses_a_gpu_twice()

    @rule(which=either, part=st.sampled_from(("lease_gc", "plan", "statuses")))
    def reconcile(self, which: int, part: Any) -> None:
        self.processes[which].reconcile_with(part)

    @rule(which=either, events=st.sampled_from((1, 3, 100)))
    def deliver_watch_events(self, which: int, events: int) -> None:
        self.processes[which].watch(events)

    @rule(which=either)
    def crash_and_restart(self, which: int) -> None:
        self.processes[which].kill()
        self.restart_killed()

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
                self.restart_killed()
                self.check()

    @precondition(lambda self: self.world.calls)
    @rule()
    def answer_all_calls(self) -> None:
        self.answer_all()

    @precondition(lambda self: self.world.late)
    @rule(at=st.integers(0, 3))
    def execute_a_late_request(self, at: int) -> None:
        self.world.arrive_late(at % len(self.world.late))

    # -- invariants ------------------------------------------------------------------------

    @invariant()
    def bound_pods_have_their_leases(self) -> None:
        for pod in self.bound():
            node, gpus = allocation(pod)
            assert node == pod.spec.node_name
            for gpu in gpus:
                assert pod.metadata.uid in self.holders(node, gpu), (
                    f"{pod.metadata.name} runs on GPU {gpu} of {node} without its lease"
                )

    @invariant()
    def no_gpu_is_overcommitted(self) -> None:
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
    def no_task_raises(self) -> None:
        for process in self.processes:
            process.check_tasks()

    @invariant()
    def no_process_chooses_a_gpu_twice(self) -> None:
        for process in self.processes:
            process.check_tasks()
            ledger, chosen = process.scheduler.ledger, dict[tuple[str, int], int]()
            for uid, fits in process.choices.items():
                pod = ledger.pods.get(uid)
                # Leases of the other process are not choices of this one, and a finished pod gets no GPUs,
                # though its bind may still be in flight.
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
                if process is None or uid not in unbound or process.scheduler.gangs.plans.has(uid):
                    continue
                if (lease.metadata.name, uid) in self.world.renewed:
                    continue
                assert int(number) <= process.excused, f"{unbound[uid]} keeps {lease.metadata.name}"

    @invariant()
    def members_are_bound_together(self) -> None:
        for gang in set(GANGS) - self.broken_gangs:
            members = self.members(gang)
            if any(pod.spec.node_name for pod in members):
                late = [
                    pod.metadata.name for pod in members if pod.metadata.uid not in self.world.bind_called
                ]
                assert not late, f"gang {gang} runs without {late}"

    def check(self) -> None:
        """Check the invariants."""
        self.bound_pods_have_their_leases()
        self.no_gpu_is_overcommitted()
        self.no_process_chooses_a_gpu_twice()
        self.a_failed_attempt_leaves_nothing_behind()
        self.members_are_bound_together()

    # -- final state -----------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.repairs_everything()
        finally:
            for process in self.processes:
                process.kill()
            self.world.loop.close()

    def repairs_everything(self) -> None:
        """End the faults, deliver late requests, and let one scheduler repair everything."""
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
                self.answer_all()
            world.now += 4.0
            # Stop when nothing has changed for longer than any hold, grace period or deadline.
            quiet = quiet + 1 if world.version == before else 0
            if quiet > 8:
                break
        process.watch()
        self.check()
        self.no_task_raises()
        self.no_lease_is_left_behind()
        self.no_pending_pod_fits()
        self.gangs_run_as_a_whole_or_not_at_all()
        self.statuses_are_correct()

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

    def no_pending_pod_fits(self) -> None:
        """A pod may wait although it fits only if GPUs are reserved for a unit ahead of it."""
        ledger, unit_ahead = self.fresh_ledger(), False
        for pod in sorted(self.unbound(), key=queue_order):
            claim = pod.metadata.annotations[CLAIM]
            if claim in CLAIMS:
                verdict = ledger.cluster.place(request_of(self.claim(claim)))
                assert unit_ahead or isinstance(verdict, Refused), f"{pod.metadata.name} would fit"
                unit_ahead = True
            elif len(self.members(claim.removeprefix("of-"))) >= GANG:
                unit_ahead = True

    def gangs_run_as_a_whole_or_not_at_all(self) -> None:
        for gang in set(GANGS) - self.broken_gangs:
            members = self.members(gang)
            assert sum(bool(pod.spec.node_name) for pod in members) in (0, len(members))

    def statuses_are_correct(self) -> None:
        ledger = self.fresh_ledger()
        for claim in self.world.all("claims"):
            truth = status_of(ledger, lambda pod: "", claim)
            entries = {each["podUid"]: tuple(each["gpuIds"]) for each in truth["allocations"] or ()}
            assert {each.pod_uid: each.gpu_ids for each in claim.status.allocations} == entries

    # -- steps and queries -----------------------------------------------------------------

    def work_of(self, process: Process) -> Iterator[Callable[[], Any]]:
        """Yield the steps of one round of a scheduler."""
        for part in ("plan", "lease_gc", "statuses"):
            yield process.watch
            yield lambda part=part: process.reconcile_with(part)  # type: ignore[misc]
        yield process.watch
        for name in [pod.metadata.name for pod in self.world.all("pods")]:
            if (pod := self.world.pod(name)) is not None:
                yield lambda pod=pod: process.schedule(pod)  # type: ignore[misc]
        # The kubelets delete terminating pods.
        yield self.delete_terminating_pods
        yield process.watch

    def delete_terminating_pods(self) -> None:
        for pod in self.world.all("pods"):
            if pod.metadata.deletion_timestamp is not None:
                self.lost(pod)
                self.world.delete(pod)

    def lost(self, pod: Pod) -> None:
        """Record that a gang has lost a member."""
        claim = pod.metadata.annotations[CLAIM]
        if claim.startswith("of-"):
            self.broken_gangs.add(claim.removeprefix("of-"))

    def restart_killed(self) -> None:
        self.processes = [each if each.alive else self.start_process() for each in self.processes]

    def answer_all(self) -> None:
        for call in self.remaining_calls():
            self.world.resolve(call, "done")
            self.check()

    def remaining_calls(self) -> Iterator[Call]:
        """Yield the oldest call until none is left."""
        for _ in range(1000):
            if not self.world.calls:
                return
            yield self.world.calls[0]
        raise AssertionError(f"the calls never end; the next is {self.world.calls[0].name}")

    def claim(self, name: str) -> Any:
        return self.world.objects["claims", "ns", name]

    def unfinished(self) -> Iterator[Pod]:
        return (pod for pod in self.world.all("pods") if not pod.finished)

    def unbound(self) -> list[Pod]:
        return [pod for pod in self.unfinished() if not pod.spec.node_name]

    def bound(self) -> list[Pod]:
        return [pod for pod in self.unfinished() if pod.spec.node_name]

    def members(self, gang: str) -> list[Pod]:
        return [pod for pod in self.unfinished() if pod.metadata.annotations[CLAIM] == f"of-{gang}"]

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
            ledger.put_claim(claim)
        for pod in self.world.all("pods"):
            ledger.put_pod(pod)
        return ledger


def queue_order(pod: Pod) -> tuple[int, str]:
    """Return the sort key of the scheduler's queue."""
    return -(pod.spec.priority or 0), str(pod.metadata.creation_timestamp)


def allocation(pod: Pod) -> AllocatedGpus:
    """Return the node and GPUs of the pod's annotation."""
    return parse_allocation(pod.metadata.annotations.get(ALLOCATED, "")) or AllocatedGpus("", ())
