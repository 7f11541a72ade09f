"""Placements become the devices of ResourceClaims, and the ledger reads them back as the same GPUs and shares."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import (
    DeviceStatus,
    GpuNodeStatus,
    MigInstanceStatus,
    NodeGpus,
    NodeGpusSpec,
)
from gpufleet.kubernetes.objects import Node, ObjectMeta
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceSlice
from gpufleet.placement import Exclusivity, Fits, Request
from gpufleet.scheduler.delivery.devices import DeviceMissing, allocation_of
from gpufleet.scheduler.delivery.mode import template
from gpufleet.scheduler.state import Ledger, request_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SHARE = "5f3c1c9a-0c2b-4c57-8a53-2d0b8f1c7a10"
DRIVER = "gpu.nvidia.com"
Json = dict[str, Any]


def whole(at: int, **more: Any) -> Json:
    """Return a GPU as NVIDIA's driver publishes it."""
    return {
        "name": f"gpu-{at}",
        "attributes": {
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "580.65.6"},
            "pciBusID": {"string": f"0000:{at:02x}:00.0"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{at}"},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
        **more,
    }


def mig(gpu: int, placement: int) -> Json:
    """Return a MIG device as NVIDIA's driver publishes it."""
    return {
        "name": f"gpu-{gpu}-mig-1g10gb-19-{placement}",
        "attributes": {
            "parentUUID": {"string": f"GPU-{gpu}"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "profile": {"string": "1g.10gb"},
            "type": {"string": "mig"},
            "uuid": {"string": f"MIG-{placement}"},
        },
        "capacity": {"memory": {"value": "9984Mi"}, "multiprocessors": {"value": "16"}},
    }


def ledger_with(gpus: list[DeviceStatus], *devices: Json) -> Ledger:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    status = NodeGpus(tuple(gpus), len(gpus))
    ledger.put_report(GpuNodeStatus(metadata=ObjectMeta(name="a"), spec=NodeGpusSpec("a"), status=status))
    spec = {"driver": DRIVER, "nodeName": "a", "pool": {"name": "a"}, "devices": devices}
    ledger.put_slice(msgspec.convert({"metadata": {"name": "s"}, "spec": spec}, ResourceSlice))
    return ledger


def gpu(at: int, *instances: MigInstanceStatus) -> DeviceStatus:
    return DeviceStatus(at, uuid=f"GPU-{at}", health="Healthy", mig_instances=instances)


def gpu_claim(**devices: Any) -> GpuClaim:
    return GpuClaim(metadata=ObjectMeta(name="c", namespace="ns"), spec=ClaimSpec(ClaimDevices(**devices)))


def made_for(pod: str, claim: GpuClaim) -> Json:
    """Return the ResourceClaim that kube-controller-manager makes from our template."""
    spec = template("t", claim.spec.devices.count, claim.spec.devices.shared_milli)["spec"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod}
    meta = {"name": pod, "namespace": "ns", "uid": f"{pod}-claim", "ownerReferences": [owner]}
    return {"metadata": {**meta, **spec["metadata"]}, "spec": spec["spec"]}


def place(ledger: Ledger, claim: GpuClaim) -> Fits:
    fits = ledger.cluster.place(request_of(claim))
    assert isinstance(fits, Fits), fits
    return fits


def allocate(ledger: Ledger, pod: str, claim: GpuClaim) -> list[Json]:
    """Place a pod, write its allocation, store the claim as the watch delivers it; return the devices."""
    made, fits = made_for(pod, claim), place(ledger, claim)
    found = msgspec.convert(made, ResourceClaim)
    allocation = allocation_of(found, fits, ledger.resource_claims, NOW, lambda: SHARE)
    assert allocation["allocationTimestamp"] == "2026-01-02T03:04:05Z"
    ledger.put_resource_claim(msgspec.convert({**made, "status": {"allocation": allocation}}, ResourceClaim))
    held = ledger.resource_claims.held(pod)["a"]
    assert tuple(sorted(held)) == fits.gpus
    assert {holder.milli for holder in held.values()} == {fits.request.milli_per_gpu}
    results: list[Json] = allocation["devices"]["results"]
    return results


def result(device: str, **more: Any) -> Json:
    return {"request": "gpus", "driver": DRIVER, "pool": "a", "device": device, **more}


def test_a_claim_for_two_gpus_names_two_devices() -> None:
    ledger = ledger_with([gpu(0), gpu(1)], whole(0), whole(1))
    assert allocate(ledger, "p", gpu_claim(count=2)) == [result("gpu-0"), result("gpu-1")]


def test_a_mig_claim_names_the_devices_of_its_instances_and_leaves_the_others() -> None:
    instances = [MigInstanceStatus(at, "1g.10gb", f"MIG-{at}") for at in (7, 8, 9)]
    ledger = ledger_with([gpu(0, *instances), gpu(1)], mig(0, 7), mig(0, 8), mig(0, 9), whole(1))
    claim = gpu_claim(count=2, exclusivity="MIG", mig_profile="1g.10gb")
    first = [result("gpu-0-mig-1g10gb-19-7"), result("gpu-0-mig-1g10gb-19-8")]
    assert allocate(ledger, "p", claim) == first
    one = gpu_claim(count=1, exclusivity="MIG")
    assert allocate(ledger, "q", one) == [result("gpu-0-mig-1g10gb-19-9")]
    assert not isinstance(ledger.cluster.place(request_of(one)), Fits)
    # The GPU without MIG is still free.
    assert allocate(ledger, "r", gpu_claim(count=1)) == [result("gpu-1")]


def test_a_mig_instance_that_no_driver_publishes_is_refused() -> None:
    ledger = ledger_with([gpu(0, MigInstanceStatus(7, "1g.10gb", "MIG-7"))], mig(0, 8))
    claim = gpu_claim(count=1, exclusivity="MIG")
    made = msgspec.convert(made_for("p", claim), ResourceClaim)
    fits = Fits(Request(1, exclusivity=Exclusivity.MIG), "a", (0,), ((0, "7"),))
    with pytest.raises(DeviceMissing, match="MIG instance 7 of GPU 0 of a is no device of a ResourceSlice"):
        allocation_of(made, fits, ledger.resource_claims, NOW, lambda: SHARE)


def test_a_shared_claim_consumes_its_share_of_every_capacity_of_a_device_that_can_be_shared() -> None:
    shared = whole(0, allowMultipleAllocations=True)
    shared["capacity"] |= {"compute": {"value": "3"}}
    ledger = ledger_with([gpu(0)], shared)
    half = gpu_claim(count=1, exclusivity="Shared", share=0.5)
    expected = {"memory": str(81559 * 1024 * 1024 // 2), "compute": "1"}
    for pod in ("p", "q"):
        [found] = allocate(ledger, pod, half)
        assert found == result("gpu-0", shareID=SHARE, consumedCapacity=expected)
    assert not isinstance(ledger.cluster.place(request_of(half)), Fits)


def test_an_exclusive_claim_of_a_device_that_can_be_shared_has_no_share() -> None:
    ledger = ledger_with([gpu(0)], whole(0, allowMultipleAllocations=True))
    assert allocate(ledger, "p", gpu_claim(count=1)) == [result("gpu-0")]
    half = gpu_claim(count=1, exclusivity="Shared", share=0.5)
    assert not isinstance(ledger.cluster.place(request_of(half)), Fits)


def test_shared_claims_name_the_same_device_where_it_has_no_shares_until_they_add_up_to_it() -> None:
    ledger = ledger_with([gpu(0)], whole(0))
    quarter, half = (gpu_claim(count=1, exclusivity="Shared", share=share) for share in (0.25, 0.5))
    for pod, claim in (("p", quarter), ("q", half), ("r", quarter)):
        assert allocate(ledger, pod, claim) == [result("gpu-0")]
    assert not isinstance(ledger.cluster.place(request_of(quarter)), Fits)
