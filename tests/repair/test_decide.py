"""The state machine against a simulated cluster whose controller may be killed before every call."""

from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus
from gpufleet.kubernetes.crds.gpu_repair import RepairStatus
from gpufleet.repair.actions import (
    Announce,
    CreateJob,
    Evict,
    ReleaseDriver,
    RemoveTaint,
    SetTaint,
    actions,
)
from gpufleet.repair.decide import affected_pods, allowed, next_status
from gpufleet.repair.views import ClusterView, NodeView, PodView, Policy, RepairRules

HOOKS = frozenset({"prove", "reset", "reboot"})
ALL = RepairRules(policy=Policy.REPAIR, hooks=HOOKS, settle=30.0)


def fault(gpu: int | None = 0, action: str = "reset", signal: str = "xid-48") -> FindingStatus:
    scope: Literal["GPU", "Node"] = "Node" if gpu is None else "GPU"
    return FindingStatus(
        signal=signal, severity="Unhealthy", scope=scope, message=signal, action=action, gpu=gpu
    )


@dataclass
class World:
    """One node of the cluster with its repair, pods and Jobs."""

    rules: RepairRules = ALL
    now: float = 1_000_000.0
    status: RepairStatus = field(default_factory=RepairStatus)
    findings: dict[int | None, FindingStatus] = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    hooks: list[tuple[str, str]] = field(default_factory=list)
    """Name and hook of every Job that was really created, in order."""
    tainted: bool = False
    evicted: list[str] = field(default_factory=list)
    cluster: ClusterView = field(default_factory=ClusterView)
    resumed_at: float = 0.0
    boot: int = 1
    released: bool = False

    def view(self) -> NodeView:
        return NodeView(
            name="a",
            gpus=tuple(range(4)),
            findings=tuple(self.findings.values()),
            pods=tuple(self.pods.values()),
            job=self.jobs.get(self.status.job, "absent"),
            boot_id=f"boot-{self.boot}",
            in_use=frozenset(gpu for pod in self.pods.values() if pod.node == "a" for gpu in pod.gpus),
            tainted=self.tainted,
            released=self.released,
            resumed_at=self.resumed_at,
        )

    def reconcile(self, calls: int = 1000) -> None:
        """Do one round of the controller, which is killed after so many calls."""
        new = next_status(self.status, self.view(), self.cluster, self.rules, self.now)
        if new != self.status:
            if calls == 0:
                return
            calls -= 1
            self.status = new
        for action in actions(self.status, self.view(), self.rules, self.now)[:calls]:
            self.perform(action)

    def perform(self, action: object) -> None:
        match action:
            case SetTaint():
                self.tainted = True
            case RemoveTaint():
                self.tainted = False
            case Announce(pod, at):
                self.pods[pod.uid] = replace(self.pods[pod.uid], evict_at=at)
            case Evict(pod):
                self.evicted.append(pod.uid)
                self.pods[pod.uid] = replace(self.pods[pod.uid], terminating=True)
            case ReleaseDriver(until):
                self.released = until is not None
            case CreateJob(name, hook):
                assert hook != "reset" or self.released, "the agent has the GPU open"
                if name not in self.jobs:
                    self.jobs[name] = "active"
                    self.hooks.append((name, hook))

    def end_pods(self) -> None:
        self.pods = {uid: pod for uid, pod in self.pods.items() if not pod.terminating}

    def until(self, phase: str, seconds: float = 10_000.0, succeed: bool = True) -> None:
        """Let time pass, pods end and Jobs finish until the repair is in a phase."""
        end = self.now + seconds
        while self.status.phase != phase:
            assert self.now < end, self.status
            self.now += 10
            self.reconcile()
            self.end_pods()
            for name, state in self.jobs.items():
                if state == "active" and self.status.phase != phase:
                    self.jobs[name] = "succeeded" if succeed else "failed"
                    hook = dict(self.hooks)[name]
                    if hook != "prove" and succeed:
                        self.findings.clear()
                        self.boot += hook == "reboot"


def pod(uid: str, gpus: set[int], gang: str | None = None, node: str = "a", grace: float = 0.0) -> PodView:
    return PodView(uid, "jobs", uid, node, frozenset(gpus), gang, grace)


