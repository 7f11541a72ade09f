"""Test `gpufleet serve` on a real API server: the API shows the state of the cluster to authenticated users."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {team: nlp}}
spec:
  parallelism: 2
  completions: 2
  template:
    metadata: {labels: {team: nlp}}
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: train
        resources: {limits: {nvidia.com/gpu: "4"}}
"""


@contextmanager
def serving(kubeconfig: Path, data: Path, *flags: str) -> Iterator[str]:
    """Run a server on a free port and yield its address."""
    command = [sys.executable, "-m", "gpufleet", "serve", "--port", "0", "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(
        [*command, "--data", str(data), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=data,
        env={**os.environ, "DATABASE_URL": ""},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("gpufleet serves on "), process.communicate(timeout=30)
        yield line.rpartition(" ")[2].strip()
        process.terminate()
        assert process.wait(30) == 0, process.communicate()
    finally:
        process.kill()
        process.communicate()


VIEWER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gpufleet-viewer}
rules:
- {apiGroups: [gpu.scheduling], resources: [fleet], verbs: [get]}
"""
"""As the chart creates it; `test_users_get_roles_for_reading_and_operating_and_prometheus_may_read` compares."""


@contextmanager
def viewer(cluster: Cluster, namespace: str, account: str, *, only_namespace: bool = False) -> Iterator[None]:
    """Bind a service account to the role viewer, in its own namespace or in all."""
    cluster.kubectl("apply", "-f", "-", stdin=VIEWER)
    kind = "rolebinding" if only_namespace else "clusterrolebinding"
    where = {"namespace": namespace} if only_namespace else {}
    words = ("--clusterrole=gpufleet-viewer", f"--serviceaccount={namespace}:{account}")
    cluster.kubectl("create", kind, namespace, *words, **where)
    try:
        yield
    finally:
        cluster.kubectl("delete", kind, namespace, **where)
        cluster.kubectl("delete", "clusterrole", "gpufleet-viewer")


def get(address: str, path: str, token: str) -> Any:
    response = httpx.get(address + path, headers={"authorization": f"Bearer {token}"}, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_the_api_shows_the_nodes_and_workloads_of_the_cluster(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes, data: Path
) -> None:
    fake_nodes.add("gpu-1", "gpu-2", capacity={"nvidia.com/gpu": "8"})
    cluster.kubectl("apply", "-f", "-", stdin=JOB, namespace=namespace)
    cluster.kubectl(
        "wait", "--for=jsonpath={.status.active}=2", "job/train", "--timeout=60s", namespace=namespace
    )
    running = (
        "wait",
        "--for=jsonpath={.status.phase}=Running",
        "pod",
        "-l",
        "job-name=train",
        "--timeout=60s",
    )
    cluster.kubectl(*running, namespace=namespace)
    token = cluster.service_account(namespace, "default", 600).token
    assert token is not None
    with (
        viewer(cluster, namespace, "default"),
        serving(cluster.kubeconfig, data, "--token-review") as address,
    ):
        overview = get(address, "/api/clusters/overview", token)
        assert (
            overview["totalNodes"],
            overview["faultyNodes"],
            overview["totalGpus"],
            overview["allocatedGpus"],
        ) == (
            2,
            0,
            16,
            8,
        )
        assert overview["allocationRate"] == 0.5
        page = get(address, f"/api/workloads?namespace={namespace}", token)
        row = page["data"][0]
        uid = cluster.kubectl("get", "job/train", "-o", "jsonpath={.metadata.uid}", namespace=namespace)
        assert (page["total"], row["uid"], row["kind"], row["gpuAllocated"]) == (1, uid, "Job", 8)
        tree = get(address, f"/api/workloads/{uid}/hierarchy", token)
        pods = cluster.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}", namespace=namespace)
        assert [child["name"] for child in tree["children"]] == sorted(pods.split())
        fake_nodes.set_ready("gpu-1", False)
        cluster.wait_for(
            "a faulty node", lambda: get(address, "/api/clusters/overview", token)["faultyNodes"] == 1
        )
        cluster.kubectl("delete", "job/train", namespace=namespace)
        cluster.wait_for(
            "free GPUs", lambda: get(address, "/api/clusters/overview", token)["allocatedGpus"] == 0
        )
        cluster.wait_for(
            "the end of the job", lambda: get(address, f"/api/workloads/{uid}", token)["endTime"] > 0
        )


def test_a_kubernetes_token_is_admitted_as_far_as_rbac_allows(
    cluster: Cluster, namespace: str, data: Path
) -> None:
    token = cluster.kubectl("create", "token", "default", namespace=namespace).strip()
    flags = ("--token-review", "--set", "auth.review_cache=100ms")
    with serving(cluster.kubeconfig, data, *flags) as address:

        def status() -> int:
            headers = {"authorization": f"Bearer {token}"}
            return httpx.get(f"{address}/api/clusters/overview", headers=headers, timeout=30).status_code

        assert httpx.get(f"{address}/api/healthz").status_code == 200
        unknown = httpx.get(f"{address}/api/clusters/overview", headers={"authorization": "Bearer made-up"})
        assert (unknown.status_code, unknown.json()["code"]) == (401, 401)
        assert httpx.get(f"{address}/api/clusters/overview").status_code == 401
        refused = httpx.get(
            f"{address}/api/clusters/overview", headers={"authorization": f"Bearer {token}"}, timeout=30
        )
        assert refused.status_code == 403
        binding = f"--clusterrole=gpufleet-viewer --serviceaccount={namespace}:default"
        assert f"kubectl create clusterrolebinding NAME {binding}" in refused.json()["message"]
        with viewer(cluster, namespace, "default"):
            cluster.wait_for("a viewer", lambda: status() == 200)
            assert get(address, "/api/clusters/overview", token)["totalNodes"] == 0
        cluster.wait_for("a refusal", lambda: status() == 403)
        with viewer(cluster, namespace, "default", only_namespace=True):
            cluster.wait_for("a viewer of one namespace", lambda: status() == 200)
            me = get(address, "/auth/me", token)
            assert (me["role"], me["namespaces"]) == ("viewer", [namespace])
            changed = httpx.post(
                f"{address}/api/workloads/x/reportToken", headers={"authorization": f"Bearer {token}"}
            )
            assert changed.status_code == 403
