"""A scheduler in mode `dra` against a failing API server: no device is in two allocations, nor in one and a lease.

Random steps of users, kube-controller-manager, kube-scheduler, other users of DRA and one scheduler, of which every
call may fail in any way. A scheduler that dies is followed by another; requests of the first end before that, as they
do within the lease of the election. At the end the faults stop, and one scheduler repairs everything.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import convert, structs
from tests.scheduler.world import Outcome, Process, World

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import (
    Condition,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodResourceClaim,
    PodResourceClaimStatus,
)
from gpufleet.kubernetes.resource_claims import (
    DEVICE_CLASS,
    POD_CLAIM,
    Consumer,
    ResourceClaim,
    ResourceSlice,
)
from gpufleet.placement import Refused
from gpufleet.scheduler.delivery.claim_writer import NotAllocated
from gpufleet.scheduler.delivery.clearing import RELEASED_FOR
from gpufleet.scheduler.scheduler import Scheduler
from gpufleet.scheduler.state import request_of

FAILURES: tuple[Outcome, ...] = ("answer lost", "failed", "refused", "late", "killed before", "killed after")
DRIVER = "gpu.nvidia.com"
GANG = 2
MOST_PODS = 6
STEPS = {
    "plan": 4,
    "allocator": 4,
    "mirror": 2,
    "lease_gc": 1,
    "watch": 5,
    "answer": 10,
    "late": 1,
    "users": 2,
    "controller": 4,
    "kube-scheduler": 3,
    "others": 1,
    "leadership": 0.3,
    "time": 1,
}


class DraProcess(Process):
    kinds = ("leases", "nodes", "reports", "slices", "resource_claims", "claims", "groups", "pods")


class Machine:
    """One scheduler, the rest of the cluster, and the checks."""

    def __init__(
        self,
        chance: Random,
        *,
        faults: bool = True,
        plant: Callable[[Scheduler], None] = lambda scheduler: None,
    ) -> None:
        """`plant` may put a fault into the scheduler."""
        self.chance = chance
        self.faults = faults
        self.plant = plant
        self.world = World({"a": 2, "b": 2})
        self.world.add_claim("one", count=1)
        self.world.add_claim("two", count=2)
        self.world.add_claim("of-g", gang="g", count=1)
        self.world.add_group("g", GANG, 20)
        for node in ("a", "b"):
            devices = [{"name": f"gpu-{at}", "attributes": {"index": {"int": at}}} for at in range(2)]
            spec = {"driver": DRIVER, "nodeName": node, "pool": {"name": node}, "devices": devices}
            self.world.write("slices", convert({"metadata": {"name": node}, "spec": spec}, ResourceSlice))
        self.made = 0
        self.attempts: dict[str, tuple[str, float]] = {}
        """Attempts of kube-scheduler that will bind without a look at the claim: node and start, by pod UID."""
        self.process = DraProcess(self.world, self.plant)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            kinds = tuple(STEPS)
            getattr(self, "do_" + self.chance.choices(kinds, tuple(STEPS.values()))[0].replace("-", "_"))()
            if not self.process.alive:
                self.restart()
            self.process.check_tasks()
            self.check()

    def restart(self) -> None:
        """Start a successor, after the requests of the dead process have been executed or lost."""
        while self.world.late:
            late = self.world.late.pop(0)
            if self.chance.random() < 0.5:
                self.world._do(late)
        self.process = DraProcess(self.world, self.plant)

    # -- the scheduler ---------------------------------------------------------------------

    def do_plan(self) -> None:
        self.process.reconcile_with("plan")

    def do_allocator(self) -> None:
        self.process.reconcile_with("allocator")

    def do_mirror(self) -> None:
        self.process.reconcile_with("mirror")

    def do_lease_gc(self) -> None:
        self.process.reconcile_with("lease_gc")

    def do_watch(self) -> None:
        self.process.watch(self.chance.choice((1, 3, 100, 100)))

    def do_answer(self) -> None:
        if self.world.calls:
            failing = self.faults and self.chance.random() < 0.2
            outcome = self.chance.choice(FAILURES) if failing else "done"
            self.world.resolve(self.chance.choice(self.world.calls), outcome)

    def do_late(self) -> None:
        if self.world.late:
            self.world.arrive_late(self.chance.randrange(len(self.world.late)))

    def do_leadership(self) -> None:
        """Lose leadership in the middle of writes, and gain it again; the requests may still be executed."""
        if not self.faults:
            return
        self.world.late += [call.act for call in self.world.calls if self.chance.random() < 0.5]
        self.process.stop_leading()
        self.process.start_leading()

    def do_time(self) -> None:
        self.world.now += self.chance.choice((1.0, 6.0, 11.0))

    # -- users -----------------------------------------------------------------------------

    def do_users(self) -> None:
        pods = self.world.all("pods")
        if len(pods) < MOST_PODS - 1 and self.chance.random() < 0.25 and not self.members():
            for _ in range(GANG):
                self.add_pod("of-g", (GANG_GATE,))
        elif len(pods) < MOST_PODS and self.chance.random() < 0.6:
            self.add_pod(self.chance.choice(("one", "one", "two")))
        elif pods:
            pod = self.chance.choice(pods)
            if pod.spec.node_name and self.chance.random() < 0.4:
                self.world.finish(pod)
            else:
                self.world.delete(pod)

    def add_pod(self, claim: str, gates: tuple[str, ...] = ()) -> None:
        self.made += 1
        pod = self.world.add_pod(f"p{self.made}", claim, gates)
        entry = PodResourceClaim(POD_CLAIM, resource_claim_template_name="gpu-claim-1")
        spec = structs.replace(pod.spec, resource_claims=(entry,), scheduler_name="default-scheduler")
        self.world.write("pods", structs.replace(pod, spec=spec))

    # -- the rest of the cluster -----------------------------------------------------------

    def do_controller(self) -> None:
        """Make the claims of pods, and delete those of pods that are gone or finished."""
        pods = {pod.metadata.uid: pod for pod in self.world.all("pods")}
        owned = {}
        for claim in self.world.all("resource_claims"):
            for owner in claim.metadata.owner_references:
                owned[owner.uid] = claim
                if owner.uid not in pods or pods[owner.uid].finished:
                    self.world.remove("resource_claims", "ns", claim.metadata.name)
        for uid, pod in pods.items():
            if uid not in owned and not pod.finished:
                claim = self.world.write("resource_claims", claim_for(pod))
                made = PodResourceClaimStatus(POD_CLAIM, claim.metadata.name)
                status = structs.replace(pod.status, resource_claim_statuses=(made,))
                self.world.write("pods", structs.replace(pod, status=status))

    def do_kube_scheduler(self) -> None:
        """Bind a pod whose claim is allocated, fail to place it, or clear its allocation."""
        self.end_attempts()
        for pod, claim in self.allocated():
            if pod.spec.node_name or pod.spec.scheduling_gates or pod.finished:
                continue
            status = claim.status
            outcome = self.chance.random() if self.faults else 1.0
            if outcome < 0.15:
                failed = Condition("PodScheduled", "False", "Unschedulable", "0/2 nodes: Insufficient cpu")
                status = structs.replace(pod.status, conditions=(failed,))
                self.world.write("pods", structs.replace(pod, status=status))
            elif outcome < 0.25:
                cleared = structs.replace(status, allocation=None, reserved_for=())
                self.world.write("resource_claims", structs.replace(claim, status=cleared))
            elif outcome < 0.5 and status.reserved_for:
                self.attempts[pod.metadata.uid] = (status.allocation.node, self.world.now)
            else:
                members = self.members()
                if pod in members and len(members) == GANG and not self.faults:
                    held = {each.metadata.uid for each, _ in self.allocated()}
                    missing = {each.metadata.uid for each in members} - held
                    assert not missing, "a member is bound before all have their devices"
                user = Consumer("pods", pod.metadata.name, pod.metadata.uid)
                if not status.reserved_for:
                    reserved = structs.replace(status, reserved_for=(user,))
                    self.world.write("resource_claims", structs.replace(claim, status=reserved))
                spec = structs.replace(pod.spec, node_name=status.allocation.node)
                self.world.write("pods", structs.replace(pod, spec=spec))
            return

    def end_attempts(self) -> None:
        """Bind the pods of slow attempts, which began before the reservation was removed."""
        for uid, (node, since) in self.attempts.items():
            pod = next((each for each in self.world.all("pods") if each.metadata.uid == uid), None)
            late = self.world.now - since >= RELEASED_FOR
            if pod is not None and not pod.spec.node_name and not pod.finished and not late:
                spec = structs.replace(pod.spec, node_name=node)
                self.world.write("pods", structs.replace(pod, spec=spec))
        self.attempts.clear()

    def do_others(self) -> None:
        """Allocate or free a device for a claim of others; a device that gpufleet is writing is not theirs to take."""
        claims = [each for each in self.world.all("resource_claims") if not each.metadata.owner_references]
        if claims:
            self.world.remove("resource_claims", "ns", claims[0].metadata.name)
            return
        self.process.watch()
        if self.world.calls or self.world.late or not self.process.idle:
            return
        free = [
            (node, gpu)
            for node in ("a", "b")
            for gpu in range(2)
            if not self.used().get((node, gpu))
            and all(
                (node, gpu) not in {(hold.fits.node, each) for each in hold.fits.gpus}
                for hold in self.process.scheduler.ledger.holds.values()
            )
        ]
        if free:
            node, gpu = self.chance.choice(free)
            results = [{"request": "r", "driver": DRIVER, "pool": node, "device": f"gpu-{gpu}"}]
            body = {
                "metadata": {"name": "theirs", "namespace": "ns"},
                "status": {"allocation": {"devices": {"results": results}}},
            }
            self.world.write("resource_claims", convert(body, ResourceClaim))
            self.process.watch()

    # -- state -----------------------------------------------------------------------------

    def members(self) -> list[Pod]:
        return [
            pod
            for pod in self.world.all("pods")
            if pod.metadata.annotations[CLAIM] == "of-g" and not pod.finished
        ]

    def allocated(self) -> list[tuple[Pod, Any]]:
        pods = {pod.metadata.uid: pod for pod in self.world.all("pods")}
        return [
            (pods[owner.uid], claim)
            for claim in self.world.all("resource_claims")
            if claim.status.allocation is not None
            for owner in claim.metadata.owner_references
            if owner.uid in pods
        ]

    def used(self) -> dict[tuple[str, int], set[str]]:
        """Return who has each device, by allocations and by leases."""
        used: dict[tuple[str, int], set[str]] = {}
        running = {pod.metadata.uid for pod in self.world.all("pods") if not pod.finished}
        for claim in self.world.all("resource_claims"):
            owners = [owner.uid for owner in claim.metadata.owner_references] or [claim.metadata.name]
            for device in claim.devices:
                gpu = int(device.device.removeprefix("gpu-"))
                used.setdefault((device.pool, gpu), set()).add(owners[0])
        for lease in self.world.all("leases"):
            read = read_lease(lease)
            assert read is not None
            # A lease that is created late, after its pod has ended, is garbage-collected.
            used.setdefault((read.node, read.gpu), set()).update(running & read.holders.keys())
        return used

    def check(self) -> None:
        for place, holders in self.used().items():
            assert len(holders) <= 1, f"{place} has {holders}"
        nodes = {pod.metadata.uid: claim.status.allocation.node for pod, claim in self.allocated()}
        for pod in self.world.all("pods"):
            if pod.spec.node_name and not pod.finished:
                assert nodes.get(pod.metadata.uid) == pod.spec.node_name, (
                    f"{pod.metadata.name} has no devices"
                )

    def reconcile(self, part: Literal["plan", "allocator"]) -> None:
        """Let one component work until its calls are answered."""
        self.process.reconcile_with(part)
        while self.world.calls:
            self.world.resolve(self.world.calls[0], "done")

    def advance(self) -> None:
        """Deliver all watch events, and let planner and allocator work."""
        self.process.watch()
        self.reconcile("plan")
        self.process.watch()
        self.reconcile("allocator")

    # -- the end ---------------------------------------------------------------------------

    def repair(self) -> None:
        """End the faults and let the scheduler repair everything."""
        while self.world.late:
            self.world.arrive_late(0)
        self.end_attempts()
        quiet = 0
        for _ in range(60):
            before = self.world.version
            self.do_controller()
            for part in ("plan", "allocator", "lease_gc", "mirror", "statuses"):
                self.process.watch()
                self.process.reconcile_with(part)
                while self.world.calls:
                    self.world.resolve(self.world.calls[0], "done")
                    self.check()
            for pod, claim in self.allocated():
                if not pod.spec.node_name and not pod.spec.scheduling_gates and not pod.finished:
                    spec = structs.replace(pod.spec, node_name=claim.status.allocation.node)
                    self.world.write("pods", structs.replace(pod, spec=spec))
            self.world.now += 7.0
            quiet = quiet + 1 if self.world.version == before else 0
            if quiet > 20:
                break
        self.process.watch()
        self.process.check_tasks()
        self.check()
        self.nothing_is_left_behind()

    def nothing_is_left_behind(self) -> None:
        ledger = self.process.scheduler.ledger
        running = {pod.metadata.uid: pod for pod in self.world.all("pods") if not pod.finished}
        for lease in self.world.all("leases"):
            assert set(read_lease(lease).holders) <= running.keys()  # type: ignore[union-attr]
        assert not [hold for hold in ledger.holds.values() if hold.pinned]
        for pod, claim in self.allocated():
            if pod.finished:
                continue
            assert pod.spec.node_name, f"{pod.metadata.name} has an allocation and no node"
            assert claim.status.reserved_for, f"{pod.metadata.name} may not use its claim"
            gpus = sorted(int(each.device.removeprefix("gpu-")) for each in claim.devices)
            expected = f"{pod.spec.node_name}:{','.join(map(str, gpus))}"
            assert pod.metadata.annotations.get(ALLOCATED) == expected, "the mirror is not complete"
            leased = ledger.leases_of(pod.metadata.uid).get(pod.spec.node_name, {})
            assert sorted(leased) == gpus
        for pod in running.values():
            found = ledger.claim_of(pod)
            if pod.spec.node_name or pod.metadata.deletion_timestamp or found is None or found.spec.gang_ref:
                continue
            assert isinstance(ledger.cluster.place(request_of(found)), Refused), (
                f"{pod.metadata.name} waits although it fits"
            )


def claim_for(pod: Pod) -> ResourceClaim:
    meta = pod.metadata
    owner = OwnerReference("v1", "Pod", meta.name, meta.uid, controller=True)
    body = {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DEVICE_CLASS}}]}}
    claim: ResourceClaim = convert({"spec": body}, ResourceClaim)
    name = ObjectMeta(name=f"{meta.name}-{meta.uid}", namespace="ns", owner_references=(owner,))
    return structs.replace(claim, metadata=name)


MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(chance=st.randoms(use_true_random=True))
def test_no_device_is_ever_in_two_allocations_nor_in_an_allocation_and_a_lease(chance: Random) -> None:
    machine = Machine(chance)
    try:
        machine.run(150)
        machine.repair()
    finally:
        machine.process.kill()
        machine.world.loop.close()


def test_an_allocation_is_not_cleared_while_the_watch_lags_behind_the_binding() -> None:
    machine = Machine(Random(0), faults=False)
    try:
        machine.add_pod("one")
        machine.do_controller()
        machine.advance()
        [(pod, _)] = machine.allocated()
        failed = Condition("PodScheduled", "False", "Unschedulable", "0/2 nodes: Insufficient cpu")
        status = structs.replace(pod.status, conditions=(failed,))
        pod = machine.world.write("pods", structs.replace(pod, status=status))
        machine.world.now += 6.0
        machine.advance()
        [(_, claim)] = machine.allocated()
        assert not claim.status.reserved_for
        # An attempt that began before the reservation was removed binds the pod; no watch event arrives.
        bound = structs.replace(pod.spec, node_name=claim.status.allocation.node)
        machine.world.write("pods", structs.replace(pod, spec=bound))
        machine.world.now += RELEASED_FOR + 1.0
        machine.reconcile("allocator")
        machine.check()
        machine.advance()
        [(_, claim)] = machine.allocated()
        assert claim.status.reserved_for
    finally:
        machine.process.kill()
        machine.world.loop.close()


def forgets_a_write_without_response(scheduler: Scheduler) -> None:
    """A write without a response counts as not done."""

    async def settle(uid: str) -> None:
        scheduler.allocator._writer.uncertain.pop(uid, None)
        raise NotAllocated("no response")

    scheduler.allocator._writer.settle = settle  # type: ignore[method-assign]


def ignores_claims_of_others(scheduler: Scheduler) -> None:
    """Only claims of gpufleet count."""
    put = scheduler.ledger.put_resource_claim

    def ours(claim: ResourceClaim) -> None:
        if claim.metadata.owner_references:
            put(claim)

    scheduler.ledger.put_resource_claim = ours  # type: ignore[method-assign]


@pytest.mark.long
@pytest.mark.parametrize("plant", [forgets_a_write_without_response, ignores_claims_of_others])
def test_a_planted_fault_is_found(plant: Callable[[Scheduler], None]) -> None:
    for seed in range(400):
        machine = Machine(Random(seed), plant=plant)
        try:
            machine.run(150)
        except AssertionError:
            return
        finally:
            machine.process.kill()
            machine.world.loop.close()
    pytest.fail(f"{plant.__name__} was not found")


@pytest.mark.parametrize("seed", range(5))
def test_no_member_of_a_gang_is_bound_before_all_have_their_devices(seed: int) -> None:
    machine = Machine(Random(seed), faults=False)
    try:
        for _ in range(GANG):
            machine.add_pod("of-g", (GANG_GATE,))
        machine.run(150)
        machine.repair()
    finally:
        machine.process.kill()
        machine.world.loop.close()


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_every_pod_that_fits_gets_its_devices(seed: int) -> None:
    machine = Machine(Random(seed))
    try:
        for claim in ("one", "two", "one"):
            machine.add_pod(claim)
        machine.repair()
        assert len(machine.allocated()) == 3
        assert len(machine.world.all("leases")) == 4
    finally:
        machine.process.kill()
        machine.world.loop.close()
