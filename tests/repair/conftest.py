"""An embedded Kubernetes API with nodes, reports of agents, gangs and Jobs."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpufleet.kubernetes import GPU_NODE_STATUSES, GPU_REPAIRS, JOBS, NODES, PODS, KubeClient, load_connection
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.client.patch import apply, merge
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair
from gpufleet.kubernetes.objects import Job, Node, Pod
from kubelite import KubeLite

NAMESPACE = "gpufleet"


@dataclass
class Cluster:
    """The API and what tests do with it."""

    server: KubeLite
    client: KubeClient
    templates: Path
    faults: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    holders: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    async def add_node(self, name: str) -> None:
        ready = [{"type": "Ready", "status": "True"}]
        node = {"metadata": {"name": name}, "status": {"conditions": ready, "nodeInfo": {"bootID": "b1"}}}
        await self.client.write_json("POST", "/api/v1/nodes", node)
        await self.client.patch(NODES, name, merge({"status": node["status"]}), subresource="status")
        spec = {"metadata": {"name": name}, "spec": {"nodeName": name}}
        await self.client.write_json("POST", GPU_NODE_STATUSES.path(), {**_head(GPU_NODE_STATUSES), **spec})
        await self.report(name)

    async def report(self, name: str, *faults: dict[str, Any]) -> None:
        """Publish what the agent of the node sees."""
        self.faults[name] = list(faults)
        bad = {each.get("gpu") for each in faults if each["severity"] == "Unhealthy"}
        devices = [
            {
                "id": gpu,
                "uuid": f"GPU-{name}-{gpu}",
                "health": "Unhealthy" if bad & {gpu, None} else "Healthy",
                "model": "NVIDIA_H100",
                **({"inUseBy": uids} if (uids := self.holders.get(name, {}).get(gpu)) else {}),
            }
            for gpu in range(4)
        ]
        unhealthy = sum(device["health"] != "Healthy" for device in devices)
        status = {"devices": devices, "total": 4, "unhealthy": unhealthy, "findings": list(faults)}
        change = apply({"status": status}, manager="agent")
        await self.client.patch(GPU_NODE_STATUSES, name, change, subresource="status")

    async def add_pod(self, name: str, node: str, gpu: int, gang: str = "", **annotations: str) -> str:
        labels = {"scheduling.x-k8s.io/pod-group": gang} if gang else {}
        pod = {
            "metadata": {"name": name, "namespace": "jobs", "labels": labels, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "train"}]},
        }
        made = await self.client.write_json("POST", PODS.path("jobs"), pod)
        uid = str(made["metadata"]["uid"])
        self.holders.setdefault(node, {}).setdefault(gpu, []).append(uid)
        await self.report(node, *self.faults[node])
        return uid

    async def remove_evicted(self) -> list[str]:
        """End the pods that were evicted, as kubelets do, and report that their GPUs are free."""
        gone = []
        for pod in (await self.client.list(PODS)).items:
            if pod.metadata.deletion_timestamp is not None:
                await self.client.delete(PODS, pod.metadata.name, "jobs", grace_seconds=0)
                gone.append(pod.metadata.uid)
        alive = {pod.metadata.uid for pod in (await self.client.list(PODS)).items}
        for node, gpus in self.holders.items():
            kept = {gpu: [uid for uid in uids if uid in alive] for gpu, uids in gpus.items()}
            if kept != gpus:
                self.holders[node] = kept
                await self.report(node, *self.faults[node])
        return gone

    async def finish_jobs(self, succeed: bool = True) -> list[str]:
        """End all active Jobs; a repair that succeeds clears the fault."""
        ended = []
        for job in (await self.client.list(JOBS)).items:
            if job.status.conditions:
                continue
            kind = "Complete" if succeed else "Failed"
            status = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
            await self.client.patch(JOBS, job.metadata.name, merge(status), NAMESPACE, subresource="status")
            ended.append(job.metadata.name)
            if "prove" not in job.metadata.name and succeed:
                await self.report(job.metadata.annotations["gpu.scheduling/node"])
        return ended

    async def jobs(self) -> list[Job]:
        return (await self.client.list(JOBS)).items

    async def pods(self) -> dict[str, Pod]:
        return {pod.metadata.name: pod for pod in (await self.client.list(PODS)).items}

    async def node(self, name: str) -> Node:
        return await self.client.get(NODES, name)

    async def repair(self, name: str) -> GpuRepair | None:
        try:
            return await self.client.get(GPU_REPAIRS, name)
        except ObjectNotFound:
            return None


def fault(gpu: int | None = 0, signal: str = "xid-48", action: str = "reset") -> dict[str, Any]:
    scope = "Node" if gpu is None else "GPU"
    found = {"signal": signal, "severity": "Unhealthy", "scope": scope, "message": signal, "action": action}
    return found if gpu is None else {**found, "gpu": gpu}


def _head(resource: Any) -> dict[str, str]:
    return {"apiVersion": resource.api_version, "kind": resource.kind}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with KubeLite() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        connection = load_connection(str(tmp_path / "kubeconfig"))
        templates = tmp_path / "templates"
        templates.mkdir()
        for hook in ("prove", "reset", "reboot"):
            (templates / f"{hook}.yaml").write_text(
                "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n"
                f"        - {{name: {hook}, image: hook}}\n"
            )
        async with KubeClient(connection, requests_per_second=1000, burst=1000) as client:
            for definition in definitions():
                await client.write_json(
                    "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition
                )
            for name in (NAMESPACE, "jobs"):
                await client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            yield Cluster(server, client, templates)
