"""What users do in a namespace: write claims, run pods and Jobs, look at what came of it.

Only what a user's manifest would have: no variable for the GPUs, no annotation but the claim's. The rest is the
webhook's, the scheduler's and the kubelet's part.
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
        """Run a pod with a claim; its UID."""
        made = self.cluster.api.create(self._pods, pod(name, claim, labels, **spec))
        return str(made["metadata"]["uid"])

    def job(self, name: str, claim: str, pods: int = 1, runs_for: float | None = None, **labels: str) -> str:
        """Run a Job whose pods carry a claim; its UID."""
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
        made = self.cluster.api.create(f"/apis/batch/v1/namespaces/{self.namespace}/jobs", body)
        return str(made["metadata"]["uid"])

    def apply(self, *objects: Json) -> str:
        """`kubectl apply`; what it printed."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.cluster.kubectl("apply", "-f", "-", stdin=text, namespace=self.namespace)

    def delete(self, name: str) -> None:
        """Delete a pod."""
        self.cluster.api.delete(f"{self._pods}/{name}")

    def read(self, name: str) -> Json:
        """A pod as it is."""
        found: Json = self.cluster.api.get(f"{self._pods}/{name}")
        return found

    def pods(self) -> list[Json]:
        """All pods of the namespace."""
        found: list[Json] = self.cluster.api.get(self._pods)["items"]
        return found

    def allocated(self, name: str) -> str:
        """The GPUs of a pod, as `node-a:0,1`; empty without."""
        return str(self.read(name)["metadata"].get("annotations", {}).get(ALLOCATED, ""))

    def running(self, *names: str, timeout: float = 90) -> list[str]:
        """Wait until the pods run; their GPUs."""
        for name in names:
            self.cluster.wait_for(
                f"running pod {name}",
                lambda name=name: self.read(name)["status"].get("phase") == "Running",  # type: ignore[misc]
                timeout=timeout,
            )
        return [self.allocated(name) for name in names]

    def visible_devices(self, name: str, container: str | None = None) -> str:
        """CUDA_VISIBLE_DEVICES as a container of the pod saw it when it started."""
        return self.nodes.environment(self.namespace, name, container)["CUDA_VISIBLE_DEVICES"]

    def status(self, claim: str) -> Json:
        """The status of a claim."""
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
    """The manifest of a pod with a claim, with an init container as many have one."""
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
