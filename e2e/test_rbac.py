"""The rights in the charts, held against what was done with them: the audit log of the journeys before.

Every rule must have been used, verb by verb and resource by resource, and nothing may have been refused. A right that
no journey needs is either taken away or listed here with the reason why it is there.
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
    """A request of one of our service accounts, as the audit log has it."""

    account: str
    right: Right
    path: str
    allowed: bool


RARELY: dict[str, dict[Right, str]] = {
    "gpu-scheduler-agent": {
        (
            "create",
            "gpu.scheduling",
            "gpunodestatuses",
        ): "asked beside patch, by the patch that makes the report",
        ("patch", "events.k8s.io", "events"): "counts up an event that repeats",
    },
    "gpu-scheduler-scheduler": {
        ("patch", "events.k8s.io", "events"): "counts up an event that repeats",
    },
    "gpu-scheduler-webhook": {
        ("get", "gpu.scheduling", "gpuclaims"): "a claim of which the watch has not told yet",
        ("update", "", "secrets"): "a certificate is renewed, once in two months",
    },
}
"""Rights that a run may do without, and what they are for."""


def deeds(cluster: Cluster) -> Iterator[AuditedRequest]:
    """What the accounts of both charts did, in any namespace."""
    accounts = set(rights())
    for entry in cluster.audit():
        user = entry["user"].get("username", "")  # none where the server did not get to know who asked
        account = user.rpartition(":")[2]
        asked = entry.get("objectRef")
        if not user.startswith("system:serviceaccount:") or account not in accounts or not asked:
            continue
        resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
        right = (entry["verb"], asked.get("apiGroup", ""), resource)
        refused = entry["responseStatus"].get("code") == 403
        yield AuditedRequest(account, right, entry["requestURI"], not refused)


def rights() -> dict[str, set[Right]]:
    """What the roles of the charts allow each account to do."""
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
                    found.setdefault(subject["name"], set()).update(_spelled_out(rules))
    return found


def _spelled_out(rules: list[dict[str, Any]]) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.fixture(scope="module")
def done(cluster: Cluster) -> list[AuditedRequest]:
    found = list(deeds(cluster))
    if not {"gpu-scheduler-scheduler", "gpufleet"} <= {deed.account for deed in found}:
        pytest.skip("no journey was made in this run: pytest e2e/journeys e2e/test_rbac.py")
    return found


def test_nothing_was_refused(done: list[AuditedRequest], observations: Observations) -> None:
    refused = sorted({f"{deed.account}: {deed.right[0]} {deed.path}" for deed in done if not deed.allowed})
    assert refused == []
    for account in sorted({deed.account for deed in done}):
        count = sum(deed.account == account for deed in done)
        observations.add(f"requests of {account}", f"{count}, none refused")


def test_every_right_was_used_or_is_rarely_needed_for_a_reason(
    done: list[AuditedRequest], observations: Observations
) -> None:
    used = {(deed.account, deed.right) for deed in done}
    unused = {
        account: {right for right in granted if (account, right) not in used}
        for account, granted in rights().items()
    }
    for account, granted in sorted(rights().items()):
        observations.add(account, f"{len(granted)} rights, {len(granted - unused[account])} used")
    for account, reasons in RARELY.items():
        for (verb, _, resource), reason in sorted(reasons.items()):
            observations.add(f"{account}: {verb} {resource}", f"rarely: {reason}")
    for account, reasons in RARELY.items():
        assert reasons.keys() <= rights()[account], "what is not granted needs no reason"
    explained = {account: set(RARELY.get(account, {})) for account in unused}
    surplus = {account: sorted(missing - explained[account]) for account, missing in unused.items()}
    assert {account: rest for account, rest in surplus.items() if rest} == {}
