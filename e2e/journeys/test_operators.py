"""Test that workloads of other operators are shown under their own kind, with the rights that the chart grants."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.system import Observations, System, Users
from e2e.system.users import pod

KINDS = (
    ("kubeflow.org/v1", "PyTorchJob"),
    ("kubeflow.org/v1", "TFJob"),
    ("kubeflow.org/v1", "MPIJob"),
    ("kubeflow.org/v1", "XGBoostJob"),
    ("kubeflow.org/v1", "PaddleJob"),
    ("kubeflow.org/v1", "JAXJob"),
    ("kubeflow.org/v1", "Notebook"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ("ray.io/v1", "RayCluster"),
    ("ray.io/v1", "RayJob"),
    ("ray.io/v1", "RayService"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("argoproj.io/v1alpha1", "Workflow"),
    ("argoproj.io/v1alpha1", "Rollout"),
    ("serving.kserve.io/v1beta1", "InferenceService"),
)
ON_NODE_A = {"selector": {"matchLabels": {"kubernetes.io/hostname": "node-a"}}}


@pytest.fixture
def operators(cluster: Cluster) -> Iterator[None]:
    """Install CRDs of other projects that accept anything."""
    crds = [definition(*each) for each in KINDS]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": crds}))
    names = [f"crd/{crd['metadata']['name']}" for crd in crds]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names, timeout=90)
    yield
    cluster.kubectl("delete", "--wait=false", *names)


@pytest.mark.usefixtures("operators")
def test_workloads_of_every_operator_are_shown_under_their_own_kind(
    system: System, users: Users, observations: Observations
) -> None:
    users.claim("part", exclusivity="Shared", share=0.05, spec=ON_NODE_A)
    for api_version, kind in KINDS:
        name = f"{kind.lower()}-{api_version.split('.')[0]}"
        path = f"/apis/{api_version}/namespaces/{users.namespace}/{kind.lower()}s"
        owner = system.cluster.api.create(
            path, {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
        )
        body = pod(name, "part")
        body["metadata"]["ownerReferences"] = [
            {
                "apiVersion": api_version,
                "kind": kind,
                "name": name,
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
        system.cluster.api.create(f"/api/v1/namespaces/{users.namespace}/pods", body)
    users.running(*(each["metadata"]["name"] for each in users.pods()))

    def shown() -> set[tuple[str, str, str]]:
        rows = system.get(f"/api/workloads?namespace={users.namespace}&pageSize=100")["data"]
        return {(row["kind"], row["name"], row["status"]) for row in rows}

    expected = {(kind, f"{kind.lower()}-{version.split('.')[0]}", "Running") for version, kind in KINDS}
    system.cluster.wait_for("workloads of every kind", lambda: shown() == expected, timeout=90)
    observations.add("GET /api/workloads", f"{len(expected)} workloads of {len(KINDS)} kinds, all Running")


def definition(api_version: str, kind: str) -> dict[str, Any]:
    group, _, version = api_version.partition("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
            ],
        },
    }
