"""Pods in mode `dra` get a ResourceClaim for the GPUs of their GpuClaim."""

from typing import Any

from tests.webhook.test_pod_admission import after, review

from gpufleet.kubernetes.annotations import CLAIM, GANG_GATE, POD_GROUP_LABEL
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.webhook.pod_admission import PodRules, admit_create, admit_update

RULES = PodRules(by_resource_claim=True)
TWO = GpuClaim(spec=ClaimSpec(ClaimDevices(2)))
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
USES = {"claims": [{"name": "gpu-claim"}]}
Json = dict[str, Any]


def pod(labels: dict[str, str] | None = None, env: list[Json] | None = None, **spec: Any) -> Json:
    main = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}, "env": env or []}
    return {
        "metadata": {"name": "p", "annotations": {CLAIM: "two"}, "labels": labels or {}},
        "spec": {
            "containers": [main],
            "initContainers": [{"name": "fetch", "image": "i"}],
            "schedulerName": "default-scheduler",
            **spec,
        },
    }


def test_every_container_uses_the_claim_of_the_template_for_its_number_of_gpus() -> None:
    spec = after(pod(), admit_create(review(pod()), TWO, RULES))["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu-claim", "resourceClaimTemplateName": "gpu-claim-2"}]
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "1"}, **USES}
    assert spec["initContainers"][0]["resources"] == USES
    assert spec["containers"][0]["env"] == spec["initContainers"][0]["env"] == [VOID]
    assert spec["schedulerName"] == "default-scheduler"
    assert "runtimeClassName" not in spec


def test_a_shared_claim_has_a_template_for_its_share() -> None:
    for share, name in ((0.25, "gpu-claim-1-share-250"), (None, "gpu-claim-1-share-100")):
        claim = GpuClaim(spec=ClaimSpec(ClaimDevices(1, exclusivity="Shared", share=share)))
        [entry] = after(pod(), admit_create(review(pod()), claim, RULES))["spec"]["resourceClaims"]
        assert entry["resourceClaimTemplateName"] == name


def test_a_second_call_changes_nothing() -> None:
    once = after(pod(), admit_create(review(pod()), TWO, RULES))
    assert admit_create(review(once), TWO, RULES).patch == []


def test_claims_of_the_user_stay_but_none_with_our_name() -> None:
    network = {"name": "network", "resourceClaimName": "nic"}
    forged = {"name": "gpu-claim", "resourceClaimTemplateName": "gpu-claim-of-others"}
    given = pod(resourceClaims=[network, forged])
    spec = after(given, admit_create(review(given), TWO, RULES))["spec"]
    ours = {"name": "gpu-claim", "resourceClaimTemplateName": "gpu-claim-2"}
    assert spec["resourceClaims"] == [network, ours]


def test_the_runtime_is_kept_from_adding_all_gpus() -> None:
    given = pod(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "b"}])
    verdict = admit_create(review(given), TWO, RULES)
    assert after(given, verdict)["spec"]["containers"][0]["env"] == [VOID, {"name": "A", "value": "b"}]
    assert "the claim decides which GPUs it sees" in verdict.warnings[0]


def test_the_extenders_scheduler_is_replaced_by_the_clusters_own() -> None:
    given = pod(schedulerName="gpu-scheduler")
    spec = after(given, admit_create(review(given), TWO, RULES))["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    other = pod(schedulerName="mine")
    assert after(other, admit_create(review(other), TWO, RULES))["spec"]["schedulerName"] == "mine"


def test_a_pod_before_its_claim_names_a_template_of_the_claim() -> None:
    verdict = admit_create(review(pod()), None, RULES)
    [entry] = after(pod(), verdict)["spec"]["resourceClaims"]
    assert entry["resourceClaimTemplateName"] == "gpu-claim-of-two"
    assert verdict.warnings == [
        "there is no GpuClaim two in this namespace yet: the pod waits until there is one"
    ]


def test_members_of_gangs_are_gated() -> None:
    gang = GpuClaim(spec=ClaimSpec(ClaimDevices(2), gang_ref="g"))
    gates = [{"name": GANG_GATE}]
    assert after(pod(), admit_create(review(pod()), gang, RULES))["spec"]["schedulingGates"] == gates
    labelled = pod({POD_GROUP_LABEL: "g"})
    assert after(labelled, admit_create(review(labelled), TWO, RULES))["spec"]["schedulingGates"] == gates
    native = pod(schedulingGroup={"podGroupName": "g"})
    assert after(native, admit_create(review(native), TWO, RULES))["spec"]["schedulingGates"] == gates


def test_a_container_for_debugging_gets_no_gpus() -> None:
    old = after(pod(), admit_create(review(pod()), TWO, RULES))
    new = {**old, "spec": {**old["spec"], "ephemeralContainers": [{"name": "debug", "image": "i"}]}}
    request = review(new, operation="UPDATE", sub_resource="ephemeralcontainers", old_object=old)
    found = after(new, admit_update(request, RULES))
    assert found["spec"]["ephemeralContainers"][0]["env"] == [VOID]
