"""Test the order of the queue and whole gangs with a real kube-scheduler on a real API server."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.stage import device

from e2e.cluster import Cluster
from e2e.cluster.cluster import free_ports
from e2e.fakenodes import FakeNodes
from e2e.system.users import pod
from e2e.test_scheduler import Scheduler, Workspace, running_scheduler
from e2e.test_server import serving
from gpufleet.kubernetes.annotations import GANG_GATE

GATE = {"name": GANG_GATE}


@pytest.fixture(scope="module")
def server_port() -> int:
    """Return the port at which the scheduler asks a server; only one test runs it."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster, server_port: int) -> Iterator[Scheduler]:
    flags = (
        "--set",
        f"scheduler.server_url=http://127.0.0.1:{server_port}",
        "--set",
        "scheduler.server_refresh=1s",
    )
    with running_scheduler(cluster, "--set", "scheduler.gang_grace=3s", *flags, pod_groups=True) as scheduler:
        yield scheduler


class Gangs(Workspace):
    """Users with gangs and priorities."""

    @property
    def pool(self) -> dict[str, str]:
        """Return the node selector of this test's nodes."""
        return self._pool

    def group(self, name: str, least: int, seconds: int = 30) -> None:
        body = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": least, "scheduleTimeoutSeconds": seconds},
        }
        path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{self.namespace}/podgroups"
        self.cluster.api.create(path, body)

    def gang(self, name: str, size: int, count: int, **spec: Any) -> list[str]:
        """Create a PodGroup, a claim and all members; return their names."""
        self.group(name, size)
        self.claim(f"of-{name}", count, spec={"gangRef": name})
        members = [f"{name}-{at}" for at in range(size)]
        for member in members:
            self.pod(member, f"of-{name}", **{"schedulingGates": [GATE], **spec})
        return members

    def priority(self, value: int) -> str:
        name = f"p{value}-{self.namespace[-6:]}"
        body = {"metadata": {"name": name}, "value": value}
        self.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        return name

    def waits(self, claim: str, text: str) -> None:
        """Wait until the status of a claim contains this text."""
        self.cluster.wait_for(
            f"'{text}' in the status of {claim}", lambda: text in self.status(claim).get("message", "")
        )

    def is_tried(self, name: str) -> None:
        """Wait until kube-scheduler has tried a pod in vain."""
        self.cluster.wait_for(
            f"unschedulable pod {name}",
            lambda: any(
                each.get("reason") == "Unschedulable"
                for each in self.read(name)["status"].get("conditions", [])
            ),
        )

    def leaves(self, name: str) -> bool:
        """Return whether a pod is gone or terminating."""
        pods = {each["metadata"]["name"]: each["metadata"] for each in self.pods()}
        return name not in pods or "deletionTimestamp" in pods[name]


@pytest.fixture
def users(scheduler: Scheduler, cluster: Cluster, fake_nodes: FakeNodes, namespace: str) -> Iterator[Gangs]:
    users = Gangs(cluster, fake_nodes, namespace)
    yield users
    users.clean_up()
    cluster.wait_for("released leases", lambda: not users.leases())
    users.remove_reports()


def asking_for(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}


def test_younger_pods_do_not_take_the_gpus_that_an_older_gang_waits_for(users: Gangs) -> None:
    users.add_nodes("node-a", "node-b", gpus=2)
    users.claim("one")
    for at in range(4):
        users.pod(f"old{at}", "one")
    users.running(*(f"old{at}" for at in range(4)))
    members = users.gang("g", 2, 2)
    users.waits("of-g", "0 of 2 members fit")
    time.sleep(1.1)  # ages have a resolution of one second
    for at in range(4):
        users.pod(f"young{at}", "one")
        users.is_tried(f"young{at}")
    for at in range(4):
        users.delete(f"old{at}")
    assert len(users.running(*members)) == 2
    assert not any(users.allocated(f"young{at}") for at in range(4))


def test_a_gang_whose_cpu_does_not_fit_holds_no_gpus(users: Gangs) -> None:
    users.add_nodes("node-a", "node-b", gpus=4)
    cpu = users.cluster.api.get("/api/v1/nodes/node-b")["status"]["allocatable"]["cpu"]
    on_b = {"nodeName": "node-b"}
    users.cluster.api.create(
        f"/api/v1/namespaces/{users.namespace}/pods",
        {"metadata": {"name": "full"}, "spec": {**asking_for(str(int(cpu) - 1)), **on_b}},
    )
    users.running("full")
    users.gang("g", 2, 4, **asking_for("2"))
    users.waits("of-g", "1 of 2 members fit")
    assert "1 has too little free CPU" in users.status("of-g")["message"]
    assert users.leases() == {}
    users.claim("four", 4)
    users.pod("single", "four")
    users.running("single")


