"""Gangs on the embedded API: all or nothing."""

import asyncio
from typing import Any

import pytest
from tests.scheduler.stage import Stage, open_stage

from gpufleet.kubernetes.annotations import GANG_GATE, GANG_SIZE, NUDGE
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.resources import GPU_CLAIMS, PODS
from gpufleet.kubernetes.leases import lease_name
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler.explain import explain
from gpufleet.scheduler.state.gang_identity import Gang
from kubelite import KubeLite

GATED: dict[str, Any] = {"schedulingGates": [{"name": GANG_GATE}]}


async def gang_claim(stage: Stage, name: str, count: int = 1) -> None:
    await stage.claim(f"of-{name}", count, spec={"gangRef": name})


async def bind_all(stage: Stage, pods: list[Pod]) -> list[str]:
    """Filter each pod, then bind all concurrently, as kube-scheduler does."""
    nodes = [(await stage.filter(pod))["NodeNames"] for pod in pods]
    assert all(nodes), nodes
    return list(
        await asyncio.gather(*(stage.bind(pod, node[0]) for pod, node in zip(pods, nodes, strict=True)))
    )


async def test_members_are_gated_until_all_have_their_leases(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.node("b", gpus=2)
    await stage.group("g", 2)
    await gang_claim(stage, "g", 2)
    first = await stage.pod("p0", "of-g", **GATED)
    await stage.reconciled()
    assert (await stage.read(first)).spec.scheduling_gates, "one of two members is not enough"
    second = await stage.pod("p1", "of-g", **GATED)
    ledger = stage.scheduler.ledger
    await stage.until(
        lambda: not any(ledger.pods[p.metadata.uid].spec.scheduling_gates for p in (first, second))
    )
    assert len(await stage.leases()) == 4
    await stage.until(lambda: ledger.claims["default", "of-g"].status.phase == "Reserved")
    assert await bind_all(stage, [first, second]) == ["", ""]
    assert {(await stage.read(pod)).spec.node_name for pod in (first, second)} == {"a", "b"}


async def test_no_member_is_bound_before_all_are_ready(stage: Stage) -> None:
    await stage.node("a")
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
    await stage.planned()
    await stage.filter(pods[0])
    assert "are not ready to be bound yet" in await stage.bind(pods[0], "a")
    assert (await stage.read(pods[0])).spec.node_name == ""
    assert await bind_all(stage, pods) == ["", ""]


@pytest.mark.parametrize("spec", [GATED, {}], ids=["gated", "not gated"])
async def test_a_gang_is_bound_with_the_leases_that_it_has_acquired(
    stage: Stage, spec: dict[str, Any]
) -> None:
    await stage.node("a")
    await stage.group("g", 2)
    await gang_claim(stage, "g", 2)
    pods = [await stage.pod(f"p{at}", "of-g", **spec) for at in range(2)]
    await stage.planned()
    acquired = await stage.leases()
    assert len(acquired) == 4
    assert await bind_all(stage, pods) == ["", ""]
    assert await stage.leases() == acquired, "each lease is written once"


async def test_the_leases_of_a_member_that_has_changed_are_written_again(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
    await stage.planned()
    acquired = await stage.leases()
    await stage.client.patch(PODS, "p1", patch.merge({"metadata": {"labels": {"a": "b"}}}), "default")
    ledger = stage.scheduler.ledger
    await stage.until(lambda: ledger.pods[pods[1].metadata.uid].metadata.labels == {"a": "b"})
    assert await bind_all(stage, pods) == ["", ""]
    renewed = {name for name, lease in (await stage.leases()).items() if lease != acquired[name]}
    assert renewed == {lease_name("a", gpu) for gpu in ledger.leases_of(pods[1].metadata.uid)["a"]}


async def test_two_gangs_that_need_the_same_gpus_run_one_after_the_other(stage: Stage) -> None:
    await stage.node("a", gpus=3)
    for name in ("g", "h"):
        await stage.group(name, 2)
        await gang_claim(stage, name)
    pods = {name: [await stage.pod(f"{name}{at}", f"of-{name}") for at in range(2)] for name in ("g", "h")}
    await stage.until(lambda: stage.scheduler.gangs.plans and (stage.note("g") or stage.note("h")))
    assert len(await stage.leases()) == 2, "the other gang holds nothing"
    first = next(iter(stage.scheduler.gangs.plans))[1]
    other = "h" if first == "g" else "g"
    assert await bind_all(stage, pods[first]) == ["", ""]
    refused = await stage.filter(pods[other][0])
    assert refused["NodeNames"] == []
    for pod in pods[first]:
        await stage.delete(pod)
    await stage.until(lambda: Gang("default", other) in stage.scheduler.gangs.plans)
    await stage.until(
        lambda: NUDGE in stage.scheduler.ledger.pods[pods[other][0].metadata.uid].metadata.annotations
    )
    assert await bind_all(stage, pods[other]) == ["", ""]


async def test_a_gang_that_misses_its_deadline_releases_everything(server: KubeLite) -> None:
    async with open_stage(server, grace=60.0) as stage:
        await stage.node("a", gpus=2)
        await stage.group("g", 2, seconds=1)
        await gang_claim(stage, "g")
        await stage.claim("one")
        pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
        await stage.until(lambda: len(stage.scheduler.ledger.leases) == 2)
        await stage.delete(pods[1])
        await stage.until(lambda: not stage.scheduler.ledger.leases, 6.0)
        assert await stage.leases() == {}
        assert await stage.schedule(await stage.pod("single", "one")) == "a"


async def test_without_the_podgroup_crd_the_claims_annotations_set_the_size(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("of-x", spec={"gangRef": "x"}, annotations={GANG_SIZE: "2"})
    pods = [await stage.pod(f"p{at}", "of-x") for at in range(2)]
    await stage.planned()
    assert await bind_all(stage, pods) == ["", ""]


async def test_a_gang_survives_a_restart_of_the_scheduler(server: KubeLite) -> None:
    async with open_stage(server) as stage:
        await stage.node("a")
        await stage.group("g", 2)
        await gang_claim(stage, "g")
        pods = [await stage.pod(f"p{at}", "of-g", **GATED) for at in range(2)]
        await stage.until(lambda: len(stage.scheduler.ledger.leases) == 2)
        before = sorted(await stage.leases())
    async with open_stage(server) as again:
        await again.planned()
        ledger = again.scheduler.ledger
        await again.until(lambda: not any(ledger.pods[p.metadata.uid].spec.scheduling_gates for p in pods))
        assert await bind_all(again, pods) == ["", ""]
        assert sorted(await again.leases()) == before


async def test_the_leases_of_a_gang_are_released_when_its_claim_is_deleted(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    for at in range(2):
        await stage.pod(f"p{at}", "of-g", **GATED)
    await stage.until(lambda: len(stage.scheduler.ledger.leases) == 2)
    await stage.client.delete(GPU_CLAIMS, "of-g", "default")
    await stage.until(lambda: not stage.scheduler.gangs.plans)
    await stage.until(lambda: not stage.scheduler.ledger.leases, 10.0)
    assert await stage.leases() == {}


async def test_a_member_bound_after_the_deadline_of_its_gang_does_not_run_alone(
    stage: Stage,
) -> None:
    """Such as a member that waits for a volume between filter and bind."""
    await stage.node("a", gpus=2)
    await stage.group("g", 2, seconds=1)
    await gang_claim(stage, "g")
    pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
    await stage.planned()
    assert (await stage.filter(pods[0]))["NodeNames"] == ["a"]
    await stage.delete(pods[1])
    await stage.until(lambda: not stage.scheduler.gangs.plans)
    assert "are not ready to be bound yet" in await stage.bind(pods[0], "a")
    assert (await stage.read(pods[0])).spec.node_name == ""


async def test_a_member_does_not_run_alone_when_the_others_are_deleted(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
    await stage.planned()
    assert (await stage.filter(pods[0]))["NodeNames"] == ["a"]
    await stage.delete(pods[1])
    await stage.until(lambda: pods[1].metadata.uid not in stage.scheduler.ledger.pods)
    assert "are not ready to be bound yet" in await stage.bind(pods[0], "a")
    await stage.until(lambda: not stage.scheduler.ledger.leases)
    assert (await stage.read(pods[0])).spec.node_name == ""
    pods[1] = await stage.pod("p1", "of-g")
    await stage.planned()
    assert await bind_all(stage, pods) == ["", ""]


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, "²", "0", "two"])
async def test_a_malformed_gang_size_does_not_affect_other_pods(stage: Stage, size: str) -> None:
    await stage.node("a")
    await stage.claim("of-x", spec={"gangRef": "x"}, annotations={GANG_SIZE: size})
    odd = await stage.pod("p", "of-x")
    refused = await stage.filter(odd)
    assert refused["NodeNames"] == []
    await stage.until(lambda: "no claim has the annotation" in stage.scheduler.planner.reason(odd))
    await stage.claim("one")
    assert await stage.schedule(await stage.pod("q", "one")) == "a"


async def test_a_pod_group_without_a_timeout_gets_the_default(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.group("g", 2, seconds=0)
    await gang_claim(stage, "g")
    pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
    await stage.planned()
    assert next(iter(stage.scheduler.gangs.plans.values())).deadline > stage.client.timing.monotonic() + 30
    assert await bind_all(stage, pods) == ["", ""]


def on(*names: str) -> dict[str, Any]:
    """A pod that must run on one of these nodes, by node affinity."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


async def test_members_are_placed_by_their_own_affinity_and_selector(stage: Stage) -> None:
    """kube-scheduler would refuse any other node, and the gang would be pending forever."""
    for name in ("a", "b", "c"):
        await stage.node(name, gpus=1, labels={"disk": "fast"} if name == "c" else {})
    await stage.group("g", 3)
    await gang_claim(stage, "g")
    pods = [
        await stage.pod("p0", "of-g"),
        await stage.pod("p1", "of-g", **on("a", "b")),
        await stage.pod("p2", "of-g", **on("b")),
    ]
    await stage.planned()
    nodes = [(await stage.filter(pod))["NodeNames"] for pod in pods]
    assert nodes == [["c"], ["a"], ["b"]]


async def test_an_explanation_lists_changes_after_which_a_gang_would_fit(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.node("b", gpus=1)
    await stage.group("g", 2)
    await gang_claim(stage, "g", 2)
    for name in ("p0", "p1"):
        await stage.pod(name, "of-g")
    await stage.until(lambda: "1 of 2 members fit" in stage.note("g"))
    why = explain(stage.scheduler.ledger, "default", "of-g")
    assert why.remedies == (
        "start it with 1 instead of 2 pods",
        "ask for 1 instead of 2 GPUs per pod",
    )


async def test_a_gang_with_a_member_that_fits_nowhere_is_explained(stage: Stage) -> None:
    await stage.node("a")
    await stage.node("b")
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    await stage.pod("p0", "of-g")
    await stage.pod("p1", "of-g", nodeSelector={"disk": "fast"})
    reason = (
        "gang g: 0 of 2 members fit; next member: "
        "0/2 nodes fit: 2 have other labels than the pod's node selector or affinity"
    )
    await stage.until(lambda: stage.note("g") == reason)
    assert explain(stage.scheduler.ledger, "default", "of-g").sentence == reason
    await stage.client.write_json(
        "PATCH", "/api/v1/nodes/b", {"metadata": {"labels": {"disk": "fast"}}}, "application/merge-patch+json"
    )
    await stage.planned()


async def test_a_gang_is_planned_again_without_a_node_that_kube_scheduler_does_not_offer(
    stage: Stage,
) -> None:
    """For example because of a volume or an affinity between pods, which only kube-scheduler knows."""
    for name in ("a", "b", "c"):
        await stage.node(name, gpus=1)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    pods = [await stage.pod(f"p{at}", "of-g") for at in range(2)]
    await stage.planned()
    uid = pods[0].metadata.uid
    [first] = stage.scheduler.ledger.leases_of(uid)
    others = sorted({"a", "b", "c"} - {first})
    assert (await stage.filter(pods[0], *others))["NodeNames"] == []
    await stage.until(lambda: first not in stage.scheduler.ledger.leases_of(uid))
    await stage.planned()
    [second] = stage.scheduler.ledger.leases_of(uid)
    assert second in others
    assert (await stage.filter(pods[0], *others))["NodeNames"] == [second]
