"""The ledger with pods whose GPUs a device plugin allocates, so that no claim gets the same GPUs."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import structs

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.kubernetes.objects import (
    Container,
    ExtendedResourceClaimStatus,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from gpufleet.placement import Fits, Refused, Request
from gpufleet.scheduler.explain import explain
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.allocations import unblocked
from gpufleet.scheduler.watched_pods import WATCHED_PODS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def report(used: dict[int, tuple[str, ...]] | None = None, gpus: int = 8) -> GpuNodeStatus:
    devices = tuple(DeviceStatus(at, (used or {}).get(at, ()), "Healthy") for at in range(gpus))
    return GpuNodeStatus(
        metadata=ObjectMeta(name="a"), spec=NodeGpusSpec("a"), status=NodeGpus(devices, gpus)
    )


def plain(name: str, gpus: int, phase: str = "Pending", resource: str = "nvidia.com/gpu", **meta: Any) -> Pod:
    limits = Resources(limits={resource: str(gpus)})
    spec = PodSpec(node_name="a", containers=(Container("c", limits),))
    return Pod(
        ObjectMeta(name=name, namespace="ns", uid=name, resource_version="1", **meta), spec, PodStatus(phase)
    )


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    ledger.put_report(report())
    return ledger


def fits(ledger: Ledger, count: int) -> bool:
    return isinstance(ledger.cluster.place(Request(count)), Fits)


def lease(ledger: Ledger, uid: str, *gpus: int) -> None:
    for gpu in gpus:
        ledger.put_lease(new_lease("gpufleet", "a", gpu, {uid: LeaseHolder("ns", uid, milli=1000)}, "", NOW))


def test_a_plain_pod_counts_from_its_binding_and_blocks_the_node_until_its_gpus_are_known(
    ledger: Ledger,
) -> None:
    ledger.put_pod(structs.replace(plain("p", 4), spec=PodSpec(containers=plain("p", 4).spec.containers)))
    assert fits(ledger, 8)
    ledger.put_pod(
        bound := structs.replace(plain("p", 4), metadata=ObjectMeta(uid="p", resource_version="2"))
    )
    assert not fits(ledger, 1), "any GPU of the node may be one of its four"
    ledger.put_report(report(dict.fromkeys((0, 1, 2, 3), ("p",))))
    assert ledger.cluster.place(Request(4)) == Fits(Request(4), "a", (4, 5, 6, 7))
    freed = ledger.freed
    ended = structs.replace(bound, status=PodStatus("Succeeded"))
    ledger.put_pod(structs.replace(ended, metadata=ObjectMeta(uid="p", resource_version="3")))
    assert fits(ledger, 8)
    assert ledger.freed > freed


def test_a_running_pod_whose_gpus_nobody_names_counts_by_number(ledger: Ledger) -> None:
    ledger.put_pod(plain("p", 3, "Running"))
    assert fits(ledger, 5)
    assert not fits(ledger, 6)
    ledger.drop_pod("p")
    assert fits(ledger, 8)


def test_gpus_that_become_free_beside_an_unnamed_pod_still_count_for_it(ledger: Ledger) -> None:
    lease(ledger, "u", *range(8))
    ledger.put_pod(plain("p", 3, "Running"))
    for gpu in range(8):
        ledger.drop_lease(f"gpu-a-{gpu}")
        assert fits(ledger, max(1, gpu + 1 - 3)) is (gpu >= 3)
    assert not fits(ledger, 6)


def test_a_gpu_that_the_agent_still_reports_in_use_counts_for_an_unnamed_pod(ledger: Ledger) -> None:
    """kube-scheduler has put the pod beside claims that leave it no GPU; then one of them ends."""
    lease(ledger, "u", *range(6))
    ledger.put_report(report(dict.fromkeys(range(6), ("u",))))
    ledger.put_pod(plain("p", 3, "Running"))
    ledger.drop_lease("gpu-a-5")
    assert not fits(ledger, 1), "five of the claims and three of the pod are all eight"
    ledger.drop_lease("gpu-a-4")
    assert fits(ledger, 1)
    assert not fits(ledger, 2)


def test_held_gpus_are_not_counted_twice(ledger: Ledger) -> None:
    verdict = ledger.cluster.place(Request(5))
    assert isinstance(verdict, Fits)
    ledger.hold("u", Hold(verdict, 1e9))
    ledger.put_pod(plain("p", 3, "Running"))
    assert not fits(ledger, 1)
    ledger.release_hold("u")
    assert fits(ledger, 5)
    assert not fits(ledger, 6)


def test_the_extended_resource_of_a_claim_is_not_a_device_plugin(ledger: Ledger) -> None:
    ledger.put_pod(plain("p", 4, resource="gpu.scheduling/gpu", annotations={CLAIM: "c"}))
    assert fits(ledger, 8)


def test_a_pod_whose_requests_a_resource_claim_serves_is_no_plugin_pod(ledger: Ledger) -> None:
    served = PodStatus("Running", extended_resource_claim_status=ExtendedResourceClaimStatus("p-claim"))
    ledger.put_pod(structs.replace(plain("p", 4), status=served))
    assert fits(ledger, 8), "its ResourceClaim holds the GPUs"


def test_time_sliced_gpus_count_as_their_share(ledger: Ledger) -> None:
    ledger.put_node(Node(ObjectMeta(name="a", labels={"nvidia.com/gpu.replicas": "4"})))
    for at in range(5):
        ledger.put_pod(plain(f"p{at}", 1, "Running"))
    assert fits(ledger, 6), "five quarters are two GPUs"
    assert not fits(ledger, 7)


def test_explain_counts_plain_pods(ledger: Ledger) -> None:
    ledger.put_claim(
        GpuClaim(metadata=ObjectMeta(name="c", namespace="ns"), spec=ClaimSpec(ClaimDevices(count=8)))
    )
    ledger.put_pod(plain("p", 1, "Running"))
    verdict = ledger.cluster.place(Request(8))
    assert isinstance(verdict, Refused)
    waiting = Pod(ObjectMeta(name="w", namespace="ns", uid="w", annotations={CLAIM: "c"}))
    ledger.put_pod(waiting)
    assert explain(ledger, "ns", "c").sentence == "0/1 nodes fit: 1 has fewer than 8 free GPUs"


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_gpus_that_are_held_for_a_claim_are_blocked_when_plain_pods_need_them(
    ledger: Ledger, phase: str
) -> None:
    lease(ledger, "others", 0, 2, 3, 4, 5)
    ledger.put_pod(plain("first", 1, "Running"))
    place = Fits(Request(2), "a", (1, 6))
    ledger.hold("p", Hold(place, 100.0))
    assert unblocked(ledger, "p", place)
    ledger.put_pod(plain("second", 1, phase))
    assert not unblocked(ledger, "p", place)


NV = "nvidia.com/container.c."


def fraction(name: str, phase: str = "Running", version: str = "1", **notes: str) -> Pod:
    """Return a pod with NvFractions of KAI as the scheduler's watch delivers it."""
    annotations = {NV + key.replace("_", "."): value for key, value in notes.items()}
    body = {
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": version, "annotations": annotations
        },
        "spec": {"nodeName": "a", "schedulerName": "kai-scheduler", "containers": [{"name": "c"}]},
        "status": {"phase": phase},
    }  # fmt: skip
    return msgspec.convert(msgspec.json.decode(msgspec.json.encode(body)), WATCHED_PODS.type)


