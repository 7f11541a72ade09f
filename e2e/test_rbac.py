"""Compare the rights in the charts with the audit log of the journeys.

Every verb on every resource must have been used, and no request may have been refused. A right that no journey needs
is removed or listed here with its reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.charts.rendering import objects

from e2e.cluster import Cluster
from e2e.system import Observations

CHARTS = ("gpu-scheduler", "gpufleet")
Right = tuple[str, str, str]
"""A verb, a group and a resource, such as `("get", "", "pods/binding")`."""


@dataclass(frozen=True)
class AuditedRequest:
    """A request of one of our service accounts in the audit log."""

    account: str
    right: Right
    path: str
    allowed: bool


RARELY_USED: dict[str, dict[Right, str]] = {
    "gpu-scheduler-agent": {
        (
            "create",
            "gpu.scheduling",
            "gpunodestatuses",
        ): "checked beside patch when a patch creates the object",
        ("patch", "events.k8s.io", "events"): "increases the count of a repeated event",
        ("list", "resource.k8s.io", "resourceslices"): "read when a kubelet lists devices of a ResourceClaim",
    },
    "gpu-scheduler-scheduler": {
        ("update", "", "secrets"): "a certificate is renewed every two months",
        ("patch", "apps", "deployments"): "kube-scheduler is restarted for a new CA, after more than a year",
        ("patch", "events.k8s.io", "events"): "increases the count of a repeated event",
        ("list", "scheduling.k8s.io", "podgroups"): "native PodGroups need a feature gate",
        ("watch", "scheduling.k8s.io", "podgroups"): "native PodGroups need a feature gate",
        ("watch", "kueue.x-k8s.io", "localqueues"): "only with Kueue, which not every machine can build",
        ("patch", "gpu.scheduling", "gpuqueues/status"): "only with GpuQueues (test_gpu_queues.py)",
    },
    "gpu-scheduler-repair": {
        (
            "patch",
            "",
            "nodes",
        ): "with policy observe only a taint that an earlier policy left (test_repair.py)",
        ("get", "gpu.scheduling", "gpurepairs"): "another process created it at the same moment",
        ("patch", "events.k8s.io", "events"): "increases the count of a repeated event",
        ("list", "scheduling.k8s.io", "podgroups"): "native PodGroups need a feature gate",
        ("watch", "scheduling.k8s.io", "podgroups"): "native PodGroups need a feature gate",
        ("list", "resource.k8s.io", "devicetaintrules"): "they need a feature gate (test_device_taints.py)",
        ("watch", "resource.k8s.io", "devicetaintrules"): "they need a feature gate (test_device_taints.py)",
        ("delete", "resource.k8s.io", "devicetaintrules"): "they need a feature gate (test_device_taints.py)",
    },
    "gpufleet": {
        ("list", "kueue.x-k8s.io", "workloads"): "only with Kueue, which not every machine can build",
        ("watch", "kueue.x-k8s.io", "workloads"): "only with Kueue, which not every machine can build",
        ("list", "discovery.k8s.io", "endpointslices"): "only without Prometheus (test_agent_scraping.py)",
        ("watch", "discovery.k8s.io", "endpointslices"): "only without Prometheus (test_agent_scraping.py)",
        ("create", "gpu.scheduling", "gpurepairs"): "an operator silences a node that never had a fault",
        ("patch", "gpu.scheduling", "gpurepairs"): "an operator acknowledges, silences or resumes a repair",
    },
    "gpu-scheduler-webhook": {
        ("get", "gpu.scheduling", "gpuclaims"): "a claim that the watch has not delivered yet",
        ("update", "", "secrets"): "a certificate is renewed every two months",
    },
}
"""Rights that a run may not use, with their reasons."""


def audited_requests(cluster: Cluster) -> Iterator[AuditedRequest]:
    """Yield the requests of both charts' service accounts, in any namespace."""
    accounts = set(rights())
    for entry in cluster.audit():
        user = entry["user"].get("username", "")  # missing if the server did not authenticate the request
        account = user.rpartition(":")[2]
        target = entry.get("objectRef")
        if not user.startswith("system:serviceaccount:") or account not in accounts or not target:
            continue
        resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
        right = (entry["verb"], target.get("apiGroup", ""), resource)
        # Not the status: an admission policy also answers 403, as test_agent.py expects of it.
        refused = entry["annotations"].get("authorization.k8s.io/decision") == "forbid"
        yield AuditedRequest(account, right, entry["requestURI"], not refused)


def rights() -> dict[str, set[Right]]:
    """Return the rights that the roles of the charts grant to each account."""
    found: dict[str, set[Right]] = {}
    for chart in CHARTS:
        rendered = objects(chart)
        roles = {
            (each["kind"], each["metadata"]["name"]): each["rules"]
            for each in rendered
            if each["kind"] in ("Role", "ClusterRole")
        }
        for binding in rendered:
            if binding["kind"] in ("RoleBinding", "ClusterRoleBinding"):
                rules = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]), [])
                for subject in binding["subjects"]:
                    found.setdefault(subject["name"], set()).update(_expanded(rules))
    return found


def _expanded(rules: list[dict[str, Any]]) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.fixture(scope="module")
def requests(cluster: Cluster) -> list[AuditedRequest]:
    found = list(audited_requests(cluster))
    if not {"gpu-scheduler-scheduler", "gpufleet"} <= {each.account for each in found}:
        pytest.skip("no journey ran before: pytest e2e/journeys e2e/test_rbac.py")
    return found


def test_no_request_was_refused(requests: list[AuditedRequest], observations: Observations) -> None:
    refused = sorted(
        {f"{each.account}: {each.right[0]} {each.path}" for each in requests if not each.allowed}
    )
    assert refused == []
    for account in sorted({each.account for each in requests}):
        count = sum(each.account == account for each in requests)
        observations.add(f"requests of {account}", f"{count}, none refused")


def test_every_right_was_used_or_has_a_reason(
    requests: list[AuditedRequest], observations: Observations
) -> None:
    used = {(each.account, each.right) for each in requests}
    unused = {
        account: {right for right in granted if (account, right) not in used}
        for account, granted in rights().items()
    }
    for account, granted in sorted(rights().items()):
        observations.add(account, f"{len(granted)} rights, {len(granted - unused[account])} used")
    for account, reasons in RARELY_USED.items():
        for (verb, _, resource), reason in sorted(reasons.items()):
            observations.add(f"{account}: {verb} {resource}", f"rarely: {reason}")
    for account, reasons in RARELY_USED.items():
        assert reasons.keys() <= rights()[account], "a reason for a right that is not granted"
    explained = {account: set(RARELY_USED.get(account, {})) for account in unused}
    surplus = {account: sorted(missing - explained[account]) for account, missing in unused.items()}
    assert {account: rest for account, rest in surplus.items() if rest} == {}