def test_a_gang_behind_a_gate_of_kueue_holds_no_gpus(users: Gangs) -> None:
    users.add_nodes("node-a", gpus=2)
    members = users.gang("g", 2, 1, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}, GATE])
    users.waits("of-g", "scheduling gate kueue.x-k8s.io/admission")
    assert users.leases() == {}
    users.claim("two", 2)
    users.pod("single", "two")
    users.running("single")
    users.delete("single")
    for name in members:
        users.cluster.kubectl(
            *("patch", "pod", name, "--type=json", "-p"),
            json.dumps([{"op": "remove", "path": "/spec/schedulingGates/0"}]),
            namespace=users.namespace,
        )
    users.running(*members)


def test_a_running_gang_is_preempted_as_a_whole_or_not_at_all(users: Gangs) -> None:
    users.add_nodes("node-a", "node-b", "node-c", gpus=1)
    high = users.priority(1000)
    users.claim("one")
    members = users.gang("g", 2, 1)
    users.running(*members)
    users.pod("lone", "one")
    users.running("lone")
    users.pod("high-0", "one", priorityClassName=high)
    users.running("high-0")
    assert [users.leaves(name) for name in (*members, "lone")] == [False, False, True], (
        "the least work is lost"
    )
    users.pod("high-1", "one", priorityClassName=high)
    users.running("high-1")
    assert all(users.leaves(name) for name in members)


def test_a_gang_that_loses_a_member_ends_as_a_whole(users: Gangs) -> None:
    users.add_nodes("node-a", gpus=2)
    members = users.gang("g", 2, 1)
    users.running(*members)
    users.delete(members[1])
    users.cluster.wait_for("the end of the other member", lambda: users.leaves(members[0]), timeout=30)


def test_a_short_pod_may_use_reserved_gpus_and_a_long_one_may_not(users: Gangs) -> None:
    users.add_nodes("node-a", gpus=2)
    users.claim("one")
    users.claim("two", 2)
    users.pod("first", "one", activeDeadlineSeconds=600)
    users.running("first")
    users.pod("large", "two")
    users.waits("two", "reserved")
    time.sleep(1.1)
    users.pod("long", "one")
    users.is_tried("long")
    users.pod("short", "one", activeDeadlineSeconds=60)
    users.running("short")
    assert users.allocated("long") == ""


def test_two_runs_of_one_template_are_two_gangs(users: Gangs) -> None:
    """Such as two Jobs of a CronJob: their pods name the same gang."""
    users.add_nodes("node-a", gpus=2)
    body = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "of-run", "annotations": {"gpu.scheduling/gang-size": "2"}},
        "spec": {"devices": {"count": 1}, "gangRef": "run"},
    }
    users.apply(body)
    users.job("first", "of-run", pods=2)
    users.cluster.wait_for(
        "the first run", lambda: sum(each["status"].get("phase") == "Running" for each in users.pods()) == 2
    )
    users.job("second", "of-run", pods=2)
    users.waits("of-run", "0 of 2 members fit")
    assert sum(bool(each["spec"].get("nodeName")) for each in users.pods()) == 2


def test_a_gang_of_64_nodes_starts_in_bounded_time_against_a_stream_of_small_pods(users: Gangs) -> None:
    """Pods of 10 s arrive faster than they end, so without a reservation no node would ever be empty."""
    users.add_nodes(*(f"s{at:02d}" for at in range(64)), gpus=2)
    users.claim("one")
    number = 0

    def stream(pods: int) -> None:
        nonlocal number
        for _ in range(pods):
            body = pod(f"stream-{number:04d}", "one", nodeSelector=users.pool)
            body["metadata"]["annotations"]["e2e.gpufleet/runs-for"] = "10"
            users.cluster.api.create(f"/api/v1/namespaces/{users.namespace}/pods", body)
            number += 1

    stream(140)
    users.cluster.wait_for("a full cluster", lambda: len(users.leases()) >= 120, timeout=60)
    members = users.gang("g", 64, 2)
    started = time.monotonic()
    while any(not users.allocated(name) for name in (members[0], members[-1])):
        assert time.monotonic() - started < 60, "what ran when it arrived has ended after 10 s"
        stream(10)
        time.sleep(0.5)
    users.running(*members)
    print(f"the gang of 64 ran {time.monotonic() - started:.1f} s after it was created, {number} small pods")


def test_an_older_gang_that_never_preempts_gets_the_gpus_that_become_free(users: Gangs) -> None:
    """Its priority is higher, but it may not evict the pods that run."""
    users.add_nodes("node-a", gpus=2)
    name = f"polite-{users.namespace[-6:]}"
    body = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"}
    users.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    users.claim("one")
    for at in range(2):
        users.pod(f"old{at}", "one")
    users.running("old0", "old1")
    members = users.gang("g", 2, 1, priorityClassName=name)
    users.waits("of-g", "0 of 2 members fit")
    for at in range(6):
        users.pod(f"young{at}", "one")
        users.is_tried(f"young{at}")
    users.delete("old0")
    users.delete("old1")
    assert len(users.running(*members)) == 2
    assert not any(users.allocated(f"young{at}") for at in range(6))


