"""A pod with GPUs keeps them: no update of it or of its subresources changes what was allocated."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.webhook.conftest import PODS, Cluster, Json, pod

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.webhook.claim_validation import validate_claim
from gpufleet.webhook.pod_admission import (
    KEEP_NODE,
    PodRules,
    admit_create,
    admit_update,
    check_pod,
    claim_name,
)
from gpufleet.webhook.wire import AdmissionRequest

BINDING = {ALLOCATED: "node-a:4,5", VISIBLE: "4,5"}
SEALED = {CLAIM: "two", **BINDING}
MERGE = "application/merge-patch+json"


@asynccontextmanager
async def allocated(cluster: Cluster) -> AsyncIterator[None]:
    """Run the webhook with a pod that is bound with GPUs."""
    await cluster.claim()
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod())
        await cluster.client.bind("jobs", "train", made["metadata"]["uid"], "node-a", BINDING)
        yield


async def annotations(cluster: Cluster) -> Json:
    found: Json = (await cluster.send("GET", f"{PODS}/train"))["metadata"]["annotations"]
    return {key: value for key, value in found.items() if key not in KEEP_NODE}


@pytest.mark.parametrize("path", ["train", "train/status"])
@pytest.mark.parametrize(
    "change",
    [
        {CLAIM: None},
        {CLAIM: "other"},
        {VISIBLE: "0,1,2,3"},
        {ALLOCATED: None, VISIBLE: None, CLAIM: None},
        None,
    ],
)
async def test_an_allocated_pod_keeps_its_annotations(
    cluster: Cluster, path: str, change: Json | None
) -> None:
    async with allocated(cluster):
        body = {"metadata": {"annotations": change}, "status": {"phase": "Running"}}
        found = await cluster.send("PATCH", f"{PODS}/{path}", body, MERGE)
        assert "refused" not in found
        assert all("was not changed" in warning for warning in cluster.warnings)
        assert cluster.warnings
        assert await annotations(cluster) == SEALED


async def test_a_status_without_our_annotations_passes(cluster: Cluster) -> None:
    async with allocated(cluster):
        body = {"metadata": {"annotations": {"note": "x"}}, "status": {"phase": "Running"}}
        await cluster.send("PATCH", f"{PODS}/train/status", body, MERGE)
        assert cluster.warnings == []
        assert await annotations(cluster) == {**SEALED, "note": "x"}


async def test_the_claim_of_a_waiting_pod_may_change(cluster: Cluster) -> None:
    await cluster.claim()
    async with cluster.webhook():
        await cluster.send("POST", PODS, pod())
        await cluster.send("PATCH", f"{PODS}/train", {"metadata": {"annotations": {CLAIM: "other"}}}, MERGE)
        assert await annotations(cluster) == {CLAIM: "other"}


def test_a_debug_container_gets_the_variables_although_the_claim_is_left_out() -> None:
    """The API server keeps the pod's annotations, whatever such a request says."""
    new = pod(claim=None, ephemeralContainers=[{"name": "debug", "image": "i"}])
    request = AdmissionRequest(
        uid="u", operation="UPDATE", sub_resource="ephemeralcontainers", object=new, old_object=pod()
    )
    [operation] = admit_update(request, PodRules()).patch
    assert operation["path"] == "/spec/ephemeralContainers/0/env"
    assert {each["name"] for each in operation["value"]} >= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


# -- malformed reviews -----------------------------------------------------------------------

DEEP = b"[" * 50_000 + b"]" * 50_000
ODD = [
    {"metadata": []},
    {"metadata": {"annotations": ["x"]}},
    {"metadata": {"annotations": {CLAIM: {"a": 1}}}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": "x"},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"containers": {"name": "x"}}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"containers": ["x"]}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"containers": [{"name": "c", "env": "x"}]}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"containers": [{"name": "c", "env": [1]}]}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"containers": [{"name": "c", "resources": 1}]}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"schedulingGates": ["x"], "containers": []}},
    {"metadata": {"annotations": {CLAIM: "two"}}, "spec": {"containers": [{"name": "c"}] * 1001}},
]
MANY_VALUES = b"[" + b"{}," * 250_000 + b"{}]"


async def test_odd_shapes_and_depth_bombs_are_a_400(cluster: Cluster) -> None:
    await cluster.claim(gangRef="g")
    bodies = [
        (path, msgspec.json.encode({"request": {"uid": "u", "namespace": "jobs", **states}}))
        for each in ODD
        for path, states in (
            ("/mutate", {"object": each}),
            ("/mutate", {"operation": "UPDATE", "object": each, "oldObject": each}),
            ("/mutate", {"operation": "UPDATE", "object": pod(), "oldObject": each}),
        )
    ]
    for path in ("/mutate", "/validate"):
        bodies.append((path, b'{"request":{"uid":"u","object":{"spec":%b}}}' % DEEP))
        bodies.append((path, b'{"request":{"uid":"u","object":{"metadata":{"annotations":%b}}}}' % DEEP))
        bodies.append((path, b'{"request":{"uid":"u","object":{"status":%b}}}' % MANY_VALUES))
    async with cluster.webhook() as running, aiohttp.ClientSession() as session:
        assert running.keys.ring is not None
        trusted = ssl.create_default_context(cadata=running.keys.ring.bundle.decode())
        for path, body in bodies:
            async with session.post(f"https://127.0.0.1:{running.port}{path}", data=body, ssl=trusted) as got:
                assert got.status == 400, (path, body[:300])


_keys = st.sampled_from(
    [
        *("metadata", "annotations", "spec", "containers", "initContainers", "ephemeralContainers", "env"),
        *("name", "value", "resources", "limits", "nvidia.com/gpu", "schedulingGates", "nodeName", "devices"),
        *("count", "topology", "selector", "matchLabels", CLAIM, ALLOCATED, VISIBLE),
    ]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "two", "0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)
_objects = st.none() | st.dictionaries(_keys, _json, max_size=4)


@settings(max_examples=300, deadline=None)
@given(new=_objects, old=_objects, sub=st.sampled_from(["", "status", "ephemeralcontainers"]))
def test_any_shape_is_reviewed_or_refused(new: Any, old: Any, sub: str) -> None:
    request = AdmissionRequest(uid="u", sub_resource=sub, object=new, old_object=old)
    with suppress(InvalidRequest):
        validate_claim(request)
    with suppress(InvalidRequest):
        check_pod(request)
        claim_name(request)
        admit_create(request, None, PodRules())
        admit_update(request, PodRules())
