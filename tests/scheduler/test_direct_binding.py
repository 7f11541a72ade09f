"""Pods of a long queue whose constraints are all checked here are bound before kube-scheduler asks for them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.scheduler.stage import Stage, open_stage
from tests.waiting import wait_until

from gpufleet.kubernetes.annotations import ALLOCATED, NUDGE
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler import direct_binding
from kubelite import KubeLite

_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _container(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "image": "i", **fields}]


@pytest.fixture
async def stage(server: KubeLite) -> AsyncIterator[Stage]:
    """Run a scheduler that leaves no pods to kube-scheduler."""
    async with open_stage(server, direct_binding=True) as stage:
        stage.scheduler.direct.most_left = 0
        yield stage


async def _bound(stage: Stage, *pods: Pod) -> list[str]:
    """Wait until the pods are bound and return their nodes."""

    async def nodes() -> list[str]:
        found = [(await stage.read(pod)).spec.node_name for pod in pods]
        return found if all(found) else []

    return await wait_until(nodes, 30)


async def test_a_pod_is_bound_although_kube_scheduler_does_not_ask(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert await _bound(stage, pod) == ["a"]
    assert (await stage.read(pod)).metadata.annotations[ALLOCATED] == "a:0"
    assert list(await stage.leases()) == ["gpu-a-0"]

    async def events() -> list[str]:
        page = await stage.client.read_json("/api/v1/namespaces/default/events")
        return [each["message"] for each in page["items"] if each.get("reason") == "Scheduled"]

    assert await wait_until(events, 30) == ["Successfully assigned default/p to a"]


async def test_kube_scheduler_gets_the_node_of_a_pod_that_was_bound_meanwhile(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.node("b", gpus=2)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    [node] = await _bound(stage, pod)
    await stage.until(lambda: stage.scheduler.ledger.pods[pod.metadata.uid].spec.node_name)
    found = await stage.filter(pod)
    assert (found["NodeNames"], found["Error"]) == ([node], "")
    assert await stage.bind(pod, node) == ""
    assert len(await stage.leases()) == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAffinity": {_REQUIRED: [_TERM]}}},
        {"affinity": {"podAntiAffinity": {_REQUIRED: [_TERM]}}},
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"volumes": [{"name": "v", "aKindOfTheFuture": {}}]},
        {"containers": _container(ports=[{"containerPort": 80, "hostPort": 80}])},
        {"containers": _container(ports=[{"containerPort": 80}]), "hostNetwork": True},
        {"resources": {"requests": {"cpu": "1"}}},
        {"schedulingGates": [{"name": "example.com/gate"}]},
        {"schedulerName": "default-scheduler"},
    ],
    ids=lambda spec: "-".join(spec),
)
async def test_a_pod_with_other_constraints_waits_for_kube_scheduler(
    stage: Stage, spec: dict[str, Any]
) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    other = await stage.pod("other", "one", **spec)
    plain = await stage.pod("plain", "one")
    assert await _bound(stage, plain) == ["a"]
    await stage.reconciled()
    assert (await stage.read(other)).spec.node_name == ""
    assert stage.scheduler.ledger.holds.get(other.metadata.uid) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": _container(ports=[{"containerPort": 80}])},
        {
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": _TERM}
                    ]
                }
            }
        },
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        },
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "m"}}]},
    ],
    ids=lambda spec: "-".join(spec),
)
async def test_preferences_and_local_volumes_do_not_need_kube_scheduler(
    stage: Stage, spec: dict[str, Any]
) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    assert await _bound(stage, await stage.pod("p", "one", **spec)) == ["a"]


async def test_a_namespace_that_anti_affinity_of_a_running_pod_may_concern_waits(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    for namespace in ("default", "elsewhere"):
        await stage.claim("one", namespace=namespace)
    web = await stage.pod("web", affinity={"podAntiAffinity": {_REQUIRED: [_TERM]}}, nodeName="a")
    await stage.until(lambda: stage.scheduler.ledger.pods[web.metadata.uid].spec.node_name)
    waiting = await stage.pod("p", "one")
    assert await _bound(stage, await stage.pod("p", "one", namespace="elsewhere")) == ["a"]
    assert (await stage.read(waiting)).spec.node_name == ""
    await stage.delete(web)
    await stage.until(lambda: web.metadata.uid not in stage.scheduler.ledger.pods)
    later = await stage.pod("later", "one")
    assert await _bound(stage, later) == ["a"]


async def test_the_first_pods_are_left_to_kube_scheduler(stage: Stage) -> None:
    stage.scheduler.direct.most_left = 2
    await stage.node("a", gpus=8)
    await stage.claim("one")
    pods = [await stage.pod(f"p{at}", "one") for at in range(4)]
    await _bound(stage, *pods[2:])
    assert [(await stage.read(pod)).spec.node_name for pod in pods[:2]] == ["", ""]
    for pod in pods[:2]:
        assert await stage.schedule(pod) == "a"
    assert len(await stage.leases()) == 4


async def test_a_pod_that_kube_scheduler_has_tried_is_nudged(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    first = await stage.pod("first", "one")
    await _bound(stage, first)
    second = await stage.pod("second", "one")
    assert await stage.schedule(second) == ""
    await stage.delete(first)

    async def nudged() -> bool:
        return NUDGE in (await stage.read(second)).metadata.annotations

    await wait_until(nudged, 30)
    assert (await stage.read(second)).spec.node_name == ""
    assert await stage.schedule(second) == "a"


async def test_cpu_of_pods_that_are_being_bound_is_counted(stage: Stage) -> None:
    for name in ("a", "b"):
        await stage.node(name, gpus=4, allocatable={"cpu": "2", "pods": "10"})
    await stage.claim("one")
    wants = _container(resources={"requests": {"cpu": "1"}})
    pods = [await stage.pod(f"p{at}", "one", containers=wants) for at in range(4)]
    assert sorted(await _bound(stage, *pods)) == ["a", "a", "b", "b"]


async def test_more_pods_than_are_bound_at_a_time_all_get_their_own_gpus(
    server: KubeLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_binding, "MOST", 4)
    async with open_stage(server, direct_binding=True) as stage:
        stage.scheduler.direct.most_left = 0
        await stage.node("big", gpus=40, allocatable={"pods": "1000"})
        await stage.claim("one")
        pods = [await stage.pod(f"p{at}", "one") for at in range(40)]
        await _bound(stage, *pods)
        given = [(await stage.read(pod)).metadata.annotations[ALLOCATED] for pod in pods]
    assert len(set(given)) == 40