@pytest.fixture
def shared(ledger: Ledger) -> Ledger:
    """Return a ledger with a node of eight GPUs with UUIDs and 80 GiB."""
    ledger.put_node(Node(ObjectMeta(name="a", labels={"nvidia.com/gpu.memory": "81920"})))
    devices = tuple(DeviceStatus(at, (), "Healthy", uuid=f"GPU-{at}") for at in range(8))
    ledger.put_report(
        GpuNodeStatus(metadata=ObjectMeta(name="a"), spec=NodeGpusSpec("a"), status=NodeGpus(devices, 8))
    )
    return ledger


def place(ledger: Ledger, count: int) -> tuple[int, ...]:
    verdict = ledger.cluster.place(Request(count))
    return verdict.gpus if isinstance(verdict, Fits) else ()


def test_no_claim_gets_a_gpu_that_kai_names_for_a_pod_with_nvfractions(shared: Ledger) -> None:
    shared.put_pod(fraction("p", "Pending", **{"gpu-memory_request": "20Gi", "gpus_devices": "GPU-0,GPU-2"}))
    shared.put_pod(fraction("q", **{"gpu-memory_limit": "20Gi", "gpus_devices": "GPU-2"}))
    assert place(shared, 6) == (1, 3, 4, 5, 6, 7)
    assert not place(shared, 7)
    shared.drop_pod("p")
    assert place(shared, 7) == (0, 1, 3, 4, 5, 6, 7)
    shared.drop_pod("q")
    assert len(place(shared, 8)) == 8


def test_nvfractions_whose_gpus_are_named_later_keep_all_gpus_until_then(shared: Ledger) -> None:
    shared.put_pod(fraction("p", "Pending", **{"gpu-memory_request": "20Gi"}))
    assert not place(shared, 1)
    shared.put_pod(fraction("p", "Pending", "2", **{"gpu-memory_request": "20Gi", "gpus_devices": "GPU-0"}))
    assert place(shared, 7) == (1, 2, 3, 4, 5, 6, 7)


def test_nvfractions_of_unknown_gpus_count_by_their_memory(shared: Ledger) -> None:
    for name in "pqrs":
        shared.put_pod(fraction(name, **{"gpu-memory_request": "20Gi"}))
    assert len(place(shared, 7)) == 7
    assert not place(shared, 8)
    shared.put_pod(fraction("t", **{"gpu-memory_request": "20Gi"}))
    assert not place(shared, 7)
    shared.put_node(Node(ObjectMeta(name="a")))
    assert not place(shared, 4), "of unknown memory, each counts as a whole GPU"
    assert len(place(shared, 3)) == 3


def test_a_gpu_that_kai_names_and_that_the_node_does_not_have_counts_as_unknown(shared: Ledger) -> None:
    shared.put_pod(fraction("p", **{"gpu-memory_request": "20Gi", "gpus_devices": "GPU-99"}))
    assert len(place(shared, 7)) == 7
    assert not place(shared, 8)
