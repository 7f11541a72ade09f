"""The controller on an embedded API, killed before and after every write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog
from tests.repair.conftest import NAMESPACE, Cluster, fault
from tests.waiting import wait_until

from gpufleet.kubernetes import NODES, KubeClient
from gpufleet.kubernetes.client.patch import merge
from gpufleet.kubernetes.client.transport import Request, Transport
from gpufleet.repair.cluster_state import ClusterState
from gpufleet.repair.controller import Controller
from gpufleet.repair.jobs import load_templates
from gpufleet.repair.process import RepairReplica
from gpufleet.repair.views import Policy, RepairRules
from gpufleet.runtime.settings import AlertSettings, RepairSettings

RULES = RepairRules(policy=Policy.REPAIR, settle=0.0, release_lead=0.0)


class KilledError(BaseException):
    """The process was killed."""


class MortalTransport:
    """Let so many writes through; the next one kills the process, before or after it was done."""

    def __init__(self, inner: Transport, writes: int, after: bool) -> None:
        self._inner = inner
        self._writes = writes
        self._after = after

    async def send(self, request: Request) -> Any:
        if request.method == "GET":
            return await self._inner.send(request)
        if self._writes == 0 and not self._after:
            raise KilledError
        answer = await self._inner.send(request)
        if self._writes == 0:
            raise KilledError
        self._writes -= 1
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@asynccontextmanager
async def controller(cluster: Cluster, rules: RepairRules = RULES) -> AsyncIterator[Controller]:
    """A new process that has listed the cluster."""
    client = cluster.client.clone(requests_per_second=1000, burst=1000)
    state = ClusterState(client, NAMESPACE)
    templates = load_templates(cluster.templates)
    made = Controller(client, state, replace(rules, hooks=frozenset(templates)), NAMESPACE, templates)
    tasks = [asyncio.create_task(each.run()) for each in (*state.required(), *state.optional())]
    try:
        for reflector in state.required():
            await reflector.synced()
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def one_round(
    cluster: Cluster, rules: RepairRules = RULES, kill_at: tuple[int, bool] | None = None
) -> None:
    async with controller(cluster, rules) as made:
        if kill_at is not None:
            client: KubeClient = made._client
            client._transport = MortalTransport(client._transport, *kill_at)  # type: ignore[assignment]
        try:
            await made.reconcile()
        except KilledError:
            return


async def phase(cluster: Cluster, node: str = "a") -> str:
    found = await cluster.repair(node)
    return found.status.phase if found else "none"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_write_it_loses_no_state_and_repeats_no_action(
    cluster: Cluster, after: bool
) -> None:
    for name in ("a", "b"):
        await cluster.add_node(name)
    first = await cluster.add_pod("train-0", "a", 0, gang="train")
    second = await cluster.add_pod("train-1", "b", 0, gang="train")
    await cluster.add_pod("other", "a", 1)
    await cluster.report("a", fault(0))
    evicted: list[str] = []
    for step in range(80):
        # Every process gets one write further than the last one, then none: each write is once the last.
        await one_round(cluster, kill_at=(step % 3, after))
        evicted += await cluster.remove_evicted()
        await cluster.finish_jobs()
        if step > 3 and await phase(cluster) == "Healthy":
            break
    await one_round(cluster)
    assert await phase(cluster) == "Healthy"
    assert sorted(evicted) == sorted([first, second])
    assert "other" in await cluster.pods()
    hooks = sorted(job.metadata.name.split("-")[1] for job in await cluster.jobs())
    assert hooks == ["prove", "prove", "reset"]
    assert (await cluster.node("a")).spec.taints == ()


async def test_a_job_is_created_once_for_its_node_and_gpus(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.report("a", fault(2))
    for _ in range(5):
        await one_round(cluster)
    (job,) = await cluster.jobs()
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job.metadata.name}"
    pod = (await cluster.client.read_json(path))["spec"]["template"]["spec"]
    assert pod["nodeName"] == "a"
    assert {"name": "GPUFLEET_GPUS", "value": "GPU-a-2"} in pod["containers"][0]["env"]
    assert pod["tolerations"] == [{"operator": "Exists"}]


async def test_a_test_that_fails_the_second_time_keeps_the_node_out(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.report("a", fault(0))
    proofs = 0
    for _ in range(60):
        await one_round(cluster)
        for job in await cluster.jobs():
            if job.status.conditions or "prove" not in job.metadata.name:
                continue
            proofs += 1
            await cluster.finish_jobs(succeed=proofs % 2 == 1)
        await cluster.finish_jobs()
        if await phase(cluster) == "Manual":
            break
    found = await cluster.repair("a")
    assert found is not None
    assert (found.status.phase, found.status.message) == ("Manual", "3 repairs did not help")
    assert [taint.value for taint in (await cluster.node("a")).spec.taints] == ["repair"]


async def test_taints_and_cordons_of_humans_stay(cluster: Cluster) -> None:
    await cluster.add_node("a")
    theirs = {"key": "maintenance", "value": "x", "effect": "NoSchedule"}
    spec = {"spec": {"unschedulable": True, "taints": [theirs]}}
    await cluster.client.patch(NODES, "a", merge(spec))
    rules = replace(RULES, policy=Policy.CORDON, proofs=0)
    await cluster.report("a", fault(0))
    await one_round(cluster, rules)
    assert {taint.key for taint in (await cluster.node("a")).spec.taints} == {
        "maintenance",
        "gpu.scheduling/unhealthy",
    }
    await cluster.report("a")
    for _ in range(3):
        await one_round(cluster, rules)
    node = await cluster.node("a")
    assert ([taint.key for taint in node.spec.taints], node.spec.unschedulable) == (["maintenance"], True)


async def test_a_taint_of_a_human_with_the_same_key_stays(cluster: Cluster) -> None:
    await cluster.add_node("a")
    theirs = {"key": "gpu.scheduling/unhealthy", "value": "broken-fan", "effect": "NoSchedule"}
    await cluster.client.patch(NODES, "a", merge({"spec": {"taints": [theirs]}}))
    rules = replace(RULES, policy=Policy.CORDON, proofs=0)
    for faults in ([fault(0)], [], []):
        await cluster.report("a", *faults)
        await one_round(cluster, rules)
    assert [taint.value for taint in (await cluster.node("a")).spec.taints] == ["broken-fan"]


async def test_a_pod_disruption_budget_holds_a_gang_together(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.add_node(name)
    await cluster.add_pod("train-0", "a", 0, gang="train")
    await cluster.add_pod("train-1", "b", 0, gang="train")
    selector = {"matchLabels": {"scheduling.x-k8s.io/pod-group": "train"}}
    budget = {"metadata": {"name": "train"}, "spec": {"maxUnavailable": 1, "selector": selector}}
    path = "/apis/policy/v1/namespaces/jobs/poddisruptionbudgets"
    await cluster.client.write_json("POST", path, budget)
    status = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    await cluster.client.write_json(
        "PATCH", f"{path}/train/status", {"status": status}, "application/merge-patch+json"
    )
    await cluster.report("a", fault(0))
    for _ in range(4):
        async with controller(cluster) as made:
            await made._state.pod_budgets.synced()
            await made.reconcile()
    assert await cluster.remove_evicted() == []
    found = await cluster.repair("a")
    assert found is not None
    assert "PodDisruptionBudget" in found.status.message


async def test_nodes_get_conditions_and_events_with_every_policy(cluster: Cluster) -> None:
    await cluster.add_node("a")
    settings = RepairSettings(settle=0.0, templates=cluster.templates)
    client = cluster.client.clone(requests_per_second=1000, burst=1000)
    replica = RepairReplica(client, settings, AlertSettings(), NAMESPACE, "one")
    running = asyncio.create_task(replica.run())

    async def condition(type: str) -> tuple[str, str]:
        conditions = (await cluster.node("a")).status.conditions
        found = next((each for each in conditions if each.type == type), None)
        return (found.status, found.reason) if found else ("", "")

    async def has(type: str, status: str, reason: str) -> bool:
        return await condition(type) == (status, reason)

    await wait_until(lambda: has("GpuHealthy", "True", "NoFault"))
    slow = {**fault(None, "rails", "none"), "severity": "Degraded"}
    await cluster.report("a", fault(1, "xid-79"), slow)
    await wait_until(lambda: has("GpuHealthy", "False", "Xid79"))
    await wait_until(lambda: has("GpuDegraded", "True", "Rails"))
    assert await has("Ready", "True", "")
    assert (await cluster.node("a")).spec.taints == ()

    async def reasons() -> set[str]:
        page = await cluster.client.read_json("/apis/events.k8s.io/v1/events")
        return {each["reason"] for each in page["items"]}

    async def event(reason: str) -> bool:
        return reason in await reasons()

    await wait_until(lambda: event("GpuRepairObserved"))
    await cluster.report("a")
    await wait_until(lambda: has("GpuHealthy", "True", "NoFault"))
    await wait_until(lambda: event("GpuRepairHealthy"))
    assert b'gpufleet_repair_nodes{phase="Healthy"} 1.0' in replica.metrics()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await client.close()


async def test_every_step_is_in_the_audit_log(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_pod("train", "a", 0)
    await cluster.report("a", fault(0))
    with structlog.testing.capture_logs() as lines:
        for _ in range(40):
            await one_round(cluster)
            await cluster.remove_evicted()
            await cluster.finish_jobs()
            if await phase(cluster) == "Healthy":
                break
        await one_round(cluster)
    found = [(line["action"], line["target"]) for line in lines if line["event"] == "audit"]
    assert {line["who"] for line in lines if line["event"] == "audit"} == {"gpufleet-repair"}
    changes = [action for action, _ in found if not action.startswith("repair ")]
    assert [each for each in changes if each != "release driver"] == [
        "taint",
        "evict",
        "create Job reset",
        "create Job prove",
        "create Job prove",
        "remove taint",
    ]
    phases = [action.removeprefix("repair ") for action, _ in found if action.startswith("repair ")]
    assert phases == ["Cordoned", "Draining", "Drained", "Repairing", "Proving", "Proving", "Healthy"]
    assert ("evict", "pods/jobs/train") in found


async def test_a_pod_is_not_evicted_again_before_the_watch_shows_its_end(cluster: Cluster) -> None:
    await cluster.add_node("a")
    uid = await cluster.add_pod("train", "a", 0)
    async with controller(cluster) as made:
        sent: list[str] = []
        inner = made._client._transport

        class Counting:
            async def send(self, request: Request) -> Any:
                sent.append(request.path)
                return await inner.send(request)

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        made._client._transport = Counting()  # type: ignore[assignment]
        view = made._state.pod_index().views[uid]
        await made.evict_straggler(view, "test")
        await made.evict_straggler(view, "test")
    assert len([path for path in sent if path.endswith("/eviction")]) == 1


async def test_a_new_fault_is_tainted_before_all_pods_are_indexed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.add_node("a")
    await cluster.report("a", fault(0))

    def killed(state: ClusterState) -> None:
        raise KilledError  # many pods take longer than a fault may

    monkeypatch.setattr(ClusterState, "pod_index", killed)
    await one_round(cluster)
    assert [taint.key for taint in (await cluster.node("a")).spec.taints] == ["gpu.scheduling/unhealthy"]
