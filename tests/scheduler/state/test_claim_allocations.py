"""The ledger counts the GPUs that ResourceClaims have, those of gpufleet and those of others."""

from typing import Any

import msgspec
import pytest

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import (
    DeviceStatus,
    GpuNodeStatus,
    MigInstanceStatus,
    NodeGpus,
    NodeGpusSpec,
)
from gpufleet.kubernetes.objects import Node, ObjectMeta, Pod, PodResourceClaim, PodSpec
from gpufleet.kubernetes.resource_claims import DEVICE_CLASS, POD_CLAIM, ResourceClaim, ResourceSlice
from gpufleet.placement import Exclusivity, Fits, Refused, Request
from gpufleet.scheduler.explain import explain
from gpufleet.scheduler.state import Hold, Ledger

DRIVER = "gpu.nvidia.com"
MIG = (MigInstanceStatus(0, "1g.10gb", "MIG-0"), MigInstanceStatus(1, "1g.10gb", "MIG-1"))
Json = dict[str, Any]


def report(*devices: DeviceStatus) -> GpuNodeStatus:
    status = NodeGpus(devices, len(devices))
    return GpuNodeStatus(metadata=ObjectMeta(name="a"), spec=NodeGpusSpec("a"), status=status)


def gpus(count: int) -> tuple[DeviceStatus, ...]:
    return tuple(DeviceStatus(at, uuid=f"GPU-{at}", health="Healthy") for at in range(count))


def published(*devices: Json) -> ResourceSlice:
    spec = {"driver": DRIVER, "nodeName": "a", "pool": {"name": "a"}, "devices": devices}
    return msgspec.convert({"metadata": {"name": "s"}, "spec": spec}, ResourceSlice)


def device(at: int, **more: Any) -> Json:
    return {"name": f"gpu-{at}", "attributes": {"uuid": {"string": f"GPU-{at}"}}, **more}


