"""Test both charts on a real API server: valid objects and minimal rights. `journeys` tests that they work."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from charts.reference import NAMES, leaves, schema
from tests.charts.rendering import changed, everything, objects

from e2e.cluster import Cluster, CommandFailed
from e2e.cluster.rest import JSON_PATCH
from e2e.system.release import Release, delete_crds

ROOT = Path(__file__).parents[1]
FOREIGN_KINDS = {
    "monitoring.coreos.com": ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
    "cert-manager.io": ("Certificate", "Issuer"),
}
"""Kinds of other projects in the charts. Their schemas accept anything here."""


@pytest.fixture(autouse=True)
def project_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def foreign_kinds(cluster: Cluster) -> Iterator[None]:
    crds = [_any_kind(group, kind) for group, kinds in FOREIGN_KINDS.items() for kind in kinds]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": crds}))
    names = [f"crd/{crd['metadata']['name']}" for crd in crds]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    yield
    cluster.kubectl("delete", "--wait=false", *names)


@pytest.fixture
def crds_deleted(cluster: Cluster) -> Iterator[None]:
    yield
    delete_crds(cluster)


def _settings_of(chart: str) -> dict[str, dict[str, Any]]:
    """Return values by name: defaults, everything enabled, every value changed, every switch off."""
    base = everything(chart)
    other, off = base, {"database": {"url": "postgresql://u:p@db/x"}} if chart == "gpufleet" else {}
    for path, each in leaves(schema(chart)):
        example = each["examples"][0]
        if example is False:
            off = changed(off, path, False)
        else:
            other = changed(other, path, example)
    if chart == "gpufleet":
        off = changed(off, ("auth", "insecure"), True)
    return {"default": {}, "everything": base, "other": other, "off": off}


@pytest.mark.parametrize("chart", NAMES)
@pytest.mark.parametrize("which", ["default", "everything", "other", "off"])
@pytest.mark.usefixtures("foreign_kinds")
def test_the_api_server_accepts_every_object(
    cluster: Cluster, namespace: str, chart: str, which: str
) -> None:
    values = _settings_of(chart)[which]
    if which == "other" and chart == "gpufleet":
        values = changed(values, ("kubernetes", "leaseNamespace"), namespace)
    rendered = objects(chart, values, namespace)
    output = cluster.kubectl(
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered}),
    )
    assert len(output.splitlines()) == len(rendered)


@pytest.mark.usefixtures("crds_deleted")
def test_the_scheduler_is_installed_upgraded_and_removed_as_documented(
    cluster: Cluster, namespace: str
) -> None:
    cluster.helm("install", "gpu-scheduler", "charts/gpu-scheduler", namespace="default")
    try:
        assert cluster.helm("get", "values", "gpu-scheduler", namespace="default").endswith("null\n")
        assert _image(cluster, "scheduler") == "gpufleet-scheduler:v0.1.0"
        bundle = _write_ca_bundle(cluster)
        arguments = ["charts/gpu-scheduler", "--set", "scheduler.image.tag=v0.2.0"]
        cluster.helm("upgrade", "gpu-scheduler", *arguments, namespace="default")
        assert "tag: v0.2.0" in cluster.helm("get", "values", "gpu-scheduler", namespace="default")
        assert _image(cluster, "scheduler") == "gpufleet-scheduler:v0.2.0"
        assert _image(cluster, "webhook") == "gpufleet-scheduler:v0.1.0"
        assert _ca_bundle(cluster) == bundle
        _check_that_only_pods_with_a_claim_fail(cluster, namespace)
        cluster.helm("upgrade", "gpu-scheduler", "charts/gpu-scheduler", namespace="default")
        assert _image(cluster, "scheduler") == "gpufleet-scheduler:v0.2.0", (
            "helm keeps the values of the last upgrade"
        )
    finally:
        cluster.helm("uninstall", "gpu-scheduler", namespace="default")
    assert Release(cluster, "gpu-scheduler", "default").remaining_objects() == []
    assert "gpuclaims.gpu.scheduling" in cluster.kubectl("get", "crds")


def test_the_server_is_installed_upgraded_and_removed_and_keeps_its_secrets(
    cluster: Cluster, namespace: str
) -> None:
    def secret(name: str) -> dict[str, str]:
        found: dict[str, str] = cluster.api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
        return found

    cluster.helm("install", "gpufleet", "charts/gpufleet", namespace=namespace)
    password, key = secret("gpufleet-database"), secret("gpufleet-workload-key")
    cluster.helm("upgrade", "gpufleet", "charts/gpufleet", "--set", "replicas=2", namespace=namespace)
    assert (secret("gpufleet-database"), secret("gpufleet-workload-key")) == (password, key)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/gpufleet"
    assert cluster.api.get(path)["spec"]["replicas"] == 2
    cluster.helm("uninstall", "gpufleet", namespace=namespace)
    assert Release(cluster, "gpufleet", namespace).remaining_objects() == []


RIGHTS: list[tuple[str, list[str], list[str]]] = [
    (
        "gpu-scheduler-repair",
        [
            "patch nodes",
            "patch nodes/status",
            "watch pods",
            "create gpurepairs.gpu.scheduling",
            "update gpurepairs.gpu.scheduling/status",
            "update leases here gpufleet-repair",
            "list jobs.batch here",
        ],
        [
            # With policy observe it only reports.
            "create pods/eviction",
            "patch pods",
            "create jobs.batch here",
            "delete pods",
            "get secrets here",
            "update leases here gpufleet-scheduler",
            "list jobs.batch",
            "update gpurepairs.gpu.scheduling",
            "patch gpunodestatuses.gpu.scheduling",
        ],
    ),
    (
        "gpu-scheduler-scheduler",
        [
            "create pods/binding",
            "create pods/eviction",
            "patch pods",
            "list nodes",
            "patch gpuclaims/status",
            "delete leases here",
            "create events.events.k8s.io",
            "watch gpunodestatuses",
            "get secrets here gpu-scheduler-scheduler-tls",
            "patch deployments.apps here gpu-scheduler-kube-scheduler",
        ],
        [
            "get secrets",
            "get secrets here gpu-scheduler-webhook-tls",
            "patch deployments.apps here gpu-scheduler-webhook",
            "delete pods",
            "create pods",
            "patch nodes",
            "update gpuclaims",
            "delete leases",
            "patch gpunodestatuses/status",
        ],
    ),
    (
        "gpu-scheduler-kube-scheduler",
        ["list pods", "list nodes", "create leases here", "create events.events.k8s.io"],
        ["get secrets", "delete leases here", "patch gpuclaims/status", "create pods"],
    ),
    (
        "gpu-scheduler-webhook",
        [
            "get gpuclaims",
            "create secrets here",
            "get secrets here gpu-scheduler-webhook-tls",
            "patch mutatingwebhookconfigurations NS-gpu-scheduler-webhook",
            "patch validatingwebhookconfigurations NS-gpu-scheduler-webhook",
        ],
        ["get secrets", "get secrets here other", "list pods", "patch mutatingwebhookconfigurations other"],
    ),
    (
        "gpu-scheduler-agent",
        [
            "patch gpunodestatuses",
            "patch gpunodestatuses/status",
            "create gpunodestatuses",
            "watch gpunodestatuses",
            "list pods",
            "get leases here",
        ],
        ["get secrets", "delete gpunodestatuses", "patch pods", "update leases here", "list leases here"],
    ),
    (
        "gpufleet",
        [
            "list pods",
            "watch nodes",
            "list gpuclaims",
            "list jobs.batch",
            "list rayjobs.ray.io",
            "list leases in default",
            "create tokenreviews",
            "create subjectaccessreviews.authorization.k8s.io",
        ],
        ["get secrets", "patch pods", "delete jobs.batch", "patch gpuclaims", "list leases"],
    ),
]


@pytest.mark.usefixtures("crds_deleted")
def test_each_account_has_the_rights_it_needs_and_no_others(cluster: Cluster, namespace: str) -> None:
    for chart in NAMES:
        cluster.helm("install", chart, f"charts/{chart}", namespace=namespace)
    try:
        for account, needed, forbidden in RIGHTS:
            user = f"system:serviceaccount:{namespace}:{account}"
            for allowed, actions in ((True, needed), (False, forbidden)):
                for action in actions:
                    assert _may(cluster, user, action, namespace) is allowed, f"{account}: {action}"
    finally:
        for chart in NAMES:
            cluster.helm("uninstall", chart, namespace=namespace)


def _check_that_only_pods_with_a_claim_fail(cluster: Cluster, namespace: str) -> None:
    """No webhook runs, so the API server refuses the pods that it selects."""
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "x"}]}}
    plain = {**pod, "metadata": {"name": "plain", "annotations": {"team": "x"}}}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(plain), namespace=namespace)
    for annotation in ("claim", "allocated", "visible-devices"):
        marked = {
            **pod,
            "metadata": {"name": annotation, "annotations": {f"gpu.scheduling/{annotation}": "x"}},
        }
        with pytest.raises(CommandFailed, match="failed calling webhook"):
            cluster.kubectl("create", "-f", "-", stdin=json.dumps(marked), namespace=namespace)


def _image(cluster: Cluster, component: str) -> str:
    path = f"/apis/apps/v1/namespaces/default/deployments/gpu-scheduler-{component}"
    image: str = cluster.api.get(path)["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


_HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-scheduler-webhook"


def _write_ca_bundle(cluster: Cluster) -> str:
    """Write a CA bundle like the webhook; an upgrade must keep it."""
    bundle = base64.b64encode(cluster.ca.read_bytes()).decode()
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    cluster.api.patch(_HOOKS, patch, JSON_PATCH)
    return bundle


def _ca_bundle(cluster: Cluster) -> str:
    bundle: str = cluster.api.get(_HOOKS)["webhooks"][0]["clientConfig"].get("caBundle", "")
    return bundle


def _may(cluster: Cluster, user: str, action: str, namespace: str) -> bool:
    """Check an action: `patch pods`, `list leases here`, `get secrets here NAME`, `list leases in default`."""
    verb, what, *rest = action.split()
    where = {"here": namespace, "in": rest[-1] if rest else ""}.get(rest[0], "") if rest else ""
    name = rest[-1] if rest and rest[0] != "in" and rest[-1] != "here" else ""
    plural, _, subresource = what.partition("/")
    resource, _, group = plural.partition(".")
    attributes = {
        "verb": verb,
        "resource": resource,
        "subresource": subresource,
        "group": group or _GROUPS.get(resource, ""),
        "namespace": where,
        "name": name.replace("NS", namespace),
    }
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    response = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    allowed: bool = response["status"]["allowed"]
    return allowed


_GROUPS = {
    "gpuclaims": "gpu.scheduling",
    "gpunodestatuses": "gpu.scheduling",
    "leases": "coordination.k8s.io",
    "tokenreviews": "authentication.k8s.io",
    "mutatingwebhookconfigurations": "admissionregistration.k8s.io",
    "validatingwebhookconfigurations": "admissionregistration.k8s.io",
}


def _any_kind(group: str, kind: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [version],
        },
    }
