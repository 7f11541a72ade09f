"""Mark nodes for Kubernetes: conditions and the taint.

Taints are one list that all writers share, so only our own entry is added or removed, at the version of the Node that was
read. It is ours by its key and value: a taint with the same key that a human set stays, and so does a human's cordon
(`spec.unschedulable`), which is never written. Conditions are owned by server-side apply.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gpufleet.kubernetes import NODES, KubeClient
from gpufleet.kubernetes.client.errors import Conflict, Invalid
from gpufleet.kubernetes.client.patch import apply, json, merge
from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus
from gpufleet.kubernetes.objects import Condition, Node, Taint

TAINT = Taint("gpu.scheduling/unhealthy", "repair", "NoSchedule")
"""Set while a node is out of service; its value says that `gpufleet repair` set it."""
MANAGER = "gpufleet-repair"
HEALTHY, DEGRADED = "GpuHealthy", "GpuDegraded"
_MAX_MESSAGE = 1024


def is_tainted(node: Node) -> bool:
    """Return whether the node has our taint."""
    return TAINT in node.spec.taints


async def set_taint(client: KubeClient, node: Node) -> None:
    """Add our taint, unless the node has one like it; raise Conflict if the Node has changed."""
    if any((taint.key, taint.effect) == (TAINT.key, TAINT.effect) for taint in node.spec.taints):
        return
    value = {"key": TAINT.key, "value": TAINT.value, "effect": TAINT.effect}
    if node.spec.taints:
        await _patch(client, node, {"op": "add", "path": "/spec/taints/-", "value": value})
        return
    version = {"resourceVersion": node.metadata.resource_version}
    await client.patch(NODES, node.metadata.name, merge({"metadata": version, "spec": {"taints": [value]}}))


async def remove_taint(client: KubeClient, node: Node) -> None:
    """Remove our taint and nothing else; raise Conflict if the Node has changed."""
    if is_tainted(node):
        await _patch(client, node, {"op": "remove", "path": f"/spec/taints/{node.spec.taints.index(TAINT)}"})


async def _patch(client: KubeClient, node: Node, step: dict[str, Any]) -> None:
    meta = node.metadata
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version}
    try:
        await client.patch(NODES, meta.name, json([unchanged, step]))
    except Invalid as error:  # the test failed
        raise Conflict(str(error), error.status) from error


def conditions(findings: Iterable[FindingStatus], node: Node, now: float) -> list[dict[str, str]] | None:
    """Return our conditions as they should be, or None if the Node has them."""
    findings = list(findings)
    unhealthy = [each for each in findings if each.severity == "Unhealthy"]
    degraded = [each for each in findings if each.severity == "Degraded"]
    wanted = [
        _condition(HEALTHY, not unhealthy, unhealthy, "NoFault", "no GPU is unhealthy"),
        _condition(DEGRADED, bool(degraded), degraded, "NotDegraded", "no GPU is degraded"),
    ]
    before = {each.type: each for each in node.status.conditions}
    if all(_same(before.get(each["type"]), each) for each in wanted):
        return None
    moment = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for each in wanted:
        old = before.get(each["type"])
        kept = old.last_transition_time if old and old.status == each["status"] else None
        each["lastTransitionTime"] = kept.strftime("%Y-%m-%dT%H:%M:%SZ") if kept else moment
    return wanted


async def set_conditions(client: KubeClient, node: str, wanted: list[dict[str, str]]) -> None:
    """Write our conditions."""
    change = apply({"status": {"conditions": wanted}}, manager=MANAGER)
    await client.patch(NODES, node, change, subresource="status")


def _condition(
    type: str, status: bool, findings: list[FindingStatus], reason: str, message: str
) -> dict[str, str]:
    if findings:
        reason = "".join(part.capitalize() for part in findings[0].signal.split("-"))
        message = "; ".join(_sentence(each) for each in findings)
    return {"type": type, "status": str(status), "reason": reason, "message": message[:_MAX_MESSAGE]}


def _sentence(finding: FindingStatus) -> str:
    return f"GPU {finding.gpu}: {finding.message}" if finding.gpu is not None else finding.message


def _same(found: Condition | None, wanted: dict[str, str]) -> bool:
    if found is None:
        return False
    return (found.status, found.reason, found.message) == (
        wanted["status"],
        wanted["reason"],
        wanted["message"],
    )
