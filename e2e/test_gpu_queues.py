"""Test GpuQueues with a real kube-scheduler on a real API server: lending, reclaiming, limits and budgets."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.scheduler.stage import POD_GROUPS_CRD

from e2e.cluster import Cluster, CommandFailed
from e2e.fakenodes import FakeNodes
from e2e.test_queue_order import Gangs
from e2e.test_scheduler import CRDS, Scheduler, configuration

QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
KINDS = (
    "gpuclaims.gpu.scheduling",
    "gpunodestatuses.gpu.scheduling",
    "gpuqueues.gpu.scheduling",
    "podgroups.scheduling.x-k8s.io",
)


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster) -> Iterator[Scheduler]:
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(POD_GROUPS_CRD))
    for crd in KINDS:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=30s")
    scheduler = Scheduler(cluster, "--set", "scheduler.reclaim_grace=5s")
    scheduler.start()
    try:
        with cluster.scheduling(configuration(scheduler)):
            yield scheduler
    finally:
        scheduler.stop()
        cluster.kubectl("delete", "-f", str(CRDS))
        cluster.kubectl("delete", "crd", "podgroups.scheduling.x-k8s.io")


class Team(Gangs):
    """Users of one namespace, on the nodes of another."""

    def __init__(self, other: Gangs, namespace: str) -> None:
        super().__init__(other.cluster, other.nodes, namespace)
        self._other = other

    @property
    def _pool(self) -> dict[str, str]:
        return self._other.pool


@pytest.fixture
def owner(scheduler: Scheduler, cluster: Cluster, fake_nodes: FakeNodes, namespace: str) -> Iterator[Gangs]:
    users = Gangs(cluster, fake_nodes, namespace)
    yield users
    users.clean_up()
    for queue in cluster.api.get(QUEUES)["items"]:
        cluster.api.delete(f"{QUEUES}/{queue['metadata']['name']}")
    cluster.wait_for("released leases", lambda: not users.leases())
    users.remove_reports()


@pytest.fixture
def guest(owner: Gangs, cluster: Cluster) -> Iterator[Gangs]:
    name = f"guest-{owner.namespace[-6:]}"
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    team = Team(owner, name)
    yield team
    team.clean_up()
    cluster.api.delete(f"/api/v1/namespaces/{name}")


def create_queue(cluster: Cluster, name: str, **spec: Any) -> None:
    body = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuQueue",
        "metadata": {"name": name},
        "spec": spec,
    }
    cluster.api.create(QUEUES, body)
    # The scheduler has seen the queue when it has written its status.
    cluster.wait_for(f"the status of queue {name}", lambda: "conditions" in status(cluster, name), timeout=60)


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.api.get(f"{QUEUES}/{name}").get("status", {})
    return found


def test_a_guarantee_is_lent_and_reclaimed_with_whole_gangs(owner: Gangs, guest: Gangs) -> None:
    owner.add_nodes("node-a", "node-b", gpus=2)
    cluster = owner.cluster
    create_queue(cluster, "owner", namespaces=[owner.namespace], guaranteed={"gpus": 2})
    create_queue(cluster, "guest", namespaces=[guest.namespace], guaranteed={"gpus": 1})
    guest.claim("one")
    guest.pod("inside", "one")
    guest.running("inside")
    borrowers = guest.gang("borrowed", 3, 1)
    guest.running(*borrowers)
    cluster.wait_for("borrowed GPUs", lambda: status(cluster, "guest").get("borrowed") == 3, timeout=30)
    members = owner.gang("mine", 2, 1)
    assert len(owner.running(*members)) == 2
    assert all(guest.leaves(name) for name in borrowers), "a gang leaves as a whole"
    assert not guest.leaves("inside"), "work inside its own guarantee stays"

    def explained() -> bool:
        events = cluster.kubectl("get", "events", "-o", "json", namespace=guest.namespace)
        notes = [each.get("message", "") for each in json.loads(events)["items"]]
        return any("guaranteed to queue owner" in note for note in notes)

    cluster.wait_for("an event that names the queue", explained, timeout=30)
    owner.check_no_gpu_is_allocated_twice()


def test_a_hard_budget_ends_a_gang_and_lets_new_units_wait(owner: Gangs) -> None:
    owner.add_nodes("node-a", gpus=4)
    cluster = owner.cluster
    # 80 GPU-seconds, of which the gang needs 11 s for its end.
    budget = {"gpuHours": 80 / 3600, "period": "Month", "hard": True}
    create_queue(cluster, "team", namespaces=[owner.namespace], budget=budget)
    members = owner.gang("g", 2, 1, terminationGracePeriodSeconds=1)
    owner.running(*members)
    cluster.wait_for("the end of the gang", lambda: all(map(owner.leaves, members)), timeout=120)
    owner.claim("one")
    owner.pod("later", "one")
    owner.waits("one", "queue team has used up its budget of")
    found = {each["type"]: each for each in status(cluster, "team")["conditions"]}
    assert found["WithinBudget"]["status"] == "False"
    assert status(cluster, "team")["budget"]["percent"] <= 100 + 100 * 2 * 60 / 80
    reasons = {
        each["reason"]
        for each in json.loads(cluster.kubectl("get", "events", "-A", "-o", "json"))["items"]
        if each["involvedObject"].get("kind") == "GpuQueue"
    }
    assert "BudgetUsedUp" in reasons


def test_a_queue_never_exceeds_its_limit(owner: Gangs) -> None:
    owner.add_nodes("node-a", gpus=4)
    create_queue(owner.cluster, "small", namespaces=[owner.namespace], limit={"gpus": 2})
    owner.claim("one")
    owner.gang("g", 2, 1)
    owner.running("g-0", "g-1")
    owner.pod("third", "one")
    owner.waits("one", "queue small has reached its limit of 2 GPUs")
    owner.delete("g-0")
    owner.delete("g-1")
    owner.running("third")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"guaranteed": {"gpus": 4}, "limit": {"gpus": 2}}, "the guarantee must not exceed the limit"),
        (
            {"guaranteed": {"gpus": 1, "models": [{"model": "H100", "gpus": 2}]}},
            "the GPUs of models are part of gpus",
        ),
        ({"budget": {"gpuHours": 1, "cost": 1}}, "either in gpuHours or in cost"),
        ({"budget": {"gpuHours": 0}}, "a budget must be more than 0"),
        ({"namespaces": ["a"], "namespaceSelector": {}}, "either namespaces or a namespaceSelector"),
        ({"weight": 0}, "spec.weight"),
    ],
)
def test_the_api_server_rejects_queues_that_contradict_themselves(
    scheduler: Scheduler, cluster: Cluster, spec: dict[str, Any], message: str
) -> None:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": "bad"}, "spec": spec}
    with pytest.raises(CommandFailed, match=message):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
