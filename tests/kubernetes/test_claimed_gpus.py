"""The devices of ResourceClaims are found among the GPUs of a node."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpufleet.kubernetes.claimed_gpus import (
    ClaimedGpu,
    DeviceName,
    PublishedDevices,
    claimed_gpus,
    normal_pci,
)
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, MigInstanceStatus
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import (
    AllocatedDevice,
    ClaimAllocation,
    ResourceClaim,
    ResourceSlice,
    allocation_manifest,
    claim_names,
)

Json = dict[str, Any]
MIG = (MigInstanceStatus(3, "1g.10gb", "MIG-a"), MigInstanceStatus(4, "1g.10gb", "MIG-b"))
GPUS = (
    DeviceStatus(0, uuid="GPU-aa", pci_bus_id="0000:1b:00.0"),
    DeviceStatus(1, uuid="GPU-bb", pci_bus_id="0000:1c:00.0"),
    DeviceStatus(2, uuid="GPU-cc", pci_bus_id="0000:1d:00.0", mig_instances=MIG),
)
PLAIN = tuple(DeviceStatus(number) for number in range(3))


def slice_of(
    driver: str, *devices: Json, generation: int = 1, name: str = "s", node: str = "n"
) -> ResourceSlice:
    spec = {"driver": driver, "pool": {"name": "n", "generation": generation}, "devices": devices}
    return msgspec.convert({"metadata": {"name": name}, "spec": {**spec, "nodeName": node}}, ResourceSlice)


def device(name: str, capacity: Any = None, **attributes: Any) -> Json:
    values = {
        key: {"int" if isinstance(value, int) else "string": value} for key, value in attributes.items()
    }
    return {"name": name, "attributes": values, "capacity": capacity or {}}


def claim(driver: str, *devices: str, **more: Any) -> ResourceClaim:
    results = [{"request": "r", "driver": driver, "pool": "n", "device": each, **more} for each in devices]
    return msgspec.convert({"status": {"allocation": {"devices": {"results": results}}}}, ResourceClaim)


def found(driver: str, published: Json, gpus: Sequence[DeviceStatus] = GPUS, **more: Any) -> list[ClaimedGpu]:
    devices = PublishedDevices()
    devices.put(slice_of(driver, published))
    return claimed_gpus(claim(driver, published["name"], **more), devices, lambda node: gpus)


@pytest.mark.parametrize(
    ("driver", "published", "gpus", "expected"),
    [
        ("gpu.nvidia.com", device("gpu-7", uuid="GPU-bb", type="gpu"), GPUS, 1),
        ("gpu.nvidia.com", device("gpu-7", uuid="gpu-BB", index=0), GPUS, 1),
        ("gpu.amd.com", device("gpu-1-128", **{"resource.kubernetes.io/pciBusID": "0000:1C:00.0"}), GPUS, 1),
        ("gpu.amd.com", device("gpu-1-128", pciAddr="0000:1b:00.0", type="amdgpu"), GPUS, 0),
        ("gpu.nvidia.com", device("gpu-2", index=2, uuid="GPU-zz"), PLAIN, 2),
        ("gpu.nvidia.com", device("gpu-2", index=2, uuid="GPU-zz"), GPUS, None),
        ("gpu.example.com", device("gpu-2", **{"gpu.example.com/index": 2}), GPUS, 2),
        ("nic.example.com", device("nic-2", index=2), GPUS, None),
        ("gpu.nvidia.com", device("gpu-9", index=9), PLAIN, None),
    ],
)
def test_a_device_is_found_by_uuid_then_pci_address_then_index(
    driver: str, published: Json, gpus: Sequence[DeviceStatus], expected: int | None
) -> None:
    matches = found(driver, published, gpus)
    assert [(each.node, each.gpu, each.milli) for each in matches] == (
        [] if expected is None else [("n", expected, 1000)]
    )


def test_a_mig_device_is_an_instance_of_its_gpu() -> None:
    published = device("gpu-2-mig-9-4-1", uuid="MIG-b", parentUUID="GPU-cc", type="mig", profile="1g.10gb")
    [match] = found("gpu.nvidia.com", published)
    assert (match.gpu, match.instance, match.milli) == (2, "4", 0)


def test_a_mig_device_that_the_agent_has_not_reported_is_a_part_of_its_gpu() -> None:
    published = device("gpu-1-mig-19-0", parentUUID="GPU-bb", type="mig", profile="1g.10gb")
    [match] = found("gpu.nvidia.com", published)
    assert (match.gpu, match.instance, match.profile) == (1, "", "1g.10gb")


def test_consumed_capacity_is_a_share_of_the_gpu() -> None:
    published = device("gpu-0", {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}, uuid="GPU-aa")
    more: Json = {"shareID": "s", "consumedCapacity": {"gpu.nvidia.com/memory": "20Gi", "compute": "10"}}
    [match] = found("gpu.nvidia.com", published, **more)
    assert match.milli == 250
    assert match.device == DeviceName("gpu.nvidia.com", "n", "gpu-0")


def test_a_device_with_administrative_access_is_not_counted() -> None:
    assert found("gpu.nvidia.com", device("gpu-0", uuid="GPU-aa"), adminAccess=True) == []


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    devices = PublishedDevices()
    devices.put(slice_of("gpu.nvidia.com", device("gpu-0", uuid="GPU-aa")))
    newer = slice_of("gpu.nvidia.com", device("gpu-1", uuid="GPU-bb"), generation=2, name="t")
    assert devices.put(newer) == {"n"}
    assert [each.name.device for each in devices] == ["gpu-1"]
    assert devices.drop(newer) == {"n"}
    assert [each.name.device for each in devices] == ["gpu-0"]
    assert devices.drivers() == {"gpu.nvidia.com"}


@pytest.mark.parametrize("written", ["00000000:1B:00.0", "0000:1b:00.0", "1B:00.0"])
def test_pci_addresses_are_compared_in_one_form(written: str) -> None:
    assert normal_pci(written) == "0000:1b:00.0"


def test_a_pod_uses_the_claims_it_names_those_of_its_templates_and_its_extended_resources() -> None:
    pod = msgspec.convert(
        {
            "spec": {
                "resourceClaims": [
                    {"name": "a", "resourceClaimName": "shared"},
                    {"name": "b", "resourceClaimTemplateName": "t"},
                    {"name": "c", "resourceClaimTemplateName": "t"},
                ]
            },
            "status": {
                "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x"}, {"name": "c"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": []},
            },
        },
        Pod,
    )
    assert claim_names(pod) == ("shared", "p-b-x", "p-extended")


def test_the_users_of_a_claim_are_its_consumers_or_else_the_pod_that_owns_it() -> None:
    owned = {"metadata": {"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "1"}]}}
    assert msgspec.convert(owned, ResourceClaim).pod_uids == ("1",)
    users = [{"resource": "pods", "name": "p", "uid": uid} for uid in ("1", "2")]
    assert msgspec.convert({**owned, "status": {"reservedFor": users}}, ResourceClaim).pod_uids == ("1", "2")


def test_a_written_allocation_reads_back_with_its_node() -> None:
    results = (AllocatedDevice("gpus", "gpu.nvidia.com", "n", "gpu-3"),)
    manifest = allocation_manifest("n", results, datetime(2026, 11, 16, 6, 0, 0, 5, tzinfo=UTC))
    assert manifest["allocationTimestamp"] == "2026-11-16T06:00:00Z"
    read = msgspec.json.decode(msgspec.json.encode(manifest), type=ClaimAllocation)
    assert (read.node, read.devices.results) == ("n", results)
