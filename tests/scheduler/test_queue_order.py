"""What starts first, and what is never started or stopped by halves, on the embedded API."""

from typing import Any

from msgspec import convert
from msgspec.structs import replace
from tests.scheduler.stage import Stage, open_stage
from tests.scheduler.test_gangs import GATED, bind_all, gang_claim
from tests.scheduler.test_preemption import priorities
from tests.scheduler.world import Process, World

from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.annotations import GANG_GATE, GANG_MAX_SIZE, GANG_SIZE
from gpufleet.kubernetes.objects import OwnerReference, Pod, PodDisruptionBudget
from gpufleet.scheduler.explain import explain
from kubelite import KubeLite


def asking_for(**requests: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}


async def running(stage: Stage, name: str, claim: str, **spec: Any) -> Pod:
    pod = await stage.pod(name, claim, **spec)
    assert await stage.schedule(pod)
    return pod


async def gone(stage: Stage, pod: Pod) -> None:
    await stage.delete(pod)
    await stage.until(lambda: not stage.scheduler.ledger.leases_of(pod.metadata.uid))


async def test_younger_pods_do_not_take_the_gpus_that_an_older_gang_waits_for(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    first, second = [await running(stage, f"p{at}", "one") for at in range(2)]
    members = [await stage.pod(f"m{at}", "of-g", **GATED) for at in range(2)]
    await stage.reconciled()
    await gone(stage, first)
    for at in range(4):
        assert await stage.schedule(await stage.pod(f"young{at}", "one")) == ""
    await gone(stage, second)
    await stage.planned()
    assert await bind_all(stage, members) == ["", ""]


async def test_a_gang_whose_cpu_does_not_fit_holds_no_gpus(stage: Stage) -> None:
    for name in ("a", "b"):
        await stage.node(name, gpus=4, allocatable={"cpu": "8", "memory": "8Gi", "pods": "10"})
    await stage.pod("full", nodeName="b", **asking_for(cpu="7"))
    await stage.group("g", 2)
    await gang_claim(stage, "g", 4)
    for at in range(2):
        await stage.pod(f"m{at}", "of-g", **asking_for(cpu="4"), **GATED)
    await stage.reconciled()
    await stage.reconciled()
    assert await stage.leases() == {}
    await stage.claim("four", 4)
    for at in range(2):
        await running(stage, f"single{at}", "four")


async def test_a_gang_behind_a_foreign_gate_holds_no_gpus(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    gates: dict[str, Any] = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": GANG_GATE}]}
    for at in range(2):
        await stage.pod(f"m{at}", "of-g", **gates)
    await stage.reconciled()
    assert await stage.leases() == {}
    await stage.claim("two", 2)
    await running(stage, "single", "two")


async def test_a_running_gang_is_preempted_as_a_whole_or_not_at_all(stage: Stage) -> None:
    await priorities(stage)
    for name in ("a", "b", "c"):
        await stage.node(name, gpus=1)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    await stage.claim("one")
    members = [await stage.pod(f"m{at}", "of-g", priorityClassName="low") for at in range(2)]
    await stage.planned()
    assert await bind_all(stage, members) == ["", ""]
    lone = await running(stage, "z-lone", "one", priorityClassName="low")
    ledger = stage.scheduler.ledger

    def leaving(pod: Pod) -> bool:
        return ledger.pods[pod.metadata.uid].metadata.deletion_timestamp is not None

    assert await stage.schedule(await stage.pod("high0", "one", priorityClassName="high")) == ""
    await stage.until(lambda: any(map(leaving, (*members, lone))))
    assert [leaving(pod) for pod in (*members, lone)] == [False, False, True], "it loses the least work"
    assert await stage.schedule(await stage.pod("high1", "one", priorityClassName="high")) == ""
    await stage.until(lambda: all(map(leaving, members)))


async def test_a_half_started_gang_ends_after_its_grace_period(server: KubeLite) -> None:
    async with open_stage(server, gang_grace=1.0) as stage:
        await stage.node("a", gpus=2)
        await stage.group("g", 2, seconds=1)
        await gang_claim(stage, "g")
        members = [await stage.pod(f"m{at}", "of-g") for at in range(2)]
        await stage.planned()
        assert await bind_all(stage, members) == ["", ""]
        await stage.delete(members[1])
        ledger, uid = stage.scheduler.ledger, members[0].metadata.uid
        await stage.until(
            lambda: uid not in ledger.pods or ledger.pods[uid].metadata.deletion_timestamp is not None, 10.0
        )


async def test_a_short_pod_may_use_reserved_gpus_and_a_long_one_may_not(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    await stage.claim("two", 2)
    await running(stage, "first", "one", activeDeadlineSeconds=600)
    assert await stage.schedule(await stage.pod("large", "two")) == ""
    assert await stage.schedule(await stage.pod("long", "one", activeDeadlineSeconds=3600)) == ""
    refused = await stage.filter(await stage.pod("unknown", "one"))
    assert refused["FailedNodes"] == {
        "a": "node(s) had free GPUs that are reserved for pods ahead in the queue"
    }
    assert await stage.schedule(await stage.pod("short", "one", activeDeadlineSeconds=60)) == "a"


async def test_a_reservation_yields_to_a_higher_priority(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=2)
    await stage.claim("one")
    await stage.claim("two", 2)
    await running(stage, "first", "one", priorityClassName="high")
    assert await stage.schedule(await stage.pod("large", "two", priorityClassName="low")) == ""
    assert await stage.schedule(await stage.pod("young", "one", priorityClassName="low")) == ""
    assert await stage.schedule(await stage.pod("urgent", "one", priorityClassName="high")) == "a"


async def test_without_reservations_a_younger_pod_takes_free_gpus(server: KubeLite) -> None:
    async with open_stage(server, reservations=0) as stage:
        await stage.node("a", gpus=2)
        await stage.claim("one")
        await stage.claim("two", 2)
        await running(stage, "first", "one")
        assert await stage.schedule(await stage.pod("large", "two")) == ""
        assert await stage.schedule(await stage.pod("young", "one")) == "a"


def test_nothing_is_reserved_on_the_gpus_of_a_service() -> None:
    """It does not end, so waiting for it would leave the other GPU idle."""
    world = World({"a": 2})
    for count in (1, 2):
        world.add_claim(str(count), count=count)
    made = world.add_pod("service", "1")
    owner = OwnerReference(kind="ReplicaSet", name="r", uid="u", controller=True)
    service = world.write("pods", replace(made, metadata=replace(made.metadata, owner_references=(owner,))))
    process = Process(world)
    assert process.schedule(service)
    while world.calls:
        world.resolve(world.calls[0], "done")
    large, young = world.add_pod("large", "2"), world.add_pod("young", "1")
    process.watch()
    assert not process.schedule(large)
    assert process.schedule(young)
    process.kill()
    world.loop.close()


async def test_a_gang_starts_with_its_minimum_and_grows_to_its_maximum(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    sizes = {GANG_SIZE: "2", GANG_MAX_SIZE: "3"}
    await stage.claim("of-g", spec={"gangRef": "g"}, annotations=sizes)
    members = [await stage.pod(f"m{at}", "of-g", **GATED) for at in range(4)]
    await stage.planned()
    assert await bind_all(stage, members[:2]) == ["", ""]
    await stage.node("b", gpus=4)
    ledger = stage.scheduler.ledger
    await stage.until(lambda: not ledger.pods[members[2].metadata.uid].spec.scheduling_gates)
    assert await stage.schedule(members[2]) == "b"
    await stage.reconciled()
    assert (await stage.read(members[3])).spec.scheduling_gates, "it is one more than the maximum"


async def test_pods_that_a_disruption_budget_protects_are_not_preempted(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=1)
    await stage.claim("one")
    low = await running(stage, "low", "one", priorityClassName="low")
    meta = {"name": "keep", "namespace": "default"}
    budget = convert({"metadata": meta, "spec": {"selector": {}}}, PodDisruptionBudget)
    stage.scheduler.watch_events.on_budgets([CacheChange(None, budget)])
    assert await stage.schedule(await stage.pod("high", "one", priorityClassName="high")) == ""
    await stage.reconciled()
    pods = stage.scheduler.ledger.pods
    assert pods[low.metadata.uid].metadata.deletion_timestamp is None
    assert not stage.scheduler.ledger.holds
    stage.scheduler.watch_events.on_budgets([CacheChange(budget, None)])
    await stage.until(lambda: pods[low.metadata.uid].metadata.deletion_timestamp is not None)


async def test_a_gang_with_a_reservation_preempts_once_that_is_possible(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=2)
    await stage.claim("one")
    lows = [await running(stage, f"low{at}", "one", priorityClassName="low") for at in range(2)]
    meta = {"name": "keep", "namespace": "default"}
    budget = convert({"metadata": meta, "spec": {"selector": {}}}, PodDisruptionBudget)
    stage.scheduler.watch_events.on_budgets([CacheChange(None, budget)])
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    for at in range(2):
        await stage.pod(f"m{at}", "of-g", priorityClassName="high", **GATED)
    await stage.until(lambda: "reserved" in stage.note("g"))
    stage.scheduler.watch_events.on_budgets([CacheChange(budget, None)])
    pods = stage.scheduler.ledger.pods
    await stage.until(lambda: all(pods[low.metadata.uid].metadata.deletion_timestamp for low in lows))


async def test_gpus_are_nominated_for_as_long_as_the_victims_may_take(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=1)
    await stage.claim("one")
    await running(stage, "low", "one", priorityClassName="low", terminationGracePeriodSeconds=600)
    high = await stage.pod("high", "one", priorityClassName="high")
    assert await stage.schedule(high) == ""
    left = stage.scheduler.ledger.holds[high.metadata.uid].until - stage.client.timing.monotonic()
    assert 590 < left < 610


async def test_the_sentence_accounts_for_every_node(stage: Stage) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await stage.node(name, gpus=1, labels={"disk": "slow"} if name == "a" else {"disk": "fast"})
    await stage._patch("/api/v1/nodes/b", {"spec": {"unschedulable": True}})
    not_ready = {"conditions": [{"type": "Ready", "status": "False"}]}
    await stage._patch("/api/v1/nodes/c/status", {"status": not_ready})
    taints = [{"key": "k", "effect": "NoSchedule"}]
    await stage._patch("/api/v1/nodes/d", {"spec": {"taints": taints}})
    await stage.until(lambda: stage.scheduler.ledger.nodes["d"].spec.taints)
    await stage.until(lambda: not stage.scheduler.ledger.cluster.nodes["c"].ready)
    await stage.claim("one")
    assert await stage.schedule(await stage.pod("first", "one"), "e") == "e"
    pod = await stage.pod("p", "one", nodeSelector={"disk": "fast"})
    await stage.filter(pod, "e")  # kube-scheduler offers no other node
    reason = stage.scheduler.planner.reason(pod)
    for each in (
        "0/5 nodes fit",
        "1 has no free GPU",
        "1 has other labels than the pod's node selector or affinity",
        "1 has been cordoned",
        "1 is not ready",
        "1 has a taint that the pod does not tolerate",
    ):
        assert each in reason
    await stage.until(lambda: reason in stage.scheduler.ledger.claims["default", "one"].status.message)
    assert explain(stage.scheduler.ledger, "default", "one").sentence == reason


async def test_a_pod_with_a_claim_and_another_scheduler_says_so(stage: Stage) -> None:
    await stage.claim("one")
    await stage.pod("p", "one", schedulerName="default-scheduler")
    expected = "pod p has schedulerName default-scheduler, which does not allocate the GPUs of claims"
    await stage.until(lambda: expected in stage.scheduler.ledger.claims["default", "one"].status.message)
