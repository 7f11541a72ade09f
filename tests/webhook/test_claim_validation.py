"""The webhook validates claims as the rules of the CustomResourceDefinition do."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.webhook.conftest import CLAIMS, HOOKS, Cluster

from gpufleet.webhook.claim_validation import validate_claim
from gpufleet.webhook.wire import AdmissionRequest
from kubelite.json import Json


def claim(**spec: Any) -> Json:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "c", "namespace": "jobs"},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"devices": {"count": 1}}, ""),
        ({"devices": {"count": 0}}, "spec.devices.count: count must be between 1 and 64"),
        ({"devices": {"count": 65}}, "spec.devices.count"),
        (
            {"devices": {"count": 1, "policy": "preferIds"}},
            "spec.devices.preferIds: the policy preferIds needs",
        ),
        ({"devices": {"count": 1, "share": 0.5}}, "share is for claims with exclusivity Shared only"),
        ({"devices": {"count": 1, "share": 1, "exclusivity": "Shared"}}, ""),
        (
            {"devices": {"count": 1, "migProfile": "1g.10gb"}},
            "migProfile is for claims with exclusivity MIG only",
        ),
        (
            {"devices": {"count": 2, "policy": "spread"}, "topology": {"mode": "Required"}},
            "spec.topology: the policy",
        ),
        ({"devices": {"count": "two"}}, "Expected `int`, got `str` - at `$.spec.devices.count`"),
        ({"devices": {"count": 1, "policy": "best"}}, "Invalid enum value 'best'"),
        ({}, "missing required field `devices`"),
    ],
)
def test_a_refusal_names_the_field(spec: Json, words: str) -> None:
    refusal = validate_claim(AdmissionRequest(uid="u", object=claim(**spec))).refusal
    assert (words in refusal) if words else refusal == ""


def test_all_broken_rules_are_reported_together() -> None:
    refusal = validate_claim(
        AdmissionRequest(uid="u", object=claim(devices={"count": 0, "share": 2.0}))
    ).refusal
    assert refusal.count("spec.devices.") == 3


def test_a_stored_claim_that_breaks_newer_rules_can_be_released() -> None:
    stored = claim(devices={"count": 65})
    released = {**stored, "metadata": {**stored["metadata"], "finalizers": []}}
    assert (
        validate_claim(
            AdmissionRequest(uid="u", operation="UPDATE", object=released, old_object=stored)
        ).refusal
        == ""
    )
    changed = claim(devices={"count": 66})
    assert validate_claim(
        AdmissionRequest(uid="u", operation="UPDATE", object=changed, old_object=stored)
    ).refusal


_specs = st.fixed_dictionaries(
    {
        "devices": st.fixed_dictionaries(
            {"count": st.sampled_from([0, 1, 2, 64, 65])},
            optional={
                "policy": st.sampled_from(["contiguous", "spread", "preferIds"]),
                "preferIds": st.lists(st.integers(0, 63), max_size=2, unique=True),
                "exclusivity": st.sampled_from(["Exclusive", "Shared", "MIG"]),
                "share": st.sampled_from([0, 0.005, 0.5, 1, 1.5]),
                "migProfile": st.just("1g.10gb"),
            },
        )
    },
    optional={
        "topology": st.fixed_dictionaries({"mode": st.sampled_from(["Required", "Preferred", "Ignore"])})
    },
)


async def test_the_webhook_and_the_definition_agree_on_every_claim(cluster: Cluster) -> None:
    cases: list[Json] = []

    @settings(max_examples=120, deadline=None, database=None)
    @given(_specs)
    def collect(spec: Json) -> None:
        cases.append(spec)

    collect()
    verdicts = set()
    for spec in cases:
        stored = await cluster.send("POST", f"{CLAIMS}?dryRun=All", claim(**spec))
        ours = validate_claim(AdmissionRequest(uid="u", object=claim(**spec)))
        assert bool(ours.refusal) == ("refused" in stored), (spec, stored, ours.refusal)
        verdicts.add(bool(ours.refusal))
    assert verdicts == {True, False}


async def test_an_api_server_without_cel_calls_the_webhook(cluster: Cluster) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuclaims.gpu.scheduling"
    definition = await cluster.client.read_json(path)
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["x-kubernetes-validations"]
    del spec["properties"]["devices"]["x-kubernetes-validations"]
    await cluster.client.write_json("PUT", path, definition)
    assert "refused" not in await cluster.send("POST", f"{CLAIMS}?dryRun=All", claim(devices={"count": 0}))
    async with cluster.webhook():
        refused = await cluster.send("POST", CLAIMS, claim(devices={"count": 0}))
        assert refused["refused"] == 422
        assert "count must be between 1 and 64" in refused["message"]
        await cluster.claim("good")
        changed = await cluster.send(
            "PATCH", f"{CLAIMS}/good", {"spec": {"devices": {"count": 3}}}, "application/merge-patch+json"
        )
        assert changed["refused"] == 422
        assert "the spec of a GpuClaim cannot be changed" in changed["message"]
        note = {"metadata": {"annotations": {"a": "b"}}}
        kept = await cluster.send("PATCH", f"{CLAIMS}/good", note, "application/merge-patch+json")
        assert kept["spec"]["devices"]["count"] == 2
    found = await cluster.client.read_json(f"{HOOKS}/validatingwebhookconfigurations/gpufleet-webhook")
    assert [hook["failurePolicy"] for hook in found["webhooks"]] == ["Ignore"]
