"""The words of claim statuses, events and logs: what users read is what the planner decided."""

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.scheduler.stage import Stage, device
from tests.scheduler.test_gangs import GATED, gang_claim

from gpufleet.kubernetes import EVENTS, Selection
from gpufleet.kubernetes.annotations import REQUESTED
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.objects import Container, Event, Pod, PodSpec, Resources
from gpufleet.scheduler.explain import explain
from gpufleet.scheduler.state.claim_requests import admitted_otherwise

FAST_DISK = {"disk": "fast"}


async def message(stage: Stage, claim: str, text: str) -> str:
    """Wait until the status of a claim contains a text and return all of it."""
    ledger = stage.scheduler.ledger
    await stage.until(lambda: text in ledger.claims["default", claim].status.message)
    return ledger.claims["default", claim].status.message


async def event(stage: Stage, reason: str, note: str = "") -> Event:
    """Return the first event with this reason and text, once there is one."""
    found: list[Event] = []

    async def look() -> bool:
        page = await stage.client.list(EVENTS, Selection(namespace="default"))
        found[:] = [each for each in page.items if each.reason == reason and note in each.note]
        return bool(found)

    for _ in range(300):
        if await look():
            return found[0]
        await stage.reconciled()
    raise AssertionError(f"no event {reason}")


async def test_refused_nodes_are_grouped_by_all_reasons(stage: Stage) -> None:
    for at in range(10):
        await stage.node(f"n{at}", gpus=1, labels={"disk": "slow"} if at < 7 else FAST_DISK)
    for name in ("n7", "n8"):
        await stage._patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    not_ready = {"conditions": [{"type": "Ready", "status": "False"}]}
    await stage._patch("/api/v1/nodes/n9/status", {"status": not_ready})
    nodes = stage.scheduler.ledger.cluster.nodes
    await stage.until(lambda: nodes["n7"].cordoned and nodes["n8"].cordoned and not nodes["n9"].ready)
    await stage.claim("one")
    pod = await stage.pod("p", "one", nodeSelector=FAST_DISK)
    # kube-scheduler excludes all of these nodes itself, so it does not ask for the pod.
    expected = (
        "0/10 nodes fit: 7 have other labels than the pod's node selector or affinity, "
        "2 have been cordoned, 1 is not ready"
    )
    assert stage.scheduler.planner.reason(pod) == expected
    assert await message(stage, "one", expected) == f"Pending: {expected}"
    assert (await event(stage, "GpusUnavailable")).note == expected
    assert explain(stage.scheduler.ledger, "default", "one", pod).reasons == {
        "have other labels than the pod's node selector or affinity": 7,
        "have been cordoned": 2,
        "is not ready": 1,
    }


async def test_the_reasons_of_nodes_are_those_of_the_sentence(stage: Stage) -> None:
    await stage.node("a", devices=[device(0, health="Unhealthy")])
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    ledger = stage.scheduler.ledger
    claim = ledger.claims["default", "one"]
    decided = "Pending: 0/1 nodes fit: 1 is not ready; draining: GPU 0 of a"  # as it was before
    ledger.claims["default", "one"] = replace(claim, status=replace(claim.status, message=decided))
    assert explain(ledger, "default", "one", pod).reasons == {"is not ready": 1}


async def test_nodes_with_unhealthy_gpus_are_a_group_of_their_own(stage: Stage) -> None:
    await stage.node("a", devices=[device(0, health="Unhealthy")])
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert await stage.schedule(pod) == ""
    assert stage.scheduler.planner.reason(pod) == "0/1 nodes fit: 1 has no healthy GPU"


async def test_an_incomplete_gang_says_how_many_members_are_there(stage: Stage) -> None:
    await stage.node("a", gpus=4)
    await stage.group("g", 3)
    await gang_claim(stage, "g")
    await stage.pod("m0", "of-g", **GATED)
    assert await message(stage, "of-g", "1 of 3") == "Pending: gang g: 1 of 3 members exist"
    await stage.pod("m1", "of-g", **GATED)
    assert await message(stage, "of-g", "2 of 3") == "Pending: gang g: 2 of 3 members exist"