def test_a_fault_is_repaired_and_returned_after_two_tests() -> None:
    world = World(findings={0: fault()}, pods={"p": pod("p", {0}), "q": pod("q", {1})})
    world.reconcile()
    assert (world.status.phase, world.tainted) == ("Cordoned", True)
    world.until("Healthy")
    world.reconcile()
    assert not world.tainted
    assert not world.released, "the agent reads again"
    assert world.evicted == ["p"], "a pod on another GPU stays"
    assert [hook for _, hook in world.hooks] == ["reset", "prove", "prove"]
    assert [episode.cause for episode in world.status.history] == ["xid-48"]


def test_a_test_that_passes_once_and_then_fails_keeps_the_node_out() -> None:
    world = World(findings={0: fault()})
    world.until("Proving")
    first = world.status.job
    world.jobs[first] = "succeeded"
    world.reconcile()
    assert (world.status.phase, world.status.passes) == ("Proving", 1)
    world.reconcile()
    world.jobs[world.status.job] = "failed"
    world.reconcile()
    assert (world.status.phase, world.status.action, world.status.passes) == ("Repairing", "reboot", 0)
    assert world.tainted
    world.until("Manual", succeed=False)
    assert world.tainted


def test_a_job_that_was_deleted_is_not_run_again() -> None:
    world = World(findings={0: fault()})
    world.until("Repairing")
    for _ in range(3):
        world.now += 10
        world.reconcile()
    name = world.status.job
    world.jobs.pop(name)
    for _ in range(5):
        world.reconcile()
    assert [each for each, _ in world.hooks].count(name) == 1
    assert world.status.job != name


def test_gangs_leave_whole_and_after_the_longest_grace_of_a_member() -> None:
    pods = [pod("a0", {0}, "g", grace=60), pod("b0", {2}, "g", node="b", grace=300), pod("c", {1})]
    world = World(findings={0: fault()}, pods={each.uid: each for each in pods})
    world.until("Draining")
    world.reconcile()
    assert {uid for uid, each in world.pods.items() if each.evict_at} == {"a0", "b0"}
    world.now += 290
    world.reconcile()
    assert world.evicted == []
    world.now += 20
    world.reconcile()
    assert sorted(world.evicted) == ["a0", "b0"]


def test_a_disruption_budget_of_pods_keeps_the_whole_gang() -> None:
    world = World(findings={0: fault()}, pods={"p": pod("p", {0}, grace=60)})
    world.until("Draining")
    world.now += 100
    view = replace(world.view(), blocked_by_budget=True)
    assert not [
        each for each in actions(world.status, view, world.rules, world.now) if isinstance(each, Evict)
    ]
    status = next_status(world.status, view, world.cluster, world.rules, world.now)
    assert "PodDisruptionBudget" in status.message


def test_a_reboot_needs_all_pods_but_daemons_to_leave() -> None:
    pods = {"p": pod("p", {1}), "web": pod("web", set()), "d": replace(pod("d", set()), permanent=True)}
    world = World(findings={None: fault(None, "reboot", "xid-79")}, pods=pods)
    world.reconcile()
    world.until("Healthy")
    assert sorted(world.evicted) == ["p", "web"]
    drain = replace(ALL, policy=Policy.DRAIN)
    assert [
        each.uid for each in affected_pods(RepairStatus(gpus=(0,), action="reboot"), world.view(), drain)
    ] == []


@pytest.mark.parametrize(
    ("policy", "phase", "tainted", "evicted"),
    [
        (Policy.OBSERVE, "Observed", False, []),
        (Policy.CORDON, "Cordoned", True, []),
        (Policy.DRAIN, "Drained", True, ["p"]),
    ],
)
def test_a_policy_goes_only_so_far(policy: Policy, phase: str, tainted: bool, evicted: list[str]) -> None:
    world = World(rules=replace(ALL, policy=policy), findings={0: fault()}, pods={"p": pod("p", {0})})
    for _ in range(20):
        world.now += 60
        world.reconcile()
        world.end_pods()
    assert (world.status.phase, world.tainted, world.evicted, world.hooks) == (phase, tainted, evicted, [])


def test_with_policy_cordon_the_test_waits_until_the_gpu_is_free() -> None:
    world = World(rules=replace(ALL, policy=Policy.CORDON), findings={0: fault()}, pods={"p": pod("p", {0})})
    world.reconcile()
    world.findings.clear()
    for _ in range(10):
        world.now += 60
        world.reconcile()
    assert (world.status.phase, world.tainted) == ("Cordoned", True)
    world.pods.clear()
    world.until("Healthy")
    assert [hook for _, hook in world.hooks] == ["prove", "prove"]


