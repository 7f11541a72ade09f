"""Admission of pods, through an API server that calls the webhook."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.webhook.conftest import PODS, Cluster, Json, pod

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, REQUESTED, VISIBLE
from gpufleet.webhook.pod_admission import KEEP_NODE, PodRules, admit_create, admit_update
from gpufleet.webhook.wire import AdmissionRequest, AdmissionResponse, UserInfo, encode_review
from kubelite.patch.json_patch import json_patch

REFERENCE = {
    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['gpu.scheduling/visible-devices']"}
}
NAMES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
OURS = {**dict.fromkeys(NAMES, REFERENCE), **ORDER}
TRUSTED = "system:serviceaccount:gpufleet:scheduler"


def variables(found: Json, kind: str = "containers") -> list[dict[str, Any]]:
    return [
        {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in each.get("env", ())}
        for each in found["spec"][kind]
    ]


async def test_every_container_gets_a_reference_to_the_annotation_of_the_binding(cluster: Cluster) -> None:
    await cluster.claim()
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod())
        assert variables(made) == [OURS] * 2
        assert variables(made, "initContainers") == [OURS]
        assert cluster.warnings == []


async def test_a_pod_without_our_annotations_is_left_alone(cluster: Cluster) -> None:
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(claim=None))
        assert variables(made) == [{}, {}]


async def test_a_users_own_value_is_replaced_with_a_warning(cluster: Cluster) -> None:
    await cluster.claim()
    env = [
        {"name": "A", "value": "1"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2,3"},
        {"name": "ROCR_VISIBLE_DEVICES", "value": "1"},
    ]
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(containers=[{"name": "main", "image": "i", "env": env}]))
        assert variables(made) == [{**OURS, "A": "1"}]
        assert cluster.warnings == [
            "CUDA_VISIBLE_DEVICES of container main was replaced: the claim decides which GPUs it sees",
            "ROCR_VISIBLE_DEVICES of container main was removed: it would renumber the GPUs of the claim",
        ]


async def test_an_image_or_a_user_can_not_choose_the_devices_of_the_container_runtime(
    cluster: Cluster,
) -> None:
    await cluster.claim()
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_DEVICE_ORDER", "value": "FASTEST_FIRST"},
    ]
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(containers=[{"name": "main", "image": "i", "env": env}]))
        assert variables(made) == [OURS]
        assert cluster.warnings == [
            "NVIDIA_VISIBLE_DEVICES of container main was replaced: the claim decides which GPUs it sees",
            "CUDA_DEVICE_ORDER of container main was replaced: the claim decides which GPUs it sees",
        ]


async def test_a_pod_gets_the_runtime_class_of_the_settings_unless_it_names_one(cluster: Cluster) -> None:
    await cluster.claim()
    async with cluster.webhook(rules=PodRules(runtime_class="nvidia")):
        made = await cluster.send("POST", PODS, pod())
        assert made["spec"]["runtimeClassName"] == "nvidia"
        assert cluster.warnings == []
        own = await cluster.send("POST", PODS, pod("own", runtimeClassName="kata"))
        assert own["spec"]["runtimeClassName"] == "kata"
        assert cluster.warnings == [
            "the pod keeps its runtime class kata: it gets its GPUs only if that runtime delivers them as nvidia does"
        ]
        plain = await cluster.send("POST", PODS, pod("plain", claim=None))
        assert "runtimeClassName" not in plain["spec"]


async def test_a_pod_requests_the_extended_resource_of_its_claim(cluster: Cluster) -> None:
    await cluster.claim()
    cpu = {"requests": {"cpu": "2"}}
    written = {"limits": {"gpu.scheduling/gpu": "2", "cpu": "1"}}
    containers: list[Json] = [
        {"name": "main", "image": "i", "resources": cpu},
        {"name": "side", "image": "i"},
    ]
    async with cluster.webhook(rules=PodRules(extended_resources=True)):
        made = await cluster.send("POST", PODS, pod(containers=containers))
        first, second = (each.get("resources", {}) for each in made["spec"]["containers"])
        assert first["requests"] == {"cpu": "2", "gpu.scheduling/gpu": "2"}
        assert first["limits"] == {"gpu.scheduling/gpu": "2"}
        assert second == {}
        assert cluster.warnings == []
        own = await cluster.send(
            "POST", PODS, pod("own", containers=[{"name": "main", "image": "i", "resources": written}])
        )
        assert own["spec"]["containers"][0]["resources"]["limits"] == {"gpu.scheduling/gpu": "2", "cpu": "1"}
        assert cluster.warnings == [], "the user wrote what the claim asks for"
        less = {"limits": {"gpu.scheduling/gpu": "1"}}
        cheat: list[Json] = [
            {"name": "main", "image": "i", "resources": less},
            {"name": "b", "image": "i", "resources": less},
        ]
        fixed = await cluster.send("POST", PODS, pod("cheat", containers=cheat))
        assert [each["resources"]["limits"] for each in fixed["spec"]["containers"]] == [
            {"gpu.scheduling/gpu": "2"},
            {},
        ]
        assert cluster.warnings == [
            f"the requests of container {name} for gpu.scheduling/gpu were replaced: "
            "the claim asks for 2 of gpu.scheduling/gpu"
            for name in ("main", "b")
        ]
        plain = await cluster.send("POST", PODS, pod("plain", claim=None))
        assert not plain["spec"]["containers"][0].get("resources")


async def test_autoscalers_keep_the_nodes_of_claims_unless_the_user_says_otherwise(cluster: Cluster) -> None:
    await cluster.claim()
    own = {"karpenter.sh/do-not-disrupt": "4h"}
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod())
        assert made["metadata"]["annotations"] == {CLAIM: "two", **KEEP_NODE}
        made = await cluster.send("POST", PODS, pod("own", annotations=own))
        assert made["metadata"]["annotations"] == {CLAIM: "two", **KEEP_NODE, **own}
        plain = await cluster.send("POST", PODS, pod("plain", claim=None))
        assert not plain["metadata"].get("annotations")
    async with cluster.webhook(rules=PodRules(keep_nodes=False)):
        made = await cluster.send("POST", PODS, pod("off"))
        assert made["metadata"]["annotations"] == {CLAIM: "two"}


async def test_only_pods_with_a_claim_tolerate_the_taint_of_claim_nodes(cluster: Cluster) -> None:
    await cluster.claim()
    mine = {"key": "mine", "operator": "Exists"}
    ours = {"key": "gpu.scheduling/claims", "operator": "Exists"}
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(tolerations=[mine]))
        assert made["spec"]["tolerations"][:2] == [mine, ours]
        plain = await cluster.send("POST", PODS, pod("plain", claim=None))
        assert ours not in plain["spec"].get("tolerations", ())
    async with cluster.webhook(rules=PodRules(claim_taint="")):
        made = await cluster.send("POST", PODS, pod("off"))
        assert ours not in made["spec"].get("tolerations", ())


async def test_shares_and_mig_instances_have_resources_of_their_own(cluster: Cluster) -> None:
    await cluster.claim(devices={"count": 2, "exclusivity": "Shared", "share": 0.25})
    async with cluster.webhook(rules=PodRules(extended_resources=True)):
        made = await cluster.send("POST", PODS, pod())
        requests = made["spec"]["containers"][0]["resources"]["requests"]
        assert requests == {"gpu.scheduling/gpu-share": "50"}


async def test_forged_annotations_do_not_survive(cluster: Cluster) -> None:
    await cluster.claim()
    forged = {ALLOCATED: "node-a:0,1", VISIBLE: "0,1"}
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(annotations=forged))
        assert made["metadata"]["annotations"] == {CLAIM: "two", **KEEP_NODE}
        assert len(cluster.warnings) == 2
        bare = await cluster.send("POST", PODS, pod("bare", None, annotations=forged, nodeName="node-a"))
        assert "annotations" not in bare["metadata"] or not bare["metadata"]["annotations"]
        late = {"metadata": {"annotations": {VISIBLE: "0,1,2,3,4,5,6,7", "note": "x"}}}
        changed = await cluster.send("PATCH", f"{PODS}/train", late, "application/merge-patch+json")
        assert changed["metadata"]["annotations"] == {CLAIM: "two", "note": "x", **KEEP_NODE}
        assert cluster.warnings == [
            f"annotation {VISIBLE} was not changed: only the scheduler decides which GPUs a pod gets"
        ]


async def test_the_annotation_of_a_binding_can_not_be_changed(cluster: Cluster) -> None:
    await cluster.claim()
    binding = {ALLOCATED: "node-a:4,5", VISIBLE: "4,5"}
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod())
        await cluster.client.bind("jobs", "train", made["metadata"]["uid"], "node-a", binding)
        theft: Json = {"metadata": {"annotations": {VISIBLE: "0", ALLOCATED: None}}}
        found = await cluster.send("PATCH", f"{PODS}/train", theft, "application/merge-patch+json")
        assert found["metadata"]["annotations"] == {CLAIM: "two", **KEEP_NODE, **binding}
        whole: Json = {"metadata": {"annotations": None}}
        found = await cluster.send("PATCH", f"{PODS}/train", whole, "application/merge-patch+json")
        assert found["metadata"]["annotations"] == {CLAIM: "two", **binding}


async def test_members_of_a_gang_are_gated_and_get_the_claims_scheduler(cluster: Cluster) -> None:
    await cluster.claim(gangRef="job", schedulerName="gpu-scheduler")
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(schedulingGates=[{"name": "mine"}]))
        assert made["spec"]["schedulingGates"] == [{"name": "mine"}, {"name": GANG_GATE}]
        assert made["spec"]["schedulerName"] == "gpu-scheduler"


async def test_any_pod_that_names_a_claim_is_scheduled_by_gpufleet_unless_it_names_a_scheduler(
    cluster: Cluster,
) -> None:
    await cluster.claim()
    async with cluster.webhook(rules=PodRules(scheduler_name="gpus")):
        made = await cluster.send("POST", PODS, pod(schedulerName="default-scheduler"))
        assert made["spec"]["schedulerName"] == "gpus"
        assert cluster.warnings == []
        later = await cluster.send("POST", PODS, pod("later", claim="missing"))
        assert later["spec"]["schedulerName"] == "gpus", "the claim may come later"
        own = await cluster.send("POST", PODS, pod("own", schedulerName="volcano"))
        assert own["spec"]["schedulerName"] == "volcano"
        assert cluster.warnings == [
            "the pod keeps its scheduler volcano: it gets no GPU unless gpus schedules it; remove schedulerName"
        ]
        plain = await cluster.send("POST", PODS, pod("plain", claim=None))
        assert plain["spec"].get("schedulerName") in (None, "default-scheduler")


async def test_a_missing_claim_is_a_warning(cluster: Cluster) -> None:
    async with cluster.webhook():
        made = await cluster.send("POST", PODS, pod(claim="later"))
        assert variables(made)[0] == OURS
        assert cluster.warnings == [
            "there is no GpuClaim later in this namespace yet: the pod waits until there is one"
        ]
        refused = await cluster.send("POST", PODS, pod("nameless", claim=""))
        assert "annotation gpu.scheduling/claim is empty" in refused["message"]


def requesting(*amounts: Json, name: str = "train", **changes: Any) -> Json:
    """Return a pod whose containers have these limits, and the same requests as the API server fills in."""
    return pod(
        name,
        initContainers=[],
        containers=[
            {"name": f"c{at}", "image": "i", "resources": {"limits": each, "requests": dict(each)}}
            for at, each in enumerate(amounts)
        ],
        **changes,
    )


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
@pytest.mark.parametrize("extended", [False, True])
async def test_a_request_for_the_gpus_of_the_claim_is_replaced_by_it(
    cluster: Cluster, resource: str, extended: bool
) -> None:
    await cluster.claim()
    async with cluster.webhook(rules=PodRules(extended_resources=extended)):
        made = await cluster.send("POST", PODS, requesting({resource: "2", "cpu": "1"}, {"cpu": "2"}))
        assert cluster.warnings == [
            f"the request for 2 of {resource} was replaced: the claim two gives the pod its GPUs"
        ]
        ours = {"gpu.scheduling/gpu": "2"} if extended else {}
        first, second = (each["resources"] for each in made["spec"]["containers"])
        assert first == {"limits": {"cpu": "1", **ours}, "requests": {"cpu": "1", **ours}}
        assert second == {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
        assert made["metadata"]["annotations"][REQUESTED] == "2"
        assert variables(made) == [OURS] * 2
        spread = await cluster.send("POST", PODS, requesting({resource: "1"}, {resource: "1"}, name="spread"))
        assert spread["metadata"]["annotations"][REQUESTED] == "2"


async def test_the_canonical_form_of_a_large_request_is_no_replaced_request(cluster: Cluster) -> None:
    await cluster.claim("ten", devices={"count": 10, "exclusivity": "Shared", "share": 1.0})
    async with cluster.webhook(rules=PodRules(extended_resources=True)):
        written = {"gpu.scheduling/gpu-share": "1k"}
        container = {"name": "c", "image": "i", "resources": {"limits": written, "requests": written}}
        await cluster.send("POST", PODS, pod(claim="ten", containers=[container]))
        assert cluster.warnings == []


async def test_a_request_for_another_number_of_gpus_than_the_claim_has_is_refused(cluster: Cluster) -> None:
    await cluster.claim()
    async with cluster.webhook():
        for amounts, said in (
            (
                [{"nvidia.com/gpu": "1"}],
                "the pod requests 1 of nvidia.com/gpu and its claim two asks for 2 GPUs",
            ),
            ([{"nvidia.com/gpu": "2"}] * 2, "the pod requests 4 of nvidia.com/gpu"),
            ([{"nvidia.com/gpu": "2k"}], "the pod requests 2000 of nvidia.com/gpu"),
            (
                [{"nvidia.com/gpu.shared": "2"}],
                "also requests nvidia.com/gpu.shared: it would hold GPUs twice",
            ),
            ([{"nvidia.com/mig-1g.10gb": "2"}], "it would hold GPUs twice"),
            (
                [{"nvidia.com/gpu": "2", "amd.com/gpu": "2"}],
                "also requests amd.com/gpu, nvidia.com/gpu: it would",
            ),
        ):
            refused = await cluster.send("POST", PODS, requesting(*amounts))
            assert refused["refused"] == 422
            assert said in refused["message"]


async def test_a_request_beside_a_claim_that_does_not_exist_yet_is_kept_for_the_scheduler(
    cluster: Cluster,
) -> None:
    async with cluster.webhook():
        made = await cluster.send(
            "POST", PODS, requesting({"nvidia.com/gpu": "4"}, annotations={REQUESTED: "2"})
        )
        assert made["metadata"]["annotations"][REQUESTED] == "4"
        assert made["spec"]["containers"][0]["resources"] == {"limits": {}, "requests": {}}
        assert cluster.warnings == [
            "the request for 4 of nvidia.com/gpu was replaced: the claim two gives the pod its GPUs",
            "there is no GpuClaim two in this namespace yet: the pod waits until there is one",
        ]


async def test_an_operator_may_refuse_or_admit_requests_beside_claims(cluster: Cluster) -> None:
    await cluster.claim()
    for amount in ("1", "2"):
        greedy = requesting({"nvidia.com/gpu": amount}, name=f"p{amount}")
        async with cluster.webhook(rules=PodRules(device_requests="refuse")):
            refused = await cluster.send("POST", PODS, greedy)
            assert refused["refused"] == 422
            assert "also requests nvidia.com/gpu: it would hold GPUs twice" in refused["message"]
        async with cluster.webhook(rules=PodRules(device_requests="warn")):
            made = await cluster.send("POST", PODS, greedy)
            assert variables(made) == [OURS]
            assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": amount}
            assert "it would hold GPUs twice" in cluster.warnings[0]


async def test_a_webhook_that_is_down_blocks_pods_with_claims_only(cluster: Cluster) -> None:
    async with cluster.webhook():
        pass
    refused = await cluster.send("POST", PODS, pod())
    assert refused["refused"] == 500
    assert "failed calling webhook" in refused["message"]
    made = await cluster.send("POST", PODS, pod("plain", None))
    assert made["metadata"]["name"] == "plain"
    label = {"metadata": {"labels": {"a": "b"}}}
    assert "refused" not in await cluster.send(
        "PATCH", f"{PODS}/plain", label, "application/merge-patch+json"
    )


def review(thing: Json, user: str = "ann", **more: Any) -> AdmissionRequest:
    return AdmissionRequest(uid="u", namespace="jobs", user_info=UserInfo(user), object=thing, **more)


def after(thing: Json, verdict: AdmissionResponse) -> Json:
    assert not verdict.refusal
    return json_patch(thing, [dict(operation) for operation in verdict.patch])


BOUND = pod(annotations={ALLOCATED: "node-a:0,1"}, nodeName="node-a")


def test_a_pod_that_a_scheduler_has_bound_gets_the_literal_value() -> None:
    rules = PodRules(schedulers={TRUSTED})
    found = after(BOUND, admit_create(review(BOUND, TRUSTED), None, rules))
    assert variables(found) == [{**dict.fromkeys(NAMES, "0,1"), **ORDER}] * 2
    assert found["metadata"]["annotations"][ALLOCATED] == "node-a:0,1"
    forged = after(BOUND, admit_create(review(BOUND, "ann"), None, rules))
    assert ALLOCATED not in forged["metadata"]["annotations"]
    assert variables(forged)[0] == OURS
    elsewhere = pod(annotations={ALLOCATED: "node-b:0,1"}, nodeName="node-a")
    assert (
        ALLOCATED
        not in after(elsewhere, admit_create(review(elsewhere, TRUSTED), None, rules))["metadata"][
            "annotations"
        ]
    )


def test_a_container_for_debugging_sees_the_gpus_of_its_pod() -> None:
    old = pod(ephemeralContainers=[{"name": "first", "image": "i"}])
    new = pod(ephemeralContainers=[{"name": "first", "image": "i"}, {"name": "second", "image": "i"}])
    request = review(new, operation="UPDATE", sub_resource="ephemeralcontainers", old_object=old)
    found = after(new, admit_update(request, PodRules()))
    assert variables(found, "ephemeralContainers") == [{}, OURS]


@pytest.mark.parametrize("by_resource_claim", [False, True])
@pytest.mark.parametrize("made", [pod(), requesting({"nvidia.com/gpu": "2"})])
def test_a_second_call_changes_nothing_more(made: Json, by_resource_claim: bool) -> None:
    rules = PodRules(by_resource_claim=by_resource_claim)
    once = after(made, admit_create(review(made), None, rules))
    again = admit_create(review(once), None, rules)
    assert again.patch == []


def test_a_resource_claim_replaces_the_request_too() -> None:
    made = requesting({"nvidia.com/gpu": "2"}, {"cpu": "1"})
    found = after(made, admit_create(review(made), None, PodRules(by_resource_claim=True)))
    first, second = (each["resources"] for each in found["spec"]["containers"])
    assert first == {"limits": {}, "requests": {}, "claims": [{"name": "gpu-claim"}]}
    assert second == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}, "claims": [{"name": "gpu-claim"}]}
    assert found["metadata"]["annotations"][REQUESTED] == "2"


_text = st.text("abc/~0:,1.", max_size=8)
_env = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from([*NAMES, "ROCR_VISIBLE_DEVICES", "PATH"]), "value": _text}
    ),
    max_size=4,
)
_containers = st.lists(st.fixed_dictionaries({"name": _text, "env": _env}), max_size=3)


@given(
    notes=st.dictionaries(st.sampled_from([CLAIM, ALLOCATED, VISIBLE, "other"]), _text),
    containers=_containers,
    init=_containers,
    node=st.sampled_from(["", "node-a"]),
)
def test_no_user_can_choose_the_gpus_of_a_pod(
    notes: dict[str, str], containers: list[Json], init: list[Json], node: str
) -> None:
    thing = {
        "metadata": {"name": "p", "annotations": notes},
        "spec": {"containers": containers, "initContainers": init, "nodeName": node},
    }
    verdict = admit_create(review(thing), None, PodRules(schedulers={TRUSTED}))
    if verdict.refusal:
        assert notes.get(CLAIM) == ""
        return
    found = after(thing, verdict)
    left = {key: value for key, value in found["metadata"]["annotations"].items() if key not in KEEP_NODE}
    assert left == {key: value for key, value in notes.items() if key not in (ALLOCATED, VISIBLE)}
    for each in (*found["spec"]["containers"], *found["spec"]["initContainers"]):
        if CLAIM in notes:
            assert [entry for entry in each["env"] if "VISIBLE" in entry["name"]] == [
                {"name": name, "valueFrom": REFERENCE} for name in NAMES
            ]


def test_the_answer_is_an_admission_review() -> None:
    import json

    answer = json.loads(encode_review("u", AdmissionResponse([{"op": "remove", "path": "/a"}], ["w"])))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert json.loads(base64.b64decode(answer["response"].pop("patch"))) == [{"op": "remove", "path": "/a"}]
    assert answer["response"] == {"uid": "u", "allowed": True, "patchType": "JSONPatch", "warnings": ["w"]}