def test_a_gang_that_cannot_be_bound_does_not_keep_its_gpus(users: Gangs) -> None:
    """A volume of one member is missing, so kube-scheduler never binds it, and no member may run alone."""
    users.add_nodes("node-a", gpus=2)
    users.group("g", 2, seconds=2)
    users.claim("of-g", 1, spec={"gangRef": "g"})
    missing = [{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]
    users.pod("g-0", "of-g", schedulingGates=[GATE])
    users.pod("g-1", "of-g", schedulingGates=[GATE], volumes=missing)
    users.cluster.wait_for("planned members", lambda: len(users.leases()) == 2)
    users.cluster.wait_for("released GPUs", lambda: not users.leases(), timeout=30)
    assert not any(users.allocated(name) for name in ("g-0", "g-1"))
    users.claim("two", 2)
    users.pod("single", "two")
    users.running("single")


def test_a_pod_that_a_disruption_budget_protects_is_not_preempted(users: Gangs) -> None:
    users.add_nodes("node-a", gpus=1)
    users.claim("one")
    budgets = f"/apis/policy/v1/namespaces/{users.namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    users.cluster.api.create(budgets, {"metadata": {"name": "keep"}, "spec": spec})
    users.pod("low", "one", labels={"app": "kept"})
    users.running("low")
    users.cluster.wait_for(
        "the status of the budget",
        lambda: users.cluster.api.get(f"{budgets}/keep")["status"].get("expectedPods") == 1,
    )
    users.pod("high", "one", priorityClassName=users.priority(1000))
    users.is_tried("high")
    assert not users.leaves("low")
    users.cluster.api.delete(f"{budgets}/keep")
    users.running("high")
    assert users.leaves("low")


def test_a_pod_that_no_node_admits_is_told_why(users: Gangs) -> None:
    """kube-scheduler excludes all nodes itself and does not ask."""
    users.add_nodes("node-a", "node-b", "node-c", gpus=1)
    users.cluster.kubectl("cordon", "node-b")
    users.cluster.kubectl("cordon", "node-c")
    users.claim("one")
    users.pod("p", "one", nodeSelector={**users.pool, "disk": "fast"})
    users.waits("one", "0/3 nodes fit: 3 have other labels than the pod's node selector or affinity")
    users.pod("q", "one", nodeSelector=users.pool)
    users.running("q")


def test_a_gpu_of_a_pod_deleted_by_force_is_draining_until_its_agent_sees_it_idle(
    users: Gangs, scheduler: Scheduler
) -> None:
    """Also if the scheduler restarts meanwhile."""
    users.add_nodes("node-a", gpus=1)
    users.claim("one")
    uid = users.pod("first", "one")
    users.running("first")
    path = "/apis/gpu.scheduling/v1/gpunodestatuses/node-a/status"
    users.cluster.api.patch(path, {"status": {"devices": [device(0, inUseBy=[uid])]}})
    scheduler.kill()
    users.cluster.kubectl("delete", "pod", "first", "--force", "--grace-period=0", namespace=users.namespace)
    scheduler.start()
    users.cluster.wait_for("released leases", lambda: not users.leases())
    users.pod("second", "one")
    users.waits("one", "draining: node-a:0")
    users.cluster.api.patch(path, {"status": {"devices": [device(0)]}})
    users.running("second")


def test_a_waiting_claim_says_when_it_is_expected_to_start(
    users: Gangs, server_port: int, data: Path
) -> None:
    users.add_nodes("node-a", gpus=1)
    users.claim("one")
    users.pod("runs", "one")
    users.running("runs")
    users.claim("next")
    users.pod("later", "next")
    users.waits("next", "Pending")
    assert "expectedStart" not in users.status("next")

    def expected() -> datetime | None:
        text = users.status("next").get("expectedStart")
        return datetime.fromisoformat(text) if text else None

    with serving(users.cluster.kubeconfig, data, "--port", str(server_port)):
        first: datetime = users.cluster.wait_for("an expected start", expected)
        assert first.timestamp() % 300 == 0, "rounded to five minutes"
        assert first <= datetime.now(UTC) + timedelta(minutes=10)
        seen = set()
        for _ in range(6):  # the scheduler asks every second
            seen.add(expected())
            time.sleep(1)
        assert len(seen) <= 2, "written again only if it has passed"
        users.delete("runs")
        users.running("later")
        users.cluster.wait_for("a bound claim", lambda: users.status("next").get("phase") == "Bound")
        assert expected() is None
