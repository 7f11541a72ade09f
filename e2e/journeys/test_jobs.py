"""Test Jobs that complete, gangs and priorities."""

from typing import Any

from e2e.system import Observations, System, Users

NODE_B = {"selector": {"matchLabels": {"kubernetes.io/hostname": "node-b"}}}
"""A node with only four GPUs, so that few pods fill it."""


def test_a_completed_job_frees_its_gpus(system: System, users: Users, observations: Observations) -> None:
    users.claim("all", 4, spec=NODE_B)
    users.job("first", "all", runs_for=3)
    users.job("second", "all", runs_for=1)
    for name in ("first", "second"):
        command = ("wait", "--for=condition=Complete", f"job/{name}", "--timeout=90s")
        observations.add(
            f"kubectl wait job/{name}", system.cluster.kubectl(*command, namespace=users.namespace)
        )
    held = {
        pod["metadata"]["labels"]["job-name"]: pod["metadata"]["annotations"]["gpu.scheduling/allocated"]
        for pod in users.pods()
    }
    assert held == {"first": "node-b:0,1,2,3", "second": "node-b:0,1,2,3"}
    observations.add("GPUs of the first, then of the second", held["first"])
    system.cluster.wait_for("free GPUs", lambda: not system.leases())
    observations.add("leases afterwards", 0)


def test_a_gang_starts_completely_or_not_at_all(
    system: System, users: Users, observations: Observations
) -> None:
    users.claim("two", 2, spec=NODE_B)
    users.pod("alone", "two")
    users.running("alone")
    users.apply(
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "job"},
            "spec": {"minMember": 2, "scheduleTimeoutSeconds": 120},
        }
    )
    users.claim("member", 2, spec={"gangRef": "job", **NODE_B})
    members = ("member-0", "member-1")
    for name in members:
        users.pod(name, "member")
        assert users.read(name)["spec"]["schedulingGates"] == [{"name": "gpu.scheduling/gang"}]
    system.cluster.wait_for("a reason", lambda: users.status("member").get("message"))
    assert [users.read(name)["spec"].get("nodeName") for name in members] == [None, None]
    assert len(system.leases()) == 2, "the member that would fit holds nothing"
    observations.add("capacity for one of two members", users.status("member")["message"])

    def explained() -> str:
        sentence = str(system.get(f"/api/claims/{users.namespace}/member/explain")["sentence"])
        return sentence if sentence.startswith("gang job: 1 of 2 members fit") else ""

    observations.add("GET /api/claims/…/explain", system.cluster.wait_for("an explanation", explained))
    users.delete("alone")
    allocated = users.running(*members)
    assert sorted(allocated) == ["node-b:0,1", "node-b:2,3"]
    observations.add("capacity for both", ", ".join(allocated))


def test_a_pod_preempts_a_pod_of_lower_priority(
    system: System, users: Users, observations: Observations
) -> None:
    name = f"urgent-{users.namespace[-6:]}"
    priority: dict[str, Any] = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
    }
    system.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    try:
        users.claim("all", 4, spec=NODE_B)
        users.pod("low", "all")
        users.running("low")
        users.pod("high", "all", priorityClassName=name)
        assert users.running("high") == ["node-b:0,1,2,3"]
        system.cluster.wait_for(
            "the end of pod low", lambda: [pod["metadata"]["name"] for pod in users.pods()] == ["high"]
        )
        observations.add("pod high, priority 1000, on a full node", "runs; pod low was evicted")
    finally:
        system.cluster.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
