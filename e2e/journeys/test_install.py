"""Test `helm install` until the fleet shows its GPUs."""

import json

from e2e.journeys.conftest import MACHINES
from e2e.system import Observations, System

WORKLOADS = {"Deployment": "deployments", "DaemonSet": "daemonsets"}


def test_both_charts_are_installed_with_every_object(system: System, observations: Observations) -> None:
    for release in (system.scheduler_release, system.server_release):
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": release.objects()})
        found = system.cluster.kubectl("get", "-o", "name", "-f", "-", stdin=manifest).split()
        assert len(found) == len(release.objects())
        for each in release.objects():
            if each["kind"] in WORKLOADS:
                command = ("rollout", "status", f"{each['kind']}/{each['metadata']['name']}", "--timeout=60s")
                system.cluster.kubectl(*command, namespace=system.namespace)
        observations.add(f"helm install {release.name}", f"{len(found)} objects, all rolled out")


def test_agents_publish_the_gpus_of_their_nodes_to_all_views(
    system: System, observations: Observations
) -> None:
    sizes = {node: int(state["count"]) for node, state in MACHINES.items()}

    def rows() -> dict[str, list[str]]:
        lines = system.cluster.kubectl("get", "gns", "--no-headers").splitlines()
        return {line.split()[0]: line.split()[1:4] for line in lines}

    expected = {node: [str(count), str(count), "0"] for node, count in sizes.items()}
    system.cluster.wait_for("a GpuNodeStatus of each node", lambda: rows() == expected)
    assert "node-cpu" not in rows(), "a node without GPUs has no GpuNodeStatus"
    for node, (gpus, free, unhealthy) in rows().items():
        observations.add(f"kubectl get gns {node}", f"{gpus} GPUs, {free} free, {unhealthy} unhealthy")
    total = sum(sizes.values())
    system.cluster.wait_for(
        "readings of all GPUs", lambda: len(system.get("/api/v1/gpu/metrics")) == total, timeout=90
    )
    overview = system.get("/api/clusters/overview")
    assert (overview["totalNodes"], overview["totalGpus"]) == (len(sizes), total)
    observations.add(
        "GET /api/clusters/overview", f"{overview['totalNodes']} nodes, {overview['totalGpus']} GPUs"
    )
    [healthy] = system.prometheus.promtool("sum(nvidia_gpu_healthy)")
    assert int(healthy["value"][1]) == total
    observations.add("promtool query instant 'sum(nvidia_gpu_healthy)'", healthy["value"][1])
