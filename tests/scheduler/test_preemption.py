"""Priority on the embedded API: who leaves for whom."""

import msgspec
from tests.scheduler.stage import Stage

from gpufleet.model.annotations import NUDGE


async def priorities(stage: Stage) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        await stage.client.write_json("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


async def test_a_pod_of_priority_gets_the_gpus_of_the_least_important(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=2)
    await stage.claim("one")
    await stage.claim("two", 2)
    low = [await stage.pod(f"low{at}", "one", priorityClassName="low") for at in range(2)]
    for pod in low:
        assert await stage.schedule(pod) == "a"
    high = await stage.pod("high", "two", priorityClassName="high")
    assert await stage.schedule(high) == ""
    late = await stage.pod("late", "one", priorityClassName="low")
    assert await stage.schedule(late) == "", "the GPUs are kept for whom they were freed"
    ledger = stage.desk.ledger
    await stage.until(lambda: all(ledger.pods[pod.metadata.uid].metadata.deletion_timestamp for pod in low))
    assert len(await stage.leases()) == 2, "a pod that is leaving holds its GPUs until it is gone"
    for pod in low:
        await stage.delete(pod)
    await stage.until(lambda: not any(pod.metadata.uid in ledger.pods for pod in low))
    await stage.until(lambda: not ledger.leases)
    await stage.until(lambda: NUDGE in ledger.pods[high.metadata.uid].metadata.annotations)
    assert await stage.schedule(late) == ""
    assert await stage.schedule(high) == "a"


async def test_nobody_leaves_for_a_pod_of_the_same_priority_or_one_that_must_not_preempt(
    stage: Stage,
) -> None:
    await priorities(stage)
    await stage.node("a", gpus=1)
    await stage.claim("one")
    assert await stage.schedule(await stage.pod("p", "one", priorityClassName="low")) == "a"
    assert await stage.schedule(await stage.pod("q", "one", priorityClassName="low")) == ""
    gentle = await stage.pod("r", "one", priorityClassName="high", preemptionPolicy="Never")
    assert await stage.schedule(gentle) == ""
    assert len(await stage.leases()) == 1


async def test_preempt_answers_which_victims_free_the_gpus(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=2)
    await stage.node("b", gpus=1)
    await stage.claim("one")
    await stage.claim("two", 2)
    held = [await stage.pod(f"p{at}", "one", priorityClassName="low") for at in range(3)]
    nodes = {pod.metadata.uid: await stage.schedule(pod) for pod in held}
    on_a = {uid for uid, node in nodes.items() if node == "a"}
    high = await stage.read(await stage.pod("high", "two", priorityClassName="high"))
    asked = {
        "Pod": msgspec.to_builtins(high),
        "NodeNameToMetaVictims": {node: {"Pods": [{"UID": "other"}]} for node in ("a", "b")},
    }
    found = (await stage.call("/preempt", asked))["NodeNameToMetaVictims"]
    assert list(found) == ["a"], "b has one GPU only"
    assert {each["UID"] for each in found["a"]["Pods"]} == {"other", *on_a}
