"""Preemption on the embedded API."""

import asyncio

import msgspec
from tests.scheduler.stage import Stage

from gpufleet.kubernetes.annotations import NUDGE


async def priorities(stage: Stage) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        await stage.client.write_json("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


async def test_a_pod_of_high_priority_gets_the_gpus_of_the_lowest(stage: Stage) -> None:
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
    assert await stage.schedule(late) == "", "the GPUs are held for the preempting pod"
    ledger = stage.scheduler.ledger
    await stage.until(lambda: all(ledger.pods[pod.metadata.uid].metadata.deletion_timestamp for pod in low))
    assert len(await stage.leases()) == 2, "a terminating pod holds its GPUs until it is deleted"
    for pod in low:
        await stage.delete(pod)
    await stage.until(lambda: not any(pod.metadata.uid in ledger.pods for pod in low))
    await stage.until(lambda: not ledger.leases)
    await stage.until(lambda: NUDGE in ledger.pods[high.metadata.uid].metadata.annotations)
    assert await stage.schedule(late) == ""
    assert await stage.schedule(high) == "a"


async def test_no_pod_is_preempted_by_equal_priority_or_by_a_pod_that_must_not_preempt(
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


async def test_preempt_returns_the_victims_that_free_the_gpus(stage: Stage) -> None:
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


async def test_a_gang_of_high_priority_preempts_for_all_of_its_members(stage: Stage) -> None:
    await priorities(stage)
    fast = {"disk": "fast"}
    for node in ("a", "b", "c"):
        await stage.node(node, gpus=1, labels={} if node == "a" else fast)
    await stage.claim("one")
    await stage.claim("of-g", spec={"gangRef": "g"})
    await stage.group("g", 2)
    low = {}
    for at in range(3):
        pod = await stage.pod(f"low{at}", "one", priorityClassName="low")
        low[await stage.schedule(pod)] = pod
    spared = low.pop("a")
    high = [
        await stage.pod(f"high{at}", "of-g", priorityClassName="high", nodeSelector=fast) for at in range(2)
    ]
    ledger = stage.scheduler.ledger
    await stage.until(
        lambda: all(ledger.pods[pod.metadata.uid].metadata.deletion_timestamp for pod in low.values())
    )
    refused = await stage.filter(high[0])
    assert not refused["NodeNames"]
    assert "until the preempted pods have terminated" in stage.note("g")
    for pod in low.values():
        await stage.delete(pod)
    await stage.planned()
    nodes = [(await stage.filter(pod))["NodeNames"][0] for pod in high]
    errors = await asyncio.gather(*(stage.bind(pod, node) for pod, node in zip(high, nodes, strict=True)))
    assert errors == ["", ""]
    assert sorted(nodes) == ["b", "c"]
    assert ledger.pods[spared.metadata.uid].metadata.deletion_timestamp is None, "evicting it would not help"


async def test_no_pod_is_preempted_for_half_a_gang(stage: Stage) -> None:
    await priorities(stage)
    await stage.node("a", gpus=2)
    await stage.claim("one")
    await stage.claim("of-g", spec={"gangRef": "g"})
    await stage.group("g", 2)
    low = await stage.pod("low", "one", priorityClassName="low")
    other = await stage.pod("other", "one", priorityClassName="high")
    for pod in (low, other):
        assert await stage.schedule(pod) == "a"
    for at in range(2):
        await stage.pod(f"high{at}", "of-g", priorityClassName="high")
    await stage.until(lambda: stage.note("g"))
    assert "0 of 2 members fit" in stage.note("g")
    assert stage.scheduler.ledger.pods[low.metadata.uid].metadata.deletion_timestamp is None
    assert not stage.scheduler.ledger.holds
