"""Calls that kube-scheduler did not make: whatever their body says, they change nothing."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.scheduler.stage import Stage

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod

HIGHEST = 2_000_000_000


async def body_of(stage: Stage, pod: Pod, *nodes: str, **spec: Any) -> dict[str, Any]:
    """Return the arguments of filter for the pod, with a forged spec."""
    plain: Any = msgspec.to_builtins(await stage.read(pod))
    plain["spec"].update(spec)
    return {"Pod": plain, "NodeNames": list(nodes)}


async def check_nothing_changed(stage: Stage, *running: Pod) -> None:
    """Check that nothing is held for a pod, and that no pod was evicted or bound."""
    await stage.until(lambda: not stage.scheduler.tasks)
    assert stage.scheduler.ledger.holds == {}
    for pod in running:
        assert (await stage.read(pod)).metadata.deletion_timestamp is None
    assert len(await stage.leases()) == len(running)


async def priority_class(stage: Stage, name: str, policy: str = "PreemptLowerPriority") -> None:
    body = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": policy}
    await stage.client.write_json("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


@pytest.mark.parametrize("forged", [{"priority": HIGHEST}, {"preemptionPolicy": "PreemptLowerPriority"}])
async def test_a_forged_priority_evicts_nothing(stage: Stage, forged: Mapping[str, Any]) -> None:
    await priority_class(stage, "gentle", "Never")
    await stage.node("a", gpus=1)
    await stage.claim("one")
    low = await stage.pod("low", "one")
    assert await stage.schedule(low) == "a"
    real: dict[str, Any] = {"priorityClassName": "gentle"} if "preemptionPolicy" in forged else {}
    pod = await stage.pod("p", "one", **real)
    found = await stage.call("/filter", await body_of(stage, pod, "a", **forged))
    assert found["FailedNodes"] == {"a": "node(s) had no free GPU"}
    await check_nothing_changed(stage, low)


async def test_preempt_does_not_take_the_priority_from_the_call(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    low = await stage.pod("low", "one")
    assert await stage.schedule(low) == "a"
    body = await body_of(stage, await stage.pod("p", "one"), priority=HIGHEST)
    body = {"Pod": body["Pod"], "NodeNameToMetaVictims": {"a": {"Pods": []}}}
    assert await stage.call("/preempt", body) == {"NodeNameToMetaVictims": {}}


async def test_a_forged_claim_holds_nothing(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    body = await body_of(stage, await stage.pod("p"), "a")
    body["Pod"]["metadata"]["annotations"] = {CLAIM: "one"}
    assert (await stage.call("/filter", body))["NodeNames"] == ["a"]
    await check_nothing_changed(stage)


async def test_a_pod_that_does_not_exist_is_refused(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    body = await body_of(stage, await stage.pod("p", "one"), "a")
    body["Pod"]["metadata"]["uid"] = "forged"
    found = await stage.call("/filter", body)
    assert found["NodeNames"] == []
    assert "has not reached the scheduler yet" in found["Error"]
    args = {"PodName": "p", "PodNamespace": "default", "PodUID": "forged", "Node": "a"}
    assert "has not reached the scheduler yet" in (await stage.call("/bind", args))["Error"]
    for verb in ("/prioritize", "/preempt"):
        assert (await stage.raw("POST", verb, msgspec.json.encode(body)))[0] == 503
    assert stage.scheduler.queue.get("forged") is None
    await check_nothing_changed(stage)


async def test_a_pod_that_the_watch_delivers_a_moment_later_is_served(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    late = stage.scheduler.ledger.pods[pod.metadata.uid]
    stage.scheduler.queue.drop(pod.metadata.uid)
    stage.scheduler.ledger.drop_pod(pod.metadata.uid)
    stage.scheduler.ledger._pods.deleted.clear()  # as if it had never arrived
    body = await body_of(stage, pod, "a")
    call = asyncio.ensure_future(stage.call("/filter", body))
    await asyncio.sleep(0.05)
    stage.scheduler.ledger.put_pod(late)
    assert (await call)["NodeNames"] == ["a"]


async def test_a_pod_of_another_scheduler_is_not_placed(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    for claim in ("", "one"):
        pod = await stage.pod(f"p{claim}", claim, schedulerName="default-scheduler")
        found = await stage.call("/filter", await body_of(stage, pod, "a", schedulerName="gpu-scheduler"))
        assert found["NodeNames"] == []
        assert "schedulerName default-scheduler" in found["Error"]
        assert "schedulerName default-scheduler" in await stage.bind(pod, "a")
        assert (await stage.read(pod)).spec.node_name == ""
    await check_nothing_changed(stage)


async def test_a_pod_is_not_bound_against_its_node_selector_or_a_taint(stage: Stage) -> None:
    await stage.node("a", labels={"disk": "hdd"})
    await stage.node("b", labels={"disk": "ssd"})
    taint = {"spec": {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}}
    await stage._patch("/api/v1/nodes/b", taint)
    await stage.until(lambda: stage.scheduler.ledger.nodes["b"].spec.taints)
    await stage.claim("one")
    for claim in ("", "one"):
        pod = await stage.pod(f"p{claim}", claim, nodeSelector={"disk": "ssd"})
        for node in ("a", "b", "missing"):
            assert f"does not fit on node {node}" in await stage.bind(pod, node)
        assert (await stage.read(pod)).spec.node_name == ""
    await check_nothing_changed(stage)


async def test_forged_candidates_hold_and_evict_nothing(stage: Stage) -> None:
    await priority_class(stage, "high")
    await stage.node("a", gpus=1, labels={"disk": "hdd"})
    await stage.node("b", gpus=1, labels={"disk": "hdd"})
    await stage.claim("one")
    low = await stage.pod("low", "one", nodeSelector={"disk": "hdd"})
    assert await stage.schedule(low, "a") == "a"
    high = await stage.pod("high", "one", priorityClassName="high", nodeSelector={"disk": "ssd"})
    for node in ("a", "b"):
        found = await stage.call("/filter", await body_of(stage, high, node))
        assert found["NodeNames"] == []
        await check_nothing_changed(stage, low)


async def test_filter_does_not_place_a_pod_that_is_bound_elsewhere_or_gated(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    bound = await stage.pod("bound", "one")
    assert await stage.schedule(bound) == "a"
    gated = await stage.pod("gated", "one", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    for pod, why in ((bound, "is already bound"), (gated, "has scheduling gates")):
        body = await body_of(stage, pod, "b", nodeName="", schedulingGates=[])
        await stage.until(lambda: stage.scheduler.ledger.pods[bound.metadata.uid].spec.node_name)
        found = await stage.call("/filter", body)
        assert found["NodeNames"] == []
        assert why in found["Error"]
    await check_nothing_changed(stage, bound)