def test_a_flapping_node_goes_to_a_human_who_can_resume() -> None:
    world = World()
    for _ in range(4):
        world.findings = {0: fault()}
        world.reconcile()
        if world.status.phase == "Manual":
            break
        world.until("Healthy")
    assert world.status.phase == "Manual"
    assert "4 faults in 24 hours" in world.status.message
    assert len(world.status.history) == 3
    hooks = len(world.hooks)
    world.findings.clear()
    for _ in range(20):
        world.now += 100
        world.reconcile()
    assert (world.status.phase, len(world.hooks)) == ("Manual", hooks)
    world.resumed_at = world.now
    world.now += 1
    world.until("Healthy")
    assert [hook for _, hook in world.hooks[hooks:]] == ["prove", "prove"]


def test_the_disruption_budget_of_the_cluster_holds_drains_back() -> None:
    world = World(findings={0: fault()}, cluster=ClusterView(nodes=40, disrupted=4))
    for _ in range(5):
        world.now += 60
        world.reconcile()
    assert (world.status.phase, world.tainted) == ("Cordoned", True)
    assert "4 of at most 4 nodes" in world.status.message
    world.cluster = ClusterView(nodes=40, disrupted=3)
    world.reconcile()
    assert world.status.phase == "Draining"
    busy = ClusterView(nodes=1000, drains=tuple(world.now - each for each in range(10)))
    assert "10 nodes were drained" in allowed(busy, ALL, world.now)
    assert allowed(ClusterView(nodes=3), ALL, world.now) == ""


class KilledController(RuleBasedStateMachine):
    """Faults, repairs and kills in any order."""

    def __init__(self) -> None:
        super().__init__()
        pods = [pod("a0", {0}, "g"), pod("b0", {0}, "g", node="b"), pod("c", {1}), pod("web", set())]
        self.world = World(pods={each.uid: each for each in pods})
        self.faults_seen: set[int | None] = set()
        self.dirty_since = 0
        """Number of Jobs when a fault was last present or a test last failed."""

    @rule(calls=st.integers(0, 4), seconds=st.integers(1, 400))
    def reconcile(self, calls: int, seconds: int) -> None:
        self.world.now += seconds
        before = self.world.tainted
        self.world.reconcile(calls)
        if before and not self.world.tainted:
            proofs = [name for name, hook in self.world.hooks[self.dirty_since :] if hook == "prove"]
            passed = [name for name in proofs if self.world.jobs.get(name) == "succeeded"]
            assert len(passed) >= 2, (proofs, self.world.status)

    @rule(gpu=st.sampled_from([0, 1, None]), action=st.sampled_from(["reset", "reboot", "replace", "none"]))
    def break_gpu(self, gpu: int | None, action: str) -> None:
        self.world.findings[gpu] = fault(gpu, action)
        self.faults_seen.add(gpu)

    @rule()
    def clear(self) -> None:
        self.world.findings.clear()

    @precondition(lambda self: "active" in self.world.jobs.values())
    @rule(passed=st.booleans())
    def finish_job(self, passed: bool) -> None:
        name = next(name for name, state in self.world.jobs.items() if state == "active")
        self.world.jobs[name] = "succeeded" if passed else "failed"
        if not passed:
            self.dirty_since = len(self.world.hooks)

    @rule()
    def end_pods(self) -> None:
        self.world.end_pods()

    @rule()
    def resume(self) -> None:
        self.world.resumed_at = self.world.now

    @invariant()
    def no_job_runs_twice(self) -> None:
        names = [name for name, _ in self.world.hooks]
        assert len(names) == len(set(names))

    @invariant()
    def a_fault_that_was_noticed_keeps_pods_away(self) -> None:
        if self.world.status.phase not in ("Healthy", "Observed"):
            wanted = actions(self.world.status, self.world.view(), self.world.rules, self.world.now)
            assert self.world.tainted or SetTaint() in wanted
            assert RemoveTaint() not in wanted

    @invariant()
    def only_affected_pods_are_evicted(self) -> None:
        rebooted = self.faults_seen & {None} or any(hook == "reboot" for _, hook in self.world.hooks)
        rebooted = rebooted or self.world.status.action in ("reboot", "replace")
        if not rebooted and 1 not in self.faults_seen:
            assert "c" not in self.world.evicted or self.world.status.history

    @invariant()
    def attempts_are_bounded(self) -> None:
        assert self.world.status.attempts <= self.world.rules.max_attempts


KilledController.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestKilledController = KilledController.TestCase
