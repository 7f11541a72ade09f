"""Act as the users of a namespace: write claims, run pods and Jobs, check the results.

Manifests contain only what a user writes: no GPU variables, no annotation except the claim's. The webhook, the
scheduler and the kubelet add the rest.
"""

import contextlib
import json
from typing import Any

from e2e.cluster import Cluster, RequestFailed
from e2e.fakenodes import FakeNodes
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM

Json = dict[str, Any]


class Users:
    """The users of one namespace."""

    def __init__(self, cluster: Cluster, nodes: FakeNodes, namespace: str) -> None:
        self.cluster, self.nodes, self.namespace = cluster, nodes, namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._claims = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims"

    def claim(self, name: str, count: int = 1, spec: Json | None = None, **devices: Any) -> None:
        """Apply a GpuClaim."""
        body = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"count": count, **devices}, **(spec or {})},
        }
        self.apply(body)

    def pod(self, name: str, claim: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        """Create a pod with a claim and return its UID."""
        created = self.cluster.api.create(self._pods, pod(name, claim, labels, **spec))
        return str(created["metadata"]["uid"])

    def job(self, name: str, claim: str, pods: int = 1, runs_for: float | None = None, **labels: str) -> str:
        """Create a Job whose pods have a claim and return its UID."""
        template = pod("", claim, labels)
        del template["metadata"]["name"]
        if runs_for is not None:
            template["metadata"]["annotations"]["e2e.gpufleet/runs-for"] = str(runs_for)
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "template": {"metadata": template["metadata"], "spec": template["spec"]},
            },
        }
        created = self.cluster.api.create(f"/apis/batch/v1/namespaces/{self.namespace}/jobs", body)
        return str(created["metadata"]["uid"])

    def apply(self, *objects: Json) -> str:
        """Run `kubectl apply` and return its output."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.cluster.kubectl("apply", "-f", "-", stdin=text, namespace=self.namespace)

    def delete(self, name: str) -> None:
        """Delete a pod."""
        self.cluster.api.delete(f"{self._pods}/{name}")

    def read(self, name: str) -> Json:
        """Return a pod."""
        found: Json = self.cluster.api.get(f"{self._pods}/{name}")
        return found

    def pods(self) -> list[Json]:
        """Return all pods of the namespace."""
        found: list[Json] = self.cluster.api.get(self._pods)["items"]
        return found

    def allocated(self, name: str) -> str:
        """Return the GPUs allocated to a pod, such as `node-a:0,1`, or an empty string."""
        return str(self.read(name)["metadata"].get("annotations", {}).get(ALLOCATED, ""))

    def running(self, *names: str, timeout: float = 90) -> list[str]:
        """Wait until the pods run and return their allocated GPUs."""
        for name in names:
            self.cluster.wait_for(
                f"running pod {name}",
                lambda name=name: self.read(name)["status"].get("phase") == "Running",  # type: ignore[misc]
                timeout=timeout,
            )
        return [self.allocated(name) for name in names]

    def visible_devices(self, name: str, container: str | None = None) -> str:
        """Return CUDA_VISIBLE_DEVICES of a container when it started."""
        return self.nodes.environment(self.namespace, name, container)["CUDA_VISIBLE_DEVICES"]

    def uuids(self, allocated: str) -> str:
        """Return the UUIDs of GPUs such as `node-a:0,1`, as their node reports them."""
        node, _, ids = allocated.partition(":")
        status = self.cluster.api.get(f"/apis/gpu.scheduling/v1/gpunodestatuses/{node}")["status"]
        uuids = {str(device["id"]): device["uuid"] for device in status["devices"]}
        return ",".join(uuids[each] for each in ids.split(","))

    def status(self, claim: str) -> Json:
        """Return the status of a claim."""
        found: Json = self.cluster.api.get(f"{self._claims}/{claim}").get("status", {})
        return found

    def clean_up(self) -> None:
        """Delete every Job and pod, and wait until they are gone."""
        self.cluster.kubectl(
            "delete", "jobs", "--all", "--cascade=foreground", "--wait=false", namespace=self.namespace
        )
        for each in self.pods():
            with contextlib.suppress(RequestFailed):
                self.delete(each["metadata"]["name"])
        self.cluster.wait_for(f"end of the pods in {self.namespace}", lambda: not self.pods())


def pod(name: str, claim: str, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    """Return the manifest of a pod with a claim and an init container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}, "annotations": {CLAIM: claim}},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "initContainers": [{"name": "fetch", "image": "fetcher"}],
            "containers": [{"name": "main", "image": "trainer"}],
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            **spec,
        },
    }
