"""Test that a pod reports training numbers with its own Kubernetes token, and only for its own workload."""

import base64
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.pod_environment import in_pod

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.test_server import get, serving, viewer

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: train
        resources: {{limits: {{nvidia.com/gpu: "1"}}}}
"""
REPORT = """
import sys
from gpufleet.report import Reporter

report = Reporter(parameters=7e9, precision="bf16")
report.log(step=3, loss=1.5, tokens_per_second=5000)
sys.exit(not report.flush(60))
"""


@pytest.fixture
def pods(cluster: Cluster, namespace: str, fake_nodes: FakeNodes) -> dict[str, dict[str, Any]]:
    """Run two jobs and return their pods by the name of the job."""
    fake_nodes.add("gpu-1", capacity={"nvidia.com/gpu": "8"})
    for name in ("mine", "theirs"):
        cluster.kubectl("apply", "-f", "-", stdin=JOB.format(name=name), namespace=namespace)
    return {
        name: cluster.wait_for(f"a running pod of {name}", partial(_running, cluster, namespace, name))
        for name in ("mine", "theirs")
    }


def _running(cluster: Cluster, namespace: str, job: str) -> dict[str, Any] | None:
    output = cluster.kubectl("get", "pods", "-l", f"job-name={job}", "-o", "json", namespace=namespace)
    pods = json.loads(output)["items"]
    return next((pod for pod in pods if pod.get("status", {}).get("phase") == "Running"), None)


def token_of(cluster: Cluster, pod: dict[str, Any]) -> str:
    """Return the token that the kubelet would project into the pod."""
    meta = pod["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3607, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/default/token"
    token: str = cluster.api.create(path, body)["status"]["token"]
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["kubernetes.io"]["pod"]["uid"] == meta["uid"]
    return token


def post(address: str, uid: str, token: str) -> httpx.Response:
    return httpx.post(
        f"{address}/api/workloads/{uid}/trainingPerformance",
        json=[{"metric": "loss", "value": 9.0, "timestamp": round(time.time() * 1000)}],
        headers={"authorization": f"Bearer {token}"},
        timeout=30,
    )


def owner_of(pod: dict[str, Any]) -> str:
    uid: str = pod["metadata"]["ownerReferences"][0]["uid"]
    return uid


def test_a_pod_reports_with_its_own_token_for_its_own_workload_only(
    cluster: Cluster, namespace: str, pods: dict[str, dict[str, Any]], data: Path
) -> None:
    mine, theirs = pods["mine"], pods["theirs"]
    token = token_of(cluster, mine)
    unbound = cluster.service_account(namespace, "default", 600).token
    assert unbound is not None
    with (
        serving(cluster.kubeconfig, data, "--token-review") as address,
        viewer(cluster, namespace, "default"),
    ):
        done = in_pod(
            mine["metadata"]["uid"], token, {"GPUFLEET_URL": address}, [sys.executable, "-c", REPORT]
        )
        assert (done.returncode, done.stderr) == (0, "")
        now = round(time.time() * 1000)
        rows = get(
            address,
            f"/api/workloads/{owner_of(mine)}/trainingPerformance?start={now - 600_000}&end={now + 60_000}",
            token,
        )
        assert {(row["metric"], row["value"]) for row in rows} == {
            ("step", 3.0),
            ("loss", 1.5),
            ("tokens_per_second", 5000.0),
            ("parameters", 7e9),
            ("precision_bits", 16.0),
        }
        for other in (owner_of(theirs), theirs["metadata"]["uid"]):
            refused = post(address, other, token)
            assert refused.status_code == refused.json()["code"] == 403
            assert "its own workload only" in refused.json()["message"]
        assert post(address, owner_of(mine), unbound).status_code == 403
        assert post(address, owner_of(mine), token[:-4] + "AAAA").status_code == 401
        assert post(address, "no-such-workload", token).status_code == 404
        others = f"/api/workloads/{owner_of(theirs)}/trainingPerformance?start=0&end={now + 60_000}"
        assert get(address, others, token) == []
