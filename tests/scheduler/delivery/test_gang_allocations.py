"""A gang in mode `dra`: its allocations are written together, and kube-scheduler binds its members one by one."""

from collections.abc import Iterator
from random import Random

import pytest
from msgspec import structs
from tests.scheduler.test_dra_never_twice import GANG, Machine
from tests.scheduler.world import Outcome

from gpufleet.kubernetes.annotations import GANG_GATE
from gpufleet.kubernetes.objects import Condition, Pod
from gpufleet.runtime.settings import SchedulerSettings


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Return a cluster with the members of one gang, whose ResourceClaims exist."""
    machine = Machine(Random(0), faults=False)
    for _ in range(GANG):
        machine.add_pod("of-g", (GANG_GATE,))
    machine.do_controller()
    machine.process.watch()
    yield machine
    machine.process.kill()
    machine.world.loop.close()


def reconcile(machine: Machine) -> None:
    """Run every component once; all requests succeed."""
    for part in ("plan", "allocator", "lease_gc", "mirror"):
        machine.process.watch()
        machine.process.reconcile_with(part)
        while machine.world.calls:
            machine.world.resolve(machine.world.calls[0], "done")
    machine.process.watch()
    machine.process.check_tasks()


def bind(machine: Machine, pod: Pod) -> None:
    [node] = [
        claim.status.allocation.node
        for each, claim in machine.allocated()
        if each.metadata.uid == pod.metadata.uid
    ]
    machine.world.write("pods", structs.replace(pod, spec=structs.replace(pod.spec, node_name=node)))


def report_unschedulable(machine: Machine, pod: Pod) -> None:
    failed = Condition("PodScheduled", "False", "Unschedulable", "0/2 nodes: node(s) had no free ports")
    status = structs.replace(pod.status, conditions=(failed,))
    machine.world.write("pods", structs.replace(pod, status=status))


@pytest.mark.parametrize("outcome", ["failed", "refused"])
def test_a_gang_of_which_one_allocation_can_not_be_written_holds_nothing(
    machine: Machine, outcome: Outcome
) -> None:
    machine.process.reconcile_with("plan")
    writes = list(machine.world.calls)
    assert len(writes) == GANG
    machine.world.resolve(writes[0], "done")
    assert len(machine.allocated()) == 1
    machine.world.resolve(writes[1], outcome)
    while machine.world.calls:
        machine.world.resolve(machine.world.calls[0], "done")
    machine.process.watch()
    assert machine.allocated() == []
    assert machine.process.scheduler.ledger.holds == {}
    assert all(pod.spec.scheduling_gates for pod in machine.members())
    for _ in range(4):
        machine.world.now += 10.0
        reconcile(machine)
    assert len(machine.allocated()) == GANG
    assert not any(pod.spec.scheduling_gates for pod in machine.members())


def test_running_members_are_evicted_if_another_can_not_be_placed_in_time(machine: Machine) -> None:
    reconcile(machine)
    reconcile(machine)
    first, second = machine.members()
    assert not first.spec.scheduling_gates
    assert not second.spec.scheduling_gates
    bind(machine, first)
    report_unschedulable(machine, second)
    timeout, grace = 20.0, SchedulerSettings().gang_grace
    machine.world.now += timeout + grace - 5.0
    reconcile(machine)
    assert len(machine.allocated()) == GANG
    assert len(machine.members()) == GANG
    machine.world.now += 20.0
    reconcile(machine)
    machine.world.now += 20.0
    machine.do_controller()
    reconcile(machine)
    first, second = machine.members()
    assert first.metadata.deletion_timestamp is not None
    assert second.metadata.deletion_timestamp is None
    assert [pod.metadata.name for pod, _ in machine.allocated()] == [first.metadata.name]
    machine.world.delete(first)  # its kubelet has ended it
    machine.do_controller()
    reconcile(machine)
    assert machine.allocated() == []
    assert machine.world.all("leases") == []


def test_a_gang_is_planned_again_without_the_node_on_which_a_member_can_not_be_placed(
    machine: Machine,
) -> None:
    reconcile(machine)
    reconcile(machine)
    _, second = machine.members()
    before = {pod.metadata.name: claim.status.allocation.node for pod, claim in machine.allocated()}
    report_unschedulable(machine, second)
    for _ in range(5):
        machine.world.now += 5.0
        reconcile(machine)
    after = {pod.metadata.name: claim.status.allocation.node for pod, claim in machine.allocated()}
    assert after.keys() == before.keys()
    assert after[second.metadata.name] != before[second.metadata.name]
