"""Test Jobs and pods with claims in the queues of a real Kueue manager."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster, Unavailable
from e2e.kueue import Kueue, manager, programs
from e2e.system import Observations, System, Users
from e2e.system.users import pod

RESOURCE = "gpu.scheduling/gpu"
GPU_QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
NODE = "node-b"
ON_NODE: dict[str, Any] = {"selector": {"matchLabels": {"kubernetes.io/hostname": NODE}}}
GPUS = 4
"""GPUs of the node, and the quota."""
Json = dict[str, Any]


@pytest.fixture(scope="module")
def kueue(system: System) -> Iterator[Kueue]:
    """Run Kueue. Skip the tests where it can't be built."""
    try:
        found = programs.find(print)
    except Unavailable as reason:
        pytest.skip(f"no Kueue: {reason}")
    with Kueue(system.cluster, found) as kueue:
        yield kueue


@pytest.fixture
def team(system: System, kueue: Kueue, users: Users) -> Iterator["Team"]:
    """Return the users of a namespace with a queue, and quota for all GPUs of one node."""
    name = users.namespace[-6:]
    kueue.quota(name, {RESOURCE: GPUS}, preemption={"withinClusterQueue": "LowerPriority"})
    kueue.priority(f"high-{name}", 1000)
    kueue.queue(users.namespace, name)
    yield Team(system, kueue, users, name)
    users.clean_up()
    kueue.delete("workloadpriorityclasses", f"high-{name}")


class Team:
    """The users of one queue."""

    def __init__(self, system: System, kueue: Kueue, users: Users, queue: str) -> None:
        self.system, self.kueue, self.users, self.queue = system, kueue, users, queue
        self.namespace = users.namespace

    def job(self, name: str, gpus: int, priority: str = "", runs_for: float | None = None) -> str:
        """Create a claim and a Job in the queue, as docs/kueue.md shows it; return the Job's UID."""
        self.users.claim(name, gpus, spec=ON_NODE)
        template = self._pod(name, name, gpus)
        del template["metadata"]["name"]
        if runs_for is not None:
            template["metadata"]["annotations"]["e2e.gpufleet/runs-for"] = str(runs_for)
        labels = {manager.QUEUE_NAME: self.queue}
        if priority:
            labels[manager.PRIORITY] = f"{priority}-{self.queue}"
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"template": {key: template[key] for key in ("metadata", "spec")}},
        }
        made = self.system.cluster.api.create(f"/apis/batch/v1/namespaces/{self.namespace}/jobs", body)
        return str(made["metadata"]["uid"])

    def pod(self, name: str, gpus: int) -> str:
        """Create a claim and a pod in the queue; return the pod's UID."""
        self.users.claim(name, gpus, spec=ON_NODE)
        body = self._pod(name, name, gpus)
        body["metadata"]["labels"] = {manager.QUEUE_NAME: self.queue}
        made = self.system.cluster.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        return str(made["metadata"]["uid"])

    def _pod(self, name: str, claim: str, gpus: int) -> Json:
        resources = {"limits": {RESOURCE: str(gpus)}}
        return pod(name, claim, containers=[{"name": "main", "image": "trainer", "resources": resources}])

    def pods_of(self, job: str) -> list[Json]:
        """Return the pods of a Job."""
        return [
            each for each in self.users.pods() if each["metadata"].get("labels", {}).get("job-name") == job
        ]

    def wait_running(self, job: str) -> None:
        def runs() -> bool:
            return [each["status"].get("phase") for each in self.pods_of(job)] == ["Running"]

        self.system.cluster.wait_for(f"the running pod of {job}", runs, timeout=90)

    def wait_bound(self, claim: str) -> None:
        self.system.cluster.wait_for(
            f"bound claim {claim}", lambda: self.users.status(claim).get("phase") == "Bound"
        )

    def wait_reason(self, uid: str, start: str, words: str = "") -> Json:
        """Wait until a reason that starts like this and has these words is shown; return the workload's row."""

        def found() -> Json | None:
            rows = self.system.get(f"/api/workloads?namespace={self.namespace}&pageSize=100")["data"]
            matching = (row for row in rows if row["uid"] == uid)
            reasons = ((row, row["waitingReason"]) for row in matching)
            return next((row for row, why in reasons if why.startswith(start) and words in why), None)

        row: Json = self.system.cluster.wait_for(f"a reason {start!r} {words!r}", found)
        return row

    @property
    def queued(self) -> str:
        """How a reason starts of a workload that Kueue does not admit."""
        return f"queued in Kueue's LocalQueue {self.queue}: "


