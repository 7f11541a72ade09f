"""What starts first, and what is never started or stopped by halves, on the embedded API."""

from typing import Any

from tests.scheduler.stage import Stage, open_stage
from tests.scheduler.test_gangs import GATED, bind_all, gang_claim
from tests.scheduler.test_preemption import priorities

from gpufleet.kubernetes.annotations import GANG_GATE
from gpufleet.kubernetes.objects import Pod
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
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": GANG_GATE}]}
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
