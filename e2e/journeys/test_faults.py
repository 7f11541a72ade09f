"""Test GPUs and nodes that fail and recover."""

import subprocess
import sys
from typing import Any

from e2e.journeys.conftest import MACHINES
from e2e.system import Observations, System, Users

NODE_B = {"selector": {"matchLabels": {"kubernetes.io/hostname": "node-b"}}}


def health(system: System, node: str) -> list[str]:
    found = system.cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
    status: dict[str, Any] = {each["metadata"]["name"]: each.get("status", {}) for each in found}
    return [device["health"] for device in status.get(node, {}).get("devices", [])]


def test_an_unhealthy_gpu_is_avoided_until_it_recovers(
    system: System, users: Users, observations: Observations
) -> None:
    gpus = system.processes.gpus["node-b"]
    users.claim("one", spec=NODE_B)
    users.claim("all", 4, spec=NODE_B)
    gpus.lose(0)
    try:
        system.cluster.wait_for("an unhealthy GPU", lambda: health(system, "node-b")[0] == "Unhealthy")
        observations.add("GPU 0 of node-b falls off the bus", "Unhealthy in its GpuNodeStatus")
        system.cluster.wait_for(
            "a faulty node in the API", lambda: system.get("/api/clusters/overview")["faultyNodes"] == 1
        )
        users.pod("one", "one")
        [allocated] = users.running("one")
        assert allocated in ("node-b:1", "node-b:2", "node-b:3")
        observations.add("a claim for one GPU", allocated)
        users.pod("all", "all")
        system.cluster.wait_for("a reason", lambda: users.status("all").get("message"))
        users.delete("one")
        result = explain(system, users, "all")
        assert result.returncode == 1
        observations.add("gpufleet explain pod all", result.stdout.splitlines()[0])
    finally:
        gpus.find_again(0)
    assert users.running("all") == ["node-b:0,1,2,3"]
    observations.add("GPU 0 recovers: a claim for all four", users.allocated("all"))
    system.cluster.wait_for(
        "no faulty node in the API", lambda: system.get("/api/clusters/overview")["faultyNodes"] == 0
    )


def explain(system: System, users: Users, pod: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gpufleet", "explain", "pod", pod, "-n", users.namespace]
    flags = ["--kubeconfig", str(system.cluster.kubeconfig), "--lease-namespace", system.namespace]
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)


def test_a_node_is_removed_and_added_again(system: System, users: Users, observations: Observations) -> None:
    users.claim("all", 4, spec=NODE_B)
    users.pod("before", "all")
    users.running("before")
    system.nodes.remove("node-b")
    try:
        system.cluster.wait_for("the end of its GpuNodeStatus", lambda: not health(system, "node-b"))
        # Kubernetes would do this a minute later.
        command = ("delete", "pod", "before", "--force", "--grace-period=0")
        system.cluster.kubectl(*command, namespace=users.namespace)
        system.cluster.wait_for("no lease of the node", lambda: not system.leases())
        observations.add(
            "kubectl delete node node-b", "its GpuNodeStatus and, with the pod, its four leases are deleted"
        )
        system.cluster.wait_for(
            "two nodes in the API", lambda: system.get("/api/clusters/overview")["totalNodes"] == 2
        )
        users.pod("after", "all")
        system.cluster.wait_for("a reason", lambda: "nodes fit" in users.status("all").get("message", ""))
        observations.add("a claim for it", users.status("all")["message"])
    finally:
        system.nodes.add("node-b")
        system.reconcile()
    system.cluster.wait_for("its GpuNodeStatus", lambda: health(system, "node-b") == ["Healthy"] * 4)
    assert users.running("after") == ["node-b:0,1,2,3"]
    observations.add("the node is added again", f"the pending pod runs on {users.allocated('after')}")
    total = len(MACHINES)
    system.cluster.wait_for(
        "all nodes in the API", lambda: system.get("/api/clusters/overview")["totalNodes"] == total
    )
    observations.add("GET /api/clusters/overview", f"{total} nodes")
