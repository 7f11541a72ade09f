"""The extender's verbs on the embedded API: their results and the objects that they write."""

from typing import Any

import msgspec
from tests.scheduler.stage import Stage, device, open_stage

from gpufleet.kubernetes import LEASES
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta
from gpufleet.scheduler.leases.writer import PodRef
from kubelite import KubeLite


async def test_a_pod_gets_its_gpus_with_lease_annotations_and_status(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("two", 2)
    pod = await stage.pod("p", "two")
    assert await stage.schedule(pod) == "a"
    bound = await stage.read(pod)
    assert bound.spec.node_name == "a"
    assert bound.metadata.annotations["gpu.scheduling/allocated"] == "a:0,1"
    assert bound.metadata.annotations["gpu.scheduling/visible-devices"] == "GPU-0,GPU-1"
    leases = await stage.leases()
    assert {name: lease.spec.holder_identity for name, lease in leases.items()} == {
        "gpu-a-0": pod.metadata.uid,
        "gpu-a-1": pod.metadata.uid,
    }
    await stage.until(lambda: stage.scheduler.ledger.claims["default", "two"].status.phase == "Bound")
    status = (await stage.read_claim("two")).status
    assert (status.phase, status.node_name, status.gpu_ids, status.allocated) == (
        "Bound",
        "a",
        (0, 1),
        "a:0,1",
    )
    assert status.allocations[0].pod_uid == pod.metadata.uid
    assert status.allocations[0].uuids == ("GPU-0", "GPU-1")


async def test_filter_holds_its_choice_so_that_the_next_pod_sees_it(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    first, second, third = [await stage.pod(f"p{at}", "one") for at in range(3)]
    assert (await stage.filter(first))["NodeNames"] == ["a"]
    assert (await stage.filter(first))["NodeNames"] == ["a"], "filter may run twice for one pod"
    assert (await stage.filter(second))["NodeNames"] == ["a"]
    refused = await stage.filter(third)
    assert refused["NodeNames"] == []
    assert refused["FailedNodes"] == {"a": "node(s) had no free GPU"}


async def test_a_gpu_is_never_allocated_in_two_namespaces(stage: Stage) -> None:
    await stage.client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
    await stage.node("a", gpus=1)
    await stage.claim("one")
    await stage.claim("one", namespace="other")
    assert await stage.schedule(await stage.pod("p", "one")) == "a"
    assert await stage.schedule(await stage.pod("p", "one", namespace="other")) == ""


async def test_binding_twice_succeeds_both_times(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert await stage.schedule(pod) == "a"
    assert await stage.bind(pod, "a") == ""
    assert len(await stage.leases()) == 1


async def test_a_pod_is_not_locked_out_by_its_own_lease(server: KubeLite, stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    lease = Lease(
        ObjectMeta(name="gpu-a-0", namespace="default"), LeaseSpec(holder_identity=pod.metadata.uid)
    )
    await stage.client.create(LEASES, lease)
    await stage.until(lambda: "gpu-a-0" in stage.scheduler.ledger.leases)
    assert await stage.schedule(pod) == "a"


async def test_a_lease_made_by_hand_is_respected(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    lease = Lease(ObjectMeta(name="gpu-a-0", namespace="default"), LeaseSpec(holder_identity="somebody"))
    await stage.client.create(LEASES, lease)
    await stage.until(lambda: "gpu-a-0" in stage.scheduler.ledger.leases)
    first, second = await stage.pod("p", "one"), await stage.pod("q", "one")
    assert await stage.schedule(first) == "a"
    assert (await stage.read(first)).metadata.annotations["gpu.scheduling/allocated"] == "a:1"
    assert await stage.schedule(second) == ""
    assert (await stage.leases())["gpu-a-0"].spec.holder_identity == "somebody"


async def test_a_bind_that_loses_a_gpu_releases_the_others(
    stage: Stage,
) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("two", 2)
    pod = await stage.pod("p", "two")
    assert (await stage.filter(pod))["NodeNames"] == ["a"]
    lease = Lease(ObjectMeta(name="gpu-a-1", namespace="default"), LeaseSpec(holder_identity="somebody"))
    await stage.client.create(LEASES, lease)
    assert "GPU 1 of a" in await stage.bind(pod, "a")
    assert list(await stage.leases()) == ["gpu-a-1"]
    assert (await stage.read(pod)).spec.node_name == ""


async def test_a_bind_is_refused_if_a_device_plugin_pod_took_the_gpus_meanwhile(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("two", 2)
    pod = await stage.pod("p", "two")
    assert (await stage.filter(pod))["NodeNames"] == ["a"]
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    await stage.pod("plain", nodeName="a", containers=[container])
    assert "the GPUs of a are no longer free" in await stage.bind(pod, "a")
    assert await stage.leases() == {}


async def test_a_pod_name_over_63_characters_works(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pod = await stage.pod("p" * 200, "one")
    assert await stage.schedule(pod) == "a"


async def test_a_pod_without_a_claim_fits_everywhere_and_gets_no_gpu(stage: Stage) -> None:
    await stage.node("a")
    await stage.node("cpu-only", gpus=0)
    pod = await stage.pod("p")
    assert (await stage.filter(pod))["NodeNames"] == ["a", "cpu-only"]
    assert await stage.bind(pod, "cpu-only") == ""
    assert await stage.leases() == {}


async def test_a_node_without_gpus_is_never_chosen(stage: Stage) -> None:
    await stage.node("cpu-only", gpus=0)
    await stage.claim("one")
    found = await stage.filter(await stage.pod("p", "one"))
    assert found["FailedAndUnresolvableNodes"] == {"cpu-only": "node(s) had no GPU"}


async def test_keys_are_read_in_any_case(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    plain: Any = msgspec.to_builtins(await stage.read(pod))
    found = await stage.call("/filter", {"pod": plain, "nodes": None, "nodenames": ["a"]})
    assert found["NodeNames"] == ["a"]
    body = {"podname": "p", "podNamespace": "default", "PODUID": pod.metadata.uid, "node": "a"}
    assert (await stage.call("/bind", body))["Error"] == ""


async def test_a_kube_scheduler_that_sends_whole_nodes_gets_an_error_with_the_setting(stage: Stage) -> None:
    """It ignores node names in the result, so every pod would be pending without a reason."""
    await stage.node("a")
    await stage.claim("one")
    plain: Any = msgspec.to_builtins(await stage.read(await stage.pod("p", "one")))
    nodes = {"items": [{"metadata": {"name": "a"}}]}
    for body in ({"Pod": plain, "Nodes": nodes, "NodeNames": None}, {"POD": plain, "NODES": nodes}):
        found = await stage.call("/filter", body)
        assert "nodeCacheCapable" in found["Error"]
    scores = await stage.call("/prioritize", {"Pod": plain, "Nodes": nodes, "NodeNames": None})
    assert [each["Host"] for each in scores] == ["a"]


async def test_a_malformed_request_gets_an_error(stage: Stage) -> None:
    assert (await stage.raw("POST", "/filter", b"{"))[0] == 400
    status, text = await stage.raw("POST", "/filter", b'{"NodeNames": []}')
    assert (status, b"Pod" in text) == (400, True)
    assert (await stage.raw("POST", "/nothing"))[0] == 404
    assert (await stage.raw("GET", "/filter"))[0] == 405


async def test_prioritize_scores_from_0_to_10(stage: Stage) -> None:
    await stage.node("a")
    await stage.node("b", gpus=1)
    await stage.claim("two", 2)
    pod = await stage.read(await stage.pod("p", "two"))
    body = {"Pod": msgspec.to_builtins(pod), "NodeNames": ["a", "b"]}
    scores = {each["Host"]: each["Score"] for each in await stage.call("/prioritize", body)}
    assert scores["b"] == 0 < scores["a"] <= 10


async def test_shared_pods_fill_a_gpu_and_no_more(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("half", exclusivity="Shared", share=0.5)
    pods = [await stage.pod(f"p{at}", "half") for at in range(3)]
    assert [await stage.schedule(pod) for pod in pods] == ["a", "a", ""]
    lease = (await stage.leases())["gpu-a-0"]
    assert lease.spec.holder_identity == f"{pods[0].metadata.uid},{pods[1].metadata.uid}"
    await stage.delete(pods[0])
    await stage.until(
        lambda: stage.scheduler.ledger.leases["gpu-a-0"].holders.keys() == {pods[1].metadata.uid}
    )
    assert await stage.schedule(pods[2]) == "a"


async def test_gpus_without_an_nvidia_uuid_are_visible_by_id(stage: Stage) -> None:
    uuids = ("GPU-0", "", "9cff74a1-0000-1000-80a4-d21e5ec1a3f7", "unknown-3")
    await stage.node("a", devices=[device(at, uuid=uuid) for at, uuid in enumerate(uuids)])
    await stage.claim("two", 2)
    pods = [await stage.pod(f"p{at}", "two") for at in range(2)]
    assert [await stage.schedule(pod) for pod in pods] == ["a", "a"]
    seen = [(await stage.read(pod)).metadata.annotations for pod in pods]
    assert [notes["gpu.scheduling/visible-devices"] for notes in seen] == ["0,1", "2,3"]


async def test_mig_instances_are_allocated_by_uuid(stage: Stage) -> None:
    instances = [{"id": at, "profile": "1g.10gb", "uuid": f"MIG-{at}"} for at in range(2)]
    await stage.node("a", devices=[device(0, migInstances=instances)])
    await stage.claim("slice", exclusivity="MIG", migProfile="1g.10gb")
    pods = [await stage.pod(f"p{at}", "slice") for at in range(3)]
    assert [await stage.schedule(pod) for pod in pods] == ["a", "a", ""]
    seen = [(await stage.read(pod)).metadata.annotations for pod in pods[:2]]
    assert [notes["gpu.scheduling/visible-devices"] for notes in seen] == ["MIG-0", "MIG-1"]
    assert [notes["gpu.scheduling/allocated"] for notes in seen] == ["a:0", "a:0"]


async def test_a_foreign_lease_blocks_the_instances_of_its_gpu(stage: Stage) -> None:
    devices = [
        device(gpu, migInstances=[{"id": 0, "profile": "1g.10gb", "uuid": f"MIG-{gpu}"}]) for gpu in range(2)
    ]
    await stage.node("a", devices=devices)
    await stage.claim("slice", exclusivity="MIG", migProfile="1g.10gb")
    lease = Lease(ObjectMeta(name="gpu-a-0", namespace="default"), LeaseSpec(holder_identity="somebody"))
    await stage.client.create(LEASES, lease)
    await stage.until(lambda: "gpu-a-0" in stage.scheduler.ledger.leases)
    pod = await stage.pod("p", "slice")
    assert await stage.schedule(pod) == "a"
    assert (await stage.read(pod)).metadata.annotations["gpu.scheduling/visible-devices"] == "MIG-1"
    refused = await stage.filter(await stage.pod("q", "slice"))
    assert refused["FailedNodes"] == {"a": "node(s) had fewer than 1 free MIG instances of 1g.10gb"}


async def test_selector_prefer_ids_and_topology_are_respected(stage: Stage) -> None:
    devices = [device(at, island=f"i{at // 2}") for at in range(4)]
    await stage.node("a", devices=devices)
    await stage.node("b", labels={"gpu-type": "a100"}, devices=devices)
    await stage.claim("picky", 2, spec={"selector": {"matchLabels": {"gpu-type": "a100"}}})
    assert await stage.schedule(await stage.pod("p", "picky")) == "b"
    await stage.claim("three", policy="preferIds", preferIds=[3])
    pod = await stage.pod("q", "three")
    assert await stage.schedule(pod, "a") == "a"
    assert (await stage.read(pod)).metadata.annotations["gpu.scheduling/visible-devices"] == "GPU-3"
    await stage.claim("wide", 3, spec={"topology": {"mode": "Required"}})
    refused = await stage.filter(await stage.pod("r", "wide"))
    assert refused["FailedNodes"]["b"] == "node(s) had fewer than 3 free GPUs"
    assert refused["FailedNodes"]["a"] == "node(s) lacked an island with 3 free"


async def test_a_claim_fits_a_node_whose_label_spells_the_model_differently(stage: Stage) -> None:
    product = "nvidia.com/gpu.product"
    await stage.node("a", labels={product: "NVIDIA-H100-80GB-HBM3-SHARED"})
    await stage.node("b", labels={product: "NVIDIA_H100_80GB_HBM3"})
    await stage.node("c", labels={product: "NVIDIA-H100-PCIe"})
    await stage.claim("picky", spec={"selector": {"matchLabels": {product: "NVIDIA-H100-80GB-HBM3"}}})
    assert await stage.schedule(await stage.pod("p", "picky")) == "b"
    refused = await stage.filter(await stage.pod("q", "picky"), "a", "c")
    assert refused["FailedAndUnresolvableNodes"] == dict.fromkeys(
        ("a", "c"), "node(s) had other labels than the claim's selector"
    )


async def test_every_pod_of_a_claim_gets_its_own_allocation(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pods = [await stage.pod(f"p{at}", "one") for at in range(3)]
    for pod in pods:
        await stage.schedule(pod)
    await stage.until(lambda: len(stage.scheduler.ledger.claims["default", "one"].status.allocations) == 3)
    status = (await stage.read_claim("one")).status
    assert {each.pod_name: each.gpu_ids for each in status.allocations} == {
        "p0": (0,),
        "p1": (1,),
        "p2": (2,),
    }
    assert status.gpu_ids == status.allocations[0].gpu_ids


async def test_only_the_leader_is_ready_and_a_second_takes_over(server: KubeLite) -> None:
    async with open_stage(server) as first:
        second = open_stage(server)
        assert (await first.raw("GET", "/readyz"))[0] == 200
        await first.node("a", gpus=1)
        await first.claim("one")
        assert await first.schedule(await first.pod("p", "one")) == "a"
    async with second as other:
        assert (await other.raw("GET", "/readyz"))[0] == 200
        assert await other.schedule(await other.pod("q", "one")) == "", "the lease outlives its writer"


async def test_metrics_count_decisions(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    await stage.schedule(await stage.pod("p", "one"))
    await stage.filter(await stage.pod("q", "one"))
    text = (await stage.raw("GET", "/metrics"))[1].decode()
    assert 'gpufleet_scheduler_decisions_total{outcome="bound"} 1.0' in text
    assert 'gpufleet_scheduler_refusals_total{reason="busy"} 1.0' in text
    assert "gpufleet_scheduler_fragmentation_percent" in text
    assert 'gpufleet_scheduler_held{how="lease"} 1.0' in text


async def test_a_gpu_that_fails_between_filter_and_bind_is_not_allocated(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert (await stage.filter(pod))["NodeNames"] == ["a"]
    assert stage.scheduler.ledger.holds[pod.metadata.uid].fits.gpus == (0,)
    await stage.report("a", [device(0, health="Unhealthy"), device(1)])
    await stage.until(lambda: stage.scheduler.ledger.cluster.nodes["a"].gpus[0].health == "Unhealthy")
    assert await stage.bind(pod, "a") == ""
    assert (await stage.read(pod)).metadata.annotations["gpu.scheduling/allocated"] == "a:1"


async def test_a_pod_whose_reserved_gpu_fails_gets_another(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.node("b", gpus=1)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert (await stage.filter(pod, "a"))["NodeNames"] == ["a"]
    fits = stage.scheduler.ledger.holds[pod.metadata.uid].fits
    await stage.scheduler.lease_writer.reserve(PodRef(pod.metadata.uid, "default", "p", "one"), fits)
    await stage.report("a", [device(0, health="Unhealthy")])
    await stage.until(lambda: stage.scheduler.ledger.cluster.nodes["a"].gpus[0].health == "Unhealthy")
    assert await stage.schedule(pod) == "b"
    await stage.until(lambda: list(stage.scheduler.ledger.leases) == ["gpu-b-0"])