def test_jobs_wait_suspended_until_the_quota_admits_them(team: Team, observations: Observations) -> None:
    system = team.system
    uids = {name: team.job(name, 2) for name in ("first", "second")}
    for name in uids:
        team.wait_running(name)
    third = team.job("third", 2, runs_for=1)
    row = team.wait_reason(third, team.queued, "insufficient unused quota")
    assert (row["status"], row["gpuRequested"], row["gpuAllocated"]) == ("Pending", 2, 0)
    assert row["queue"]["queue"] == team.queue
    assert row["queue"]["state"] == "Queued"
    observations.add("third Job, quota used up", row["waitingReason"])
    assert team.pods_of("third") == []
    assert len(system.leases()) == GPUS
    why = system.get(f"/api/claims/{team.namespace}/third/explain")
    assert why["waiting"]
    assert why["sentence"] == row["waitingReason"]
    tree = system.get(f"/api/workloads/{uids['first']}/hierarchy")
    children = {each["kind"]: each for each in tree["children"]}
    assert set(children) == {"Pod", "Workload"}
    queue = children["Workload"]["queue"]
    assert (queue["queue"], queue["clusterQueue"], queue["state"]) == (team.queue, team.queue, "Admitted")

    system.cluster.api.delete(
        f"/apis/batch/v1/namespaces/{team.namespace}/jobs/first", {"propagationPolicy": "Foreground"}
    )
    system.cluster.wait_for("the end of the third Job", lambda: _complete(system.cluster, team, "third"))
    allocated = team.pods_of("third")[0]["metadata"]["annotations"]["gpu.scheduling/allocated"]
    assert allocated.startswith(f"{NODE}:")
    observations.add("after the end of the first", f"the third ran on {allocated}")


def test_a_job_that_kueue_preempts_gives_its_gpus_back(team: Team, observations: Observations) -> None:
    system, users = team.system, team.users
    low = team.job("low", GPUS)
    team.wait_running("low")
    held = set(system.leases().values())
    team.job("high", GPUS, priority="high")
    team.wait_running("high")
    leases = system.leases()
    assert len(leases) == GPUS
    assert not held & set(leases.values())
    row = team.wait_reason(low, team.queued)
    observations.add("the preempted Job", row["waitingReason"])
    assert (row["gpuAllocated"], row["queue"]["state"]) == (0, "Queued")
    assert team.pods_of("low") == []
    system.cluster.wait_for("a claim without GPUs", lambda: not users.status("low").get("allocations"))
    assert users.status("low")["phase"] != "Bound"
    team.wait_bound("high")

    system.cluster.api.delete(
        f"/apis/batch/v1/namespaces/{team.namespace}/jobs/high", {"propagationPolicy": "Foreground"}
    )
    team.wait_running("low")
    team.wait_bound("low")
    observations.add("after the end of the other", "the preempted Job runs again")


def test_a_pod_behind_kueues_gate_is_not_planned_and_holds_nothing(
    team: Team, observations: Observations
) -> None:
    system, users = team.system, team.users
    team.job("first", 3)
    team.wait_running("first")
    uid = team.pod("gated", 2)
    gates = [each["name"] for each in users.read("gated")["spec"]["schedulingGates"]]
    assert "kueue.x-k8s.io/admission" in gates
    row = team.wait_reason(uid, team.queued)
    observations.add("a pod behind the gate", row["waitingReason"])
    assert len(system.leases()) == 3
    users.claim("one", 1, spec=ON_NODE)
    users.pod("outside", "one")
    users.running("outside")
    users.delete("outside")
    system.cluster.api.delete(
        f"/apis/batch/v1/namespaces/{team.namespace}/jobs/first", {"propagationPolicy": "Foreground"}
    )
    allocated = users.running("gated")
    assert allocated[0].startswith(f"{NODE}:")


def test_a_gpu_queue_stands_aside_where_kueue_has_a_local_queue(
    team: Team, observations: Observations
) -> None:
    """Kueue admits three GPUs; the GpuQueue's limit of one does not count, and both say so."""
    cluster, name = team.system.cluster, f"aside-{team.queue}"
    spec = {"namespaces": [team.namespace], "limit": {"gpus": 1}}
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": name}, "spec": spec}
    cluster.api.create(GPU_QUEUES, body)
    try:

        def stands_aside() -> Json | None:
            conditions = cluster.api.get(f"{GPU_QUEUES}/{name}").get("status", {}).get("conditions", ())
            found = (each for each in conditions if each["type"] == "QuotaApplies")
            return next((each for each in found if each["status"] == "False"), None)

        condition = cluster.wait_for("a condition of the GpuQueue", stands_aside)
        assert (condition["reason"], team.namespace in condition["message"]) == ("Kueue", True)
        observations.add("condition of the GpuQueue", condition["message"])
        team.job("beyond", 3)
        team.wait_running("beyond")
        team.wait_bound("beyond")
        assert len(team.system.leases()) == 3
    finally:
        cluster.api.delete(f"{GPU_QUEUES}/{name}")


def _complete(cluster: Cluster, team: Team, job: str) -> bool:
    found = cluster.api.get(f"/apis/batch/v1/namespaces/{team.namespace}/jobs/{job}")
    return any(
        each["type"] == "Complete" and each["status"] == "True"
        for each in found["status"].get("conditions", ())
    )