async def test_an_allocation_is_a_normal_event_of_the_claim(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("two", 2)
    assert await stage.schedule(await stage.pod("p", "two")) == "a"
    found = await event(stage, "GpusAllocated")
    assert (found.type, found.note) == ("Normal", "Allocated GPUs 0,1 of a to pod p")


async def test_reserved_gpus_are_not_called_allocated(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.group("g", 2)
    await gang_claim(stage, "g")
    members = [await stage.pod(f"m{at}", "of-g", **GATED) for at in range(2)]
    await stage.planned()
    assert await message(stage, "of-g", "Reserved") == "Reserved for 2 of 2 pods, not bound yet"
    assert stage.scheduler.ledger.claims["default", "of-g"].status.phase == "Reserved"
    assert [(await stage.read(pod)).spec.node_name for pod in members] == ["", ""]


async def test_ids_that_are_not_adjacent_under_contiguous_are_mentioned(stage: Stage) -> None:
    await stage.node("a", devices=[device(0), device(1, health="Unhealthy"), device(2)])
    await stage.claim("two", 2, policy="contiguous")
    assert await stage.schedule(await stage.pod("p", "two")) == "a"
    assert (await message(stage, "two", "adjacent")).endswith("; GPU ids 0,2 of a are not adjacent")


async def test_the_phases_of_scheduling_are_named_in_the_logs(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    with capture_logs() as log:
        first = await stage.pod("first", "one")
        assert await stage.schedule(first) == "a"
        assert await stage.schedule(await stage.pod("second", "one")) == ""
        await stage.delete(first)
        await stage.until(lambda: any(entry["event"] == "leases_released" for entry in log))
    phases = {(entry["event"], entry["phase"]) for entry in log if "phase" in entry}
    assert {("gpus_chosen", "Filter"), ("pod_refused", "Filter"), ("leases_released", "Unreserve")} <= phases


@pytest.mark.parametrize(
    ("annotations", "requests", "said"),
    [
        ({REQUESTED: "2"}, {}, ""),
        (
            {REQUESTED: "4"},
            {},
            "the pod requested 4 GPUs from a device plugin and its claim asks for 2: create the pod again with the same number",
        ),
        ({}, {"gpu.scheduling/gpu": "2"}, ""),
        (
            {},
            {"gpu.scheduling/gpu": "1"},
            "the pod was admitted with a request for 1 of gpu.scheduling/gpu and its claim asks for 2 of gpu.scheduling/gpu: "
            "create the pod again",
        ),
        (
            {},
            {"gpu.scheduling/gpu-share": "20"},
            "the pod was admitted with a request for 20 of gpu.scheduling/gpu-share and its claim asks for 2 of "
            "gpu.scheduling/gpu: create the pod again",
        ),
    ],
)
async def test_a_claim_that_differs_from_what_its_pod_requested_gives_it_nothing(
    stage: Stage, annotations: dict[str, str], requests: dict[str, str], said: str
) -> None:
    """The claim was created after the pod, or was deleted and created again."""
    await stage.node("a", gpus=8)
    container = {"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}}
    pod = await stage.pod("p", "late", annotations, containers=[container])
    assert await stage.schedule(pod) == "", "there is no claim yet"
    await stage.claim("late", 2)
    assert await stage.schedule(pod) == ("" if said else "a")
    if said:
        assert await message(stage, "late", said) == f"Pending: {said}"
        await event(stage, "GpusUnavailable", said)
        assert explain(stage.scheduler.ledger, "default", "late", pod).sentence == said


def test_the_request_of_a_pod_is_compared_as_a_number() -> None:
    """An API server writes 1000 as 1k."""
    claim = GpuClaim(spec=ClaimSpec(ClaimDevices(count=10, exclusivity="Shared", share=1.0)))
    for amount, same in (("1k", True), ("1000", True), (1000, True), ("100", False)):
        requests = {"gpu.scheduling/gpu-share": amount}
        pod = Pod(spec=PodSpec(containers=(Container("c", Resources(requests=requests)),)))
        assert (admitted_otherwise(pod, claim) == "") is same


async def test_a_gang_waits_for_a_member_that_requested_another_number_of_gpus(stage: Stage) -> None:
    await stage.node("a", gpus=8)
    await gang_claim(stage, "g")
    await stage.group("g", 2)
    await stage.pod("p0", "of-g", **GATED)
    await stage.pod("p1", "of-g", {REQUESTED: "4"}, **GATED)
    said = "the pod requested 4 GPUs from a device plugin and its claim asks for 1"
    await stage.until(lambda: said in stage.note("g"))


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, False),
        ({"nvidia.com/gpu.product": "NVIDIA-H200"}, False),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, True),
    ],
    ids=("another vendor", "another model", "the same model"),
)
async def test_explain_honours_vendor_and_model_as_the_planner_does(
    stage: Stage, wanted: dict[str, str], fits: bool
) -> None:
    await stage.node("a", gpus=2, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    await stage.claim("one", spec={"selector": {"matchLabels": wanted}})
    ledger = stage.scheduler.ledger
    before = explain(ledger, "default", "one")
    assert ("it fits on GPUs" in before.sentence) == fits
    pod = await stage.pod("p", "one")
    assert ("are free" in explain(ledger, "default", "one").sentence) == fits
    assert (await stage.schedule(pod) == "a") == fits
    if not fits:
        expected = "0/1 nodes fit: 1 has other labels than the claim's selector"
        assert stage.scheduler.planner.reason(pod) == expected
        assert explain(ledger, "default", "one").sentence == expected


@pytest.mark.parametrize(
    "why",
    [
        "queue research has reached its limit of 1 GPU",
        "2 GPUs are more than the limit of queue research, 1 GPU",
        "queue research has used up its budget of 5 GPU-hours, which is renewed on 2026-02-01",
        "the budget of queue research has 0.1 of 5 left, too little to start 2 GPUs",
    ],
)
async def test_a_unit_that_waits_for_its_gpu_queue_is_explained_with_that(stage: Stage, why: str) -> None:
    await stage.claim("two", 2)
    ledger = stage.scheduler.ledger
    claim = ledger.claims["default", "two"]
    ledger.put_claim(replace(claim, status=replace(claim.status, message=f"Pending: {why}")))
    found = explain(ledger, "default", "two")
    assert (found.sentence, found.remedies) == (why, ("see kubectl describe gpuqueue research",))