def claim(
    name: str, *devices: str, version: int = 1, pod: str = "", class_name: str = "others", **more: Any
) -> ResourceClaim:
    owners = [{"kind": "Pod", "name": pod, "uid": pod}] if pod else []
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}
    results = [{"request": "r", "driver": DRIVER, "pool": "a", "device": each, **more} for each in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    requests = [{"name": "r", "exactly": {"deviceClassName": class_name}}]
    body = {
        "metadata": {**meta, "ownerReferences": owners},
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }
    return msgspec.convert(body, ResourceClaim)


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger()
    found.put_node(Node(ObjectMeta(name="a")))
    found.put_report(report(*gpus(4)))
    found.put_slice(published(*map(device, range(4))))
    return found


def free(ledger: Ledger, count: int, **more: Any) -> tuple[int, ...]:
    """Return the GPUs that a request gets, or none."""
    verdict = ledger.cluster.place(Request(count, **more))
    return verdict.gpus if isinstance(verdict, Fits) else ()


def test_devices_of_others_are_not_given_out_until_their_claim_is_cleared_or_deleted(ledger: Ledger) -> None:
    ledger.put_resource_claim(claim("theirs", "gpu-0", "gpu-3"))
    assert free(ledger, 2) == (1, 2)
    assert free(ledger, 3) == ()
    ledger.put_resource_claim(claim("theirs", version=2))
    assert free(ledger, 4) == (0, 1, 2, 3)
    ledger.put_resource_claim(claim("more", "gpu-1"))
    freed = ledger.freed
    ledger.drop_resource_claim(claim("more"))
    assert free(ledger, 4) == (0, 1, 2, 3)
    assert ledger.freed > freed


def test_a_late_state_of_a_claim_does_not_bring_its_devices_back(ledger: Ledger) -> None:
    ledger.put_resource_claim(claim("theirs", version=2))
    ledger.put_resource_claim(claim("theirs", "gpu-0", version=1))
    assert free(ledger, 4) == (0, 1, 2, 3)
    ledger.drop_resource_claim(claim("theirs", version=2))
    ledger.put_resource_claim(claim("theirs", "gpu-0", version=3))
    assert free(ledger, 4) == (0, 1, 2, 3)


def test_a_claim_of_ours_and_the_hold_of_its_pod_are_one(ledger: Ledger) -> None:
    fits = ledger.cluster.place(Request(2))
    assert isinstance(fits, Fits)
    ledger.hold("p", Hold(fits, 10.0))
    ledger.put_resource_claim(claim("ours", "gpu-0", "gpu-1", pod="p", class_name=DEVICE_CLASS))
    assert free(ledger, 2) == (2, 3)
    assert ledger.reserved("p")
    ledger.release_hold("p")
    assert free(ledger, 2) == (2, 3)
    assert free(ledger, 3) == ()
    with ledger.excluding("p"):
        assert free(ledger, 4) == (0, 1, 2, 3)


def test_a_pinned_hold_stays_until_the_outcome_is_known(ledger: Ledger) -> None:
    fits = ledger.cluster.place(Request(2))
    assert isinstance(fits, Fits)
    ledger.hold("p", Hold(fits, 10.0, pinned=True))
    assert ledger.release_hold("p") is None
    other = ledger.cluster.place(Request(2))
    assert isinstance(other, Fits)
    ledger.hold("p", Hold(other, 10.0))
    assert ledger.holds["p"].fits == fits
    ledger.unpin("p")
    assert free(ledger, 4) == (0, 1, 2, 3)


def test_a_claim_keeps_its_gpus_while_the_driver_publishes_nothing(ledger: Ledger) -> None:
    ledger.put_resource_claim(claim("theirs", "gpu-0"))
    ledger.drop_slice(published())
    ledger.put_resource_claim(claim("theirs", "gpu-0", version=2))
    assert free(ledger, 3) == (1, 2, 3)
    assert free(ledger, 4) == ()


def test_a_claim_counts_as_soon_as_its_devices_are_known() -> None:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    ledger.put_resource_claim(claim("theirs", "gpu-0"))
    ledger.put_report(report(*gpus(2)))
    assert free(ledger, 2) == (0, 1)
    ledger.put_slice(published(device(0), device(1)))
    assert free(ledger, 1) == (1,)
    assert free(ledger, 2) == ()


def test_a_mig_device_takes_one_instance_and_a_share_takes_its_part() -> None:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    split = DeviceStatus(0, uuid="GPU-0", health="Healthy", mig_instances=MIG)
    ledger.put_report(report(split, *gpus(2)[1:]))
    parts = [
        {
            "name": f"mig-{at}",
            "attributes": {"uuid": {"string": f"MIG-{at}"}, "parentUUID": {"string": "GPU-0"}},
        }
        for at in range(2)
    ]
    ledger.put_slice(published(*parts, device(1, capacity={"memory": {"value": "80Gi"}})))
    assert ledger.resource_claims.nodes() == {"a"}
    ledger.put_resource_claim(claim("part", "mig-0"))
    mig = Request(1, exclusivity=Exclusivity.MIG, mig_profile="1g.10gb")
    verdict = ledger.cluster.place(mig)
    assert isinstance(verdict, Fits)
    assert verdict.instances == ((0, "1"),)
    ledger.put_resource_claim(claim("share", "gpu-1", shareID="s", consumedCapacity={"memory": "60Gi"}))
    quarter = Request(1, exclusivity=Exclusivity.SHARED, share_milli=250)
    half = Request(1, exclusivity=Exclusivity.SHARED, share_milli=500)
    assert isinstance(ledger.cluster.place(quarter), Fits)
    assert isinstance(ledger.cluster.place(half), Refused)


def test_a_device_with_a_taint_of_others_is_not_given_out(ledger: Ledger) -> None:
    ours, theirs = ({"key": key, "effect": "NoSchedule"} for key in ("gpu.scheduling/claims", "broken"))
    ledger.put_slice(published(device(0, taints=[ours]), device(1, taints=[theirs]), device(2), device(3)))
    assert free(ledger, 3) == (0, 2, 3)
    assert free(ledger, 4) == ()


def test_only_nodes_whose_gpus_are_all_published_serve_resource_claims(ledger: Ledger) -> None:
    assert ledger.resource_claims.nodes() == {"a"}
    ledger.put_slice(published(device(0)))
    assert ledger.resource_claims.nodes() == frozenset()


def test_explain_counts_devices_of_others_and_nodes_without_devices(ledger: Ledger) -> None:
    ledger.put_claim(GpuClaim(metadata=ObjectMeta(name="c", namespace="ns"), spec=ClaimSpec(ClaimDevices(4))))
    entry = PodResourceClaim(POD_CLAIM, resource_claim_template_name="gpu-claim-4")
    meta = ObjectMeta(name="p", namespace="ns", uid="p", annotations={CLAIM: "c"})
    pod = Pod(meta, PodSpec(resource_claims=(entry,)))
    ledger.put_pod(pod)
    ledger.put_resource_claim(claim("theirs", "gpu-0"))
    assert explain(ledger, "ns", "c", pod).sentence == "0/1 nodes fit: 1 has fewer than 4 free GPUs"
    ledger.put_slice(published(device(0)))
    found = explain(ledger, "ns", "c", pod).sentence
    assert found == "0/1 nodes fit: 1 has GPUs that no DRA driver publishes"
