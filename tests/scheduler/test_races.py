"""The races that stamps and resource versions protect against, one test each."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from structlog.testing import capture_logs
from tests.scheduler.world import Outcome, Process, World

from gpufleet.kubernetes.annotations import ALLOCATED
from gpufleet.scheduler.state.gang_identity import Gang


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"a": 2})
    world.add_claim("one", count=1)
    world.add_claim("two", count=2)
    yield world
    world.loop.close()


def answer(world: World, name: str, outcome: Outcome = "done") -> None:
    """Resolve the first call of that name, which must exist."""
    found = [call for call in world.calls if call.name.startswith(name)]
    assert found, f"no call {name!r} among {[call.name for call in world.calls]}"
    world.resolve(found[0], outcome)


def answer_all(world: World) -> None:
    while world.calls:
        world.resolve(world.calls[0], "done")


def leases(world: World) -> dict[str, str]:
    return {lease.metadata.name: lease.spec.holder_identity for lease in world.all("leases")}


def node_of(world: World, pod: str) -> str:
    found = world.pod(pod)
    assert found is not None
    return found.spec.node_name


def test_a_binding_whose_response_was_lost_is_a_success(world: World) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer(world, "create lease")
    answer(world, "bind", "answer lost")
    answer(world, "nudge")
    assert next(iter(process.tasks)).result() == ""
    assert leases(world) == {"gpu-a-0": pod.metadata.uid}
    process.kill()


def test_a_late_binding_finds_the_pod_changed(world: World) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer(world, "create lease")
    answer(world, "bind", "late")
    answer(world, "nudge")
    answer(world, "delete lease")
    assert next(iter(process.tasks)).result() != ""
    world.arrive_late(0)
    assert node_of(world, "p") == "", "bound without leases"
    process.kill()


def test_a_lease_that_is_created_late_is_released(world: World) -> None:
    pod, process = world.add_pod("p", "two"), Process(world)
    process.schedule(pod)
    answer(world, "create lease gpu-a-0", "late")
    answer(world, "read lease gpu-a-0", "failed")
    answer(world, "create lease gpu-a-1")
    answer_all(world)
    world.remove("pods", "ns", "p")
    world.arrive_late(0)
    assert leases(world) == {"gpu-a-0": pod.metadata.uid}
    process.watch(100)
    process.reconcile_with("lease_gc")
    answer_all(world)
    assert leases(world) == {}
    process.kill()


def test_a_renewed_lease_is_not_reclaimed(world: World) -> None:
    pod, old = world.add_pod("p", "one"), Process(world)
    old.schedule(pod)
    answer(world, "create lease")
    old.kill()
    first, second = Process(world), Process(world)
    world.now += 60
    first.reconcile_with("lease_gc")
    answer_all(world)
    world.now += 60
    first.reconcile_with("lease_gc")
    answer(world, "nudge")
    # The leases are about to be released. Now the other process binds the pod with them.
    second.watch(100)
    fresh = world.pod("p")
    assert fresh is not None
    second.schedule(fresh)
    answer(world, "replace lease")
    answer(world, "bind")
    answer_all(world)
    assert node_of(world, "p") == "a"
    assert leases(world) == {"gpu-a-0": pod.metadata.uid}, "bound, and its lease was taken"
    first.kill()
    second.kill()


def test_a_suspended_leader_can_not_bind_after_its_leases_were_reclaimed(world: World) -> None:
    pod, old, new = world.add_pod("p", "one"), Process(world), Process(world)
    old.schedule(pod)
    answer(world, "create lease")
    assert [call.name for call in world.calls] == ["bind p to a"], "the process is suspended here"
    new.watch(100)
    new.reconcile_with("lease_gc")
    world.now += 60
    new.reconcile_with("lease_gc")
    answer(world, "nudge")
    answer(world, "delete lease")
    other = world.add_pod("q", "two")
    new.watch(100)
    new.schedule(other)
    answer(world, "create lease")
    answer(world, "create lease")
    answer(world, "bind q")
    answer(world, "bind p")
    assert node_of(world, "p") == ""
    assert node_of(world, "q") == "a"
    answer_all(world)
    old.kill()
    new.kill()


def test_two_leaders_give_one_gpu_to_one_pod(world: World) -> None:
    pods = [world.add_pod(name, "two") for name in ("p", "q")]
    processes = [Process(world), Process(world)]
    for pod, process in zip(pods, processes, strict=True):
        process.schedule(pod)
    answer_all(world)
    bound = [pod for pod in world.all("pods") if pod.spec.node_name]
    assert len(bound) == 1
    assert bound[0].metadata.annotations[ALLOCATED] == "a:0,1"
    assert set(leases(world).values()) == {bound[0].metadata.uid}
    for process in processes:
        process.kill()


def test_an_api_error_does_not_count_as_a_taken_gpu(world: World) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer(world, "create lease", "failed")
    answer(world, "read lease")
    answer(world, "create lease")
    answer(world, "bind")
    assert next(iter(process.tasks)).result() == ""
    process.kill()


def test_leases_are_written_concurrently(world: World) -> None:
    pod, process = world.add_pod("p", "two"), Process(world)
    process.schedule(pod)
    assert sorted(call.name for call in world.calls) == ["create lease gpu-a-0", "create lease gpu-a-1"]
    process.kill()


def test_a_failed_attempt_does_not_release_leases_that_another_process_binds_with(world: World) -> None:
    pod, first, second = world.add_pod("p", "two"), Process(world), Process(world)
    first.schedule(pod)
    answer(world, "create lease gpu-a-0")
    answer(world, "create lease gpu-a-1")
    assert [call.name for call in world.calls] == ["bind p to a"], "the process is suspended here"
    second.watch()
    second.schedule(pod)
    answer(world, "replace lease gpu-a-0")
    answer(world, "replace lease gpu-a-1", "failed")
    answer(world, "read lease gpu-a-1", "failed")
    answer(world, "bind p")
    answer_all(world)
    assert node_of(world, "p") == "a"
    assert leases(world) == dict.fromkeys(("gpu-a-0", "gpu-a-1"), pod.metadata.uid)
    first.kill()
    second.kill()


def test_a_status_written_late_is_corrected(world: World) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer_all(world)
    process.watch()
    process.reconcile_with("statuses")
    answer(world, "write status of one", "late")
    world.remove("pods", "ns", "p")
    process.watch()
    process.reconcile_with("statuses")
    answer_all(world)
    world.arrive_late(0)
    assert world.objects["claims", "ns", "one"].status.allocations  # type: ignore[attr-defined]
    process.watch()
    process.reconcile_with("statuses")
    answer_all(world)
    assert not world.objects["claims", "ns", "one"].status.allocations  # type: ignore[attr-defined]
    process.kill()


def test_a_failed_eviction_is_retried(world: World) -> None:
    low, process = world.add_pod("low", "two"), Process(world)
    process.schedule(low)
    answer_all(world)
    high = world.add_pod("high", "one", priority=5)
    process.watch()
    assert not process.schedule(high)
    answer(world, "evict low", "failed")
    assert not process.schedule(high)
    assert world.calls == [], "not at once"
    world.now += 6
    assert not process.schedule(high)
    answer(world, "evict low")
    process.watch()
    assert not process.schedule(high)
    assert world.calls == [], "it is terminating: one eviction is enough"
    process.kill()


def test_a_preempting_pod_takes_gpus_that_become_free_earlier(world: World) -> None:
    first, second, process = world.add_pod("q", "one"), world.add_pod("r", "one"), Process(world)
    for pod in (first, second):
        process.schedule(pod)
        answer_all(world)
    high = world.add_pod("high", "one", priority=5)
    process.watch()
    assert not process.schedule(high)
    answer_all(world)
    process.watch()
    staying = next(
        pod for pod in world.all("pods") if pod.spec.node_name and not pod.metadata.deletion_timestamp
    )
    world.finish(staying)
    process.watch()
    process.reconcile_with("lease_gc")
    answer_all(world)
    process.watch()
    fresh = world.pod("high")
    assert fresh is not None
    assert process.schedule(fresh)
    answer_all(world)
    assert node_of(world, "high") == "a"
    process.kill()


def test_the_gpus_of_a_pod_that_finishes_during_its_bind_are_released(world: World) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer(world, "create lease")
    answer(world, "bind", "answer lost")
    bound = world.pod("p")
    assert bound is not None
    world.finish(bound)
    process.watch()
    process.reconcile_with("lease_gc")
    answer(world, "nudge")
    process.reconcile_with("lease_gc")
    answer_all(world)
    assert leases(world) == {}
    process.kill()


def test_no_member_of_a_gang_is_scheduled_before_all_have_their_leases(world: World) -> None:
    world.add_claim("of-g", gang="g", count=1)
    world.add_group("g", 2, 60)
    members = [world.add_pod(name, "of-g") for name in ("p", "q")]
    first, second = Process(world), Process(world)
    first.reconcile_with("plan")
    assert [call.name for call in world.calls] == ["create lease gpu-a-0", "create lease gpu-a-1"]
    for pod in members:
        first.schedule(pod)
    # Meanwhile the other process, whose watch lags, allocates one of the gang's GPUs.
    other = world.add_pod("r", "one", priority=5)
    second.watch()
    second.schedule(other)
    world.resolve(next(call for call in world.calls if call.process is second), "done")
    answer_all(world)
    assert [node_of(world, name) for name in ("p", "q", "r")] == ["", "", "a"]
    first.kill()
    second.kill()


def test_a_standby_forgets_deleted_objects(world: World) -> None:
    leader, standby = Process(world), Process(world)
    for at in range(5):
        world.add_claim(f"claim-{at}", count=1)
        pod = world.add_pod(f"pod-{at}", f"claim-{at}")
        leader.watch()
        leader.schedule(pod)
        answer_all(world)
        standby.watch()
        bound = world.pod(pod.metadata.name)
        assert bound is not None
        world.finish(bound)
        world.remove("pods", "ns", pod.metadata.name)
        world.remove("claims", "ns", f"claim-{at}")
        leader.watch()
        leader.reconcile_with("lease_gc")
        answer_all(world)
        standby.watch()
    assert leases(world) == {}
    assert not standby.scheduler.dirty.take()
    assert not standby.scheduler.dirty.deleted
    assert {claim for _, claim in standby.scheduler.statuses._dirty} <= {"one", "two"}
    leader.kill()
    standby.kill()


@pytest.mark.parametrize("priorities", [{"z": 0, "a": 0}, {"a": 0, "z": 5}], ids=("age", "priority"))
def test_pending_gangs_are_planned_by_priority_then_age(world: World, priorities: dict[str, int]) -> None:
    runs, process = world.add_pod("p", "two", priority=9), Process(world)
    process.schedule(runs)
    answer_all(world)
    for gang, priority in priorities.items():
        world.add_claim(f"of-{gang}", gang=gang, count=1)
        world.add_group(gang, 2, 60)
        for at in range(2):
            world.add_pod(f"{gang}{at}", f"of-{gang}", priority=priority)
    process.watch()
    process.reconcile_with("plan")
    answer_all(world)
    assert not process.scheduler.gangs.plans
    bound = world.pod("p")
    assert bound is not None
    world.finish(bound)
    for part in ("lease_gc", "plan"):
        process.watch()
        process.reconcile_with(part)
        answer_all(world)
    assert list(process.scheduler.gangs.plans) == [Gang("ns", "z")]
    process.kill()


def test_a_younger_pod_does_not_take_the_gpu_of_a_pod_that_is_woken(world: World) -> None:
    process = Process(world)

    def run(name: str) -> bool:
        pod = world.pod(name)
        assert pod is not None
        bound = process.schedule(pod)
        answer_all(world)
        process.watch()
        return bound

    def end(name: str) -> list[str]:
        pod = world.pod(name)
        assert pod is not None
        world.finish(pod)
        woken = []
        for part in ("lease_gc", "plan"):
            process.watch()
            process.reconcile_with(part)
            while world.calls:
                woken += [call.name for call in world.calls if call.name.startswith("nudge")]
                world.resolve(world.calls[0], "done")
        process.watch()
        return woken

    for name in ("p", "q", "slow", "quick"):
        world.add_pod(name, "one")
    process.watch()
    assert [run(name) for name in ("p", "q", "slow")] == [True, True, False]
    assert end("p") == ["nudge slow"]
    assert not run("quick"), "it is tried before the pod that was woken"
    assert run("slow")
    assert end("q") == ["nudge quick"]
    assert run("quick")
    process.kill()


def test_a_unit_that_is_not_claimed_in_time_holds_nothing_and_waits_longer_each_time(world: World) -> None:
    """Such as a pod whose volume is missing: kube-scheduler does not ask for it."""
    first, process = world.add_pod("p", "two"), Process(world)
    process.schedule(first)
    answer_all(world)
    stuck = world.add_pod("stuck", "two")
    process.watch()
    assert not process.schedule(stuck)
    bound = world.pod("p")
    assert bound is not None
    world.finish(bound)
    nudged = []
    for second in range(200):
        for part in ("lease_gc", "plan"):
            process.watch()
            process.reconcile_with(part)
            while world.calls:
                if world.calls[0].name == "nudge stuck":
                    nudged.append(second)
                world.resolve(world.calls[0], "done")
        world.now += 1.0
    waits = [later - earlier for earlier, later in pairwise(nudged)]
    assert 4 <= len(nudged) <= 8
    assert waits == sorted(waits)
    process.kill()


def test_a_gang_with_an_interrupted_reservation_is_planned_again_immediately(world: World) -> None:
    world.add_claim("of-g", gang="g", count=1)
    world.add_group("g", 2, 60)
    members, process = [world.add_pod(name, "of-g") for name in ("p", "q")], Process(world)
    process.reconcile_with("plan")
    answer(world, "create lease gpu-a-0")
    process.stop_leading()
    process.start_leading()
    process.watch()
    process.reconcile_with("plan")
    answer_all(world)
    assert leases(world).keys() == {"gpu-a-0", "gpu-a-1"}
    assert set(leases(world).values()) == {pod.metadata.uid for pod in members}
    assert [plan.leased for plan in process.scheduler.gangs.plans.values()] == [True]
    process.kill()


@pytest.mark.parametrize("bound", [True, False])
def test_a_lease_that_can_not_be_released_is_not_logged_every_second(world: World, bound: bool) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer(world, "create lease")
    answer(world, "bind", "done" if bound else "killed before")
    if bound:
        finished = world.pod("p")
        assert finished is not None
        world.finish(finished)
    else:
        process = Process(world)
    with capture_logs() as lines:
        for _ in range(600):
            world.now += 1.0
            process.watch()
            process.reconcile_with("lease_gc")
            while world.calls:
                world.resolve(world.calls[0], "failed")
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert 3 <= len(warnings) <= 6, [line["event"] for line in warnings]
    process.kill()


def test_a_status_that_can_not_be_written_is_not_logged_every_second(world: World) -> None:
    pod, process = world.add_pod("p", "one"), Process(world)
    process.schedule(pod)
    answer_all(world)
    process.watch()
    with capture_logs() as lines:
        for _ in range(600):
            world.now += 1.0
            process.reconcile_with("statuses")
            while world.calls:
                world.resolve(world.calls[0], "failed")
    warnings = [line for line in lines if line.get("claim") == "ns/one"]
    assert 3 <= len(warnings) <= 6, warnings
    process.kill()
