"""Test half a minute of claims, device-plugin pods, ResourceClaims and Jobs of Kueue at the same time."""

from typing import Any

import pytest

from e2e.cluster import Cluster, Unavailable
from e2e.fakenodes import FakeNodes
from e2e.kueue import programs
from e2e.mixed.checks import overcommitted
from e2e.mixed.run import run
from e2e.system import Observations

SECONDS = 30


def bound(name: str, at: int, gpus: str = "") -> dict[str, Any]:
    annotations = {"gpu.scheduling/allocated": f"a:{gpus}"} if gpus else {}
    return {
        "stage": "ResponseComplete",
        "verb": "create",
        "objectRef": {"resource": "pods", "subresource": "binding", "name": name},
        "responseStatus": {"code": 201},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{at:02d}Z",
        "requestObject": {"metadata": {"uid": name, "annotations": annotations}, "target": {"name": "a"}},
    }


def leased(name: str, at: int) -> dict[str, Any]:
    return {
        "stage": "ResponseComplete",
        "verb": "create",
        "objectRef": {"resource": "leases", "name": "gpu-a-0"},
        "responseStatus": {"code": 201},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{at:02d}Z",
        "responseObject": {"spec": {"holderIdentity": name}},
    }


def ended(name: str) -> dict[str, Any]:
    return {
        "stage": "ResponseComplete",
        "verb": "patch",
        "objectRef": {"resource": "pods", "subresource": "status", "name": name},
        "responseStatus": {"code": 200},
        "responseObject": {"status": {"phase": "Succeeded"}},
    }


def test_a_claim_that_takes_the_gpu_of_a_known_device_plugin_pod_is_found() -> None:
    plugin, claim = bound("plugin-0", 1), bound("claim-0", 9, "0,1")
    [fault] = overcommitted([plugin, claim], {"a": 2})
    assert fault == "claim-0 made 3 of 2 on a at 00:00:09, 8.0 s after the last device-plugin pod"
    assert overcommitted([plugin, claim], {"a": 3}) == []
    assert overcommitted([plugin, ended("plugin-0"), claim], {"a": 2}) == []


def test_a_device_plugin_pod_that_comes_later_is_not_the_fault_of_the_claim() -> None:
    assert overcommitted([bound("claim-0", 1, "0,1"), bound("plugin-0", 5)], {"a": 2}) == []
    assert overcommitted([bound("plugin-0", 5), bound("claim-0", 5, "0,1")], {"a": 2}) == []
    decided_before = [leased("claim-0", 4), bound("plugin-0", 5), bound("claim-0", 20, "0,1")]
    assert overcommitted(decided_before, {"a": 2}) == []
    decided_after = [bound("plugin-0", 5), leased("claim-0", 19), bound("claim-0", 20, "0,1")]
    assert len(overcommitted(decided_after, {"a": 2})) == 1


def test_no_gpu_has_two_owners_under_a_mixed_load(
    cluster: Cluster, fake_nodes: FakeNodes, observations: Observations
) -> None:
    try:
        kueue = programs.find(print)
    except Unavailable as reason:
        pytest.skip(f"no Kueue: {reason}")
    lines = run(cluster, fake_nodes, kueue, SECONDS, seed=1)
    for line in lines:
        observations.add(str(line["what"]), line["observed"])
    assert [line for line in lines if not line.get("ok", True)] == []
    assert lines[0]["observed"].keys() == {"claim", "plugin", "resource", "job"}  # type: ignore[attr-defined]
