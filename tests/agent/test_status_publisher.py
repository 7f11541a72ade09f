"""An agent on the shim that publishes to the embedded API."""

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs
from tests.agent.conftest import Cluster
from tests.agent.pod_resources import kubelet, response
from tests.shim.nvml import NvmlShim, meshed, sliced, switched, uuid
from tests.waiting import wait_until

from gpufleet.agent.agent import Agent
from gpufleet.agent.status_publisher import (
    BURST,
    MANAGER,
    REFILL,
    URGENT,
    StatusPublisher,
    declared_fields,
    undeclared_fields,
)
from gpufleet.kubernetes import GPU_NODE_STATUSES, LEASES, NODES, Timing
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus
from gpufleet.kubernetes.leases import lease_name
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta
from gpufleet.model.node import Health


def healths(status: GpuNodeStatus) -> list[str]:
    return [device.health for device in status.status.devices]


def well(status: GpuNodeStatus) -> bool:
    return healths(status) == ["Healthy"] * 8


async def more_reads(agent: Agent, number: int) -> None:
    """Wait until the agent has read the GPUs `number` more times."""
    # The read in progress may have begun before a change.
    reads = agent.monitor.reads + 1 + number
    await wait_until(lambda: agent.monitor.reads >= reads)


async def test_the_gpus_of_the_node_are_published_with_islands_and_health(
    nvml_shim: NvmlShim, cluster: Cluster
) -> None:
    nvml_shim.describe(meshed((0, 1, 2, 3), (4, 5, 6, 7)))
    async with cluster.agent():
        found = await cluster.until("node-a", well)
    first = found.status.devices[0]
    assert found.spec.node_name == "node-a"
    assert (found.status.total, found.status.free, found.status.unhealthy) == (8, 8, 0)
    assert [device.island for device in found.status.devices] == ["nvlink-group-0"] * 4 + [
        "nvlink-group-1"
    ] * 4
    assert (first.uuid, first.vendor, first.model) == (uuid(0), "nvidia", "NVIDIA_Tesla_V100_SXM2_32GB")
    assert (first.memory_mib, first.pci_bus_id, first.bandwidth_gbps) == (32 * 1024, "0000:10:00.0", 300)
    assert first.health_since is not None


async def test_an_error_and_its_end_are_published_within_a_second(
    nvml_shim: NvmlShim, cluster: Cluster
) -> None:
    async with cluster.agent(period=30.0):  # no periodic read helps
        await cluster.until("node-a", well)
        nvml_shim.xid(3, 48)
        found = await cluster.until("node-a", lambda s: healths(s)[3] == "Unhealthy", seconds=5)
        assert found.status.devices[3].health_reason == "XID 48: uncorrectable ECC error"
        assert (found.status.free, found.status.unhealthy) == (7, 1)
        nvml_shim.set("3.field.83", 10)  # reset: the energy counter starts again
        nvml_shim.xid(0, 13)  # any error causes a read
        found = await cluster.until("node-a", well, seconds=5)
        assert found.status.devices[3].health_reason == ""


async def test_a_lost_gpu_stays_listed_and_comes_back(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent():
        await cluster.until("node-a", well)
        nvml_shim.lose(6)
        found = await cluster.until("node-a", lambda s: healths(s)[6] == "Unhealthy")
        assert (found.status.total, found.status.devices[6].bandwidth_gbps) == (8, 0)
        assert found.status.devices[6].island == "nvlink-group-0"
        nvml_shim.find_again(6)
        await cluster.until("node-a", well)


async def test_a_hanging_driver_makes_gpus_unknown_with_few_writes(
    nvml_shim: NvmlShim, cluster: Cluster
) -> None:
    async with cluster.agent(deadline=0.3) as agent:
        await cluster.until("node-a", well)
        nvml_shim.hang("nvmlDeviceGetTemperature")
        found = await cluster.until("node-a", lambda s: healths(s) == ["Unknown"] * 8)
        assert found.status.devices[0].health_reason.startswith("the GPU driver has not answered since 20")
        assert found.status.free == 0
        assert agent.publisher is not None
        writes = agent.publisher.writes
        await more_reads(agent, 4)
        assert agent.publisher.writes == writes
        assert agent.not_alive() == ""
        nvml_shim.unhang()
        await cluster.until("node-a", well)


async def test_nothing_is_written_while_nothing_changes(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent(period=0.05) as agent:
        await cluster.until("node-a", well)
        await more_reads(agent, 3)
        before = await cluster.status("node-a")
        assert agent.publisher is not None
        writes = agent.publisher.writes
        for step in range(10):  # temperatures and loads move all the time
            nvml_shim.set("0.temperature", 50 + step)
            nvml_shim.set("1.utilization", step)
            await more_reads(agent, 1)
        assert agent.publisher.writes == writes <= 2
        after = await cluster.status("node-a")
        assert after.metadata.resource_version == before.metadata.resource_version


async def test_a_flapping_gpu_causes_few_writes(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent(period=0.05) as agent:
        await cluster.until("node-a", well)
        began = time.monotonic()

        async def becomes(health: Health) -> None:
            await wait_until(lambda: agent.monitor.observation.verdicts[uuid(1)].health is health)

        for _ in range(15):
            nvml_shim.lose(1)
            await becomes(Health.UNHEALTHY)
            nvml_shim.find_again(1)
            await becomes(Health.HEALTHY)
        assert agent.publisher is not None
        assert agent.publisher.writes <= BURST + URGENT + 2 * (time.monotonic() - began) / REFILL


async def test_an_operators_cordon_stays_and_counts(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent():
        await cluster.until("node-a", well)
        cordon = patch.apply({"status": {"devices": [{"id": 2, "cordoned": True}]}}, manager="kubectl")
        await cluster.client.patch(GPU_NODE_STATUSES, "node-a", cordon, subresource="status")
        found = await cluster.until("node-a", lambda s: s.status.free == 7)
        assert found.status.devices[2].cordoned
        nvml_shim.xid(2, 79)
        found = await cluster.until("node-a", lambda s: s.status.unhealthy == 8)
        assert [device.cordoned for device in found.status.devices] == [False, False, True, *[False] * 5]


async def test_fields_of_other_owners_are_not_overwritten(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent() as agent:
        await cluster.until("node-a", well)
        foreign = patch.apply(
            {"status": {"devices": [{"id": 1, "inUseBy": ["another-pod"]}]}}, manager="other"
        )
        written = await cluster.client.patch(GPU_NODE_STATUSES, "node-a", foreign, subresource="status")
        publisher = agent.publisher
        assert publisher is not None
        version = int(written.metadata.resource_version)
        await wait_until(
            lambda: publisher.published and int(publisher.published.metadata.resource_version) >= version
        )
        await more_reads(agent, 3)
        assert publisher.writes <= 2
        nvml_shim.lose(6)  # the agent's own fields are still written
        await cluster.until("node-a", lambda s: healths(s)[6] == "Unhealthy")


async def test_a_deleted_or_edited_object_is_restored(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent(period=30.0):
        first = await cluster.until("node-a", well)
        await cluster.client.delete(GPU_NODE_STATUSES, "node-a")
        found = await cluster.until(
            "node-a", lambda s: well(s) and s.metadata.uid != first.metadata.uid, seconds=5
        )
        bent = structs.replace(found, status=structs.replace(found.status, devices=(), total=0))
        await cluster.client.replace(GPU_NODE_STATUSES, bent, subresource="status")
        await cluster.until("node-a", lambda s: well(s) and s.status.total == 8, seconds=5)


async def test_leases_name_the_holders_of_a_gpu(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    lease = Lease(
        metadata=ObjectMeta(name="gpu-node-a-1", namespace="gpufleet"),
        spec=LeaseSpec(holder_identity="pod-1,pod-2"),
    )
    await cluster.client.create(LEASES, lease)
    async with cluster.agent() as agent:
        found = await cluster.until("node-a", lambda s: s.status.devices[1].in_use_by == ("pod-1", "pod-2"))
        assert agent.publisher is not None
        assert (found.status.free, agent.publisher.writes) == (7, 1)
        await cluster.client.delete(LEASES, "gpu-node-a-1", "gpufleet")
        await cluster.until("node-a", lambda s: s.status.free == 8)


async def test_leases_of_a_node_with_a_very_long_name_are_found(
    nvml_shim: NvmlShim, cluster: Cluster
) -> None:
    node = ".".join(["n" * 60] * 4) + ".example"
    lease = Lease(
        metadata=ObjectMeta(name=lease_name(node, 1), namespace="gpufleet"),
        spec=LeaseSpec(holder_identity="pod-1"),
    )
    await cluster.client.create(LEASES, lease)
    async with cluster.agent(node):
        await cluster.until(node, lambda s: s.status.devices[1].in_use_by == ("pod-1",), seconds=5)


def pod(name: str, node: str, allocated: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "jobs", "annotations": {ALLOCATED: allocated}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "busybox"}]},
    }


async def test_a_pod_holds_its_gpus_from_its_binding_to_its_end(
    nvml_shim: NvmlShim, cluster: Cluster
) -> None:
    pods = "/api/v1/namespaces/jobs/pods"
    async with cluster.agent(lease_check=60.0):
        await cluster.until("node-a", well)
        made = await cluster.client.write_json("POST", pods, pod("train", "node-a", "node-a:4,5"))
        await cluster.client.write_json("POST", pods, pod("other", "node-b", "node-b:0"))
        found = await cluster.until("node-a", lambda s: s.status.free == 6, seconds=5)
        assert found.status.devices[5].in_use_by == (made["metadata"]["uid"],)
        done = patch.merge({"status": {"phase": "Succeeded"}})
        await cluster.client.write_json("PATCH", f"{pods}/train/status", done.content, done.content_type)
        await cluster.until("node-a", lambda s: s.status.free == 8, seconds=5)


async def test_pods_without_gpus_cause_no_requests(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    pods = "/api/v1/namespaces/jobs/pods"
    spec = {"nodeName": "node-a", "containers": [{"name": "main", "image": "x"}]}
    claiming = {"name": "claiming", "annotations": {CLAIM: "one"}}
    async with cluster.agent(lease_check=600.0) as agent:
        await cluster.until("node-a", well)
        holders = agent.holders
        assert holders is not None
        await wait_until(lambda: holders.reads >= 2)  # it reads again once the devices are known
        before = holders.reads
        for number in range(5):
            plain = {"metadata": {"name": f"plain-{number}"}, "spec": spec}
            await cluster.client.write_json("POST", pods, plain)
        await wait_until(lambda: len(holders.pods.cache) == 5)
        await cluster.status("node-a")  # a request takes longer than the start of a read
        assert holders.reads == before
        await cluster.client.write_json("POST", pods, {"metadata": claiming, "spec": spec})
        await wait_until(lambda: holders.reads > before)


async def test_mig_instances_are_published(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    nvml_shim.describe(sliced(switched(8), 2))
    async with cluster.agent():
        found = await cluster.until("node-a", well)
    assert [(part.profile, part.uuid) for part in found.status.devices[2].mig_instances] == [
        ("1g.10gb", "MIG-2-0"),
        ("1g.10gb", "MIG-2-1"),
        ("3g.40gb", "MIG-2-2"),
    ]
    assert found.status.devices[2].island == "pcie-0000:12:00.0"


async def test_a_gpu_lost_while_no_agent_ran_is_noticed(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent():
        first = await cluster.until("node-a", well)
    smaller = switched(7)
    nvml_shim.describe(smaller)
    async with cluster.agent():
        found = await cluster.until("node-a", lambda s: healths(s) == ["Healthy"] * 7 + ["Unhealthy"])
    assert found.status.devices[7].health_reason == "the driver no longer lists this GPU"
    assert found.status.devices[7].island == "nvlink-group-0"
    assert found.status.devices[0].health_since == first.status.devices[0].health_since


async def test_an_xid_from_before_the_agent_started_counts(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent():
        await cluster.until("node-a", well)
        nvml_shim.xid(3, 48)
        first = await cluster.until("node-a", lambda s: healths(s)[3] == "Unhealthy")
    async with cluster.agent() as agent:
        await wait_until(lambda: agent.monitor.reads >= 3)
        found = await cluster.status("node-a")
        assert healths(found)[3] == "Unhealthy"
        assert found.status.devices[3].health_since == first.status.devices[3].health_since
        nvml_shim.set("3.field.83", 10)  # reset: the energy counter starts again
        await cluster.until("node-a", well)


async def test_each_change_of_health_is_an_event(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async def recorded() -> dict[str, str]:
        items = (await cluster.client.read_json("/apis/events.k8s.io/v1/events"))["items"]
        assert {(item["regarding"]["kind"], item["regarding"]["name"]) for item in items} <= {
            ("GpuNodeStatus", "node-a")
        }
        return {item["reason"]: item["note"] for item in items}

    async with cluster.agent():
        await cluster.until("node-a", well)
        assert await recorded() == {}
        nvml_shim.lose(6)
        await cluster.until("node-a", lambda s: healths(s)[6] == "Unhealthy")
        nvml_shim.find_again(6)
        await cluster.until("node-a", well)

        async def two() -> bool:
            return len(await recorded()) == 2

        await wait_until(two)
    events = await recorded()
    assert events["GpuUnhealthy"].startswith("GPU 6: ")
    reason = events["GpuUnhealthy"].removeprefix("GPU 6: ")
    assert events["GpuHealthy"] == f"GPU 6 is healthy again: it is back (before: {reason})"


async def test_a_replaced_gpu_is_not_reported_as_lost(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent():
        await cluster.until("node-a", well)
    nvml_shim.set("5.uuid", "GPU-99999999-0000-4000-8000-000000000000")
    async with cluster.agent():
        found = await cluster.until("node-a", lambda s: s.status.devices[5].uuid.startswith("GPU-9999"))
    assert well(found)


async def test_a_new_agent_that_cannot_read_the_driver_marks_the_old_devices_unknown(
    nvml_shim: NvmlShim, cluster: Cluster
) -> None:
    async with cluster.agent():
        await cluster.until("node-a", well)
    nvml_shim.hang("nvmlInitWithFlags")
    async with cluster.agent(deadline=0.3):
        found = await cluster.until("node-a", lambda s: healths(s) == ["Unknown"] * 8)
        nvml_shim.unhang()
    assert [device.island for device in found.status.devices] == ["nvlink-group-0"] * 8


async def test_a_machine_without_gpus_publishes_nothing(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    nvml_shim.fail("nvmlInitWithFlags", 9)
    async with cluster.agent() as agent:
        await more_reads(agent, 3)
    with pytest.raises(ObjectNotFound):
        await cluster.status("node-a")


async def test_two_agents_write_only_their_own_objects(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent("node-a") as one, cluster.agent("node-b") as two:
        await cluster.until("node-a", well)
        await cluster.until("node-b", well)
        for agent in (one, two):
            await more_reads(agent, 3)
        assert one.publisher is not None
        assert two.publisher is not None
        assert (one.publisher.writes, two.publisher.writes) == (1, 1)
        raw = await cluster.client.read_json(GPU_NODE_STATUSES.path(name="node-b"))
        assert {entry["manager"] for entry in raw["metadata"]["managedFields"]} == {MANAGER}


async def test_the_object_belongs_to_its_node(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    node = await cluster.client.write_json("POST", "/api/v1/nodes", {"metadata": {"name": "node-a"}})
    async with cluster.agent():
        found = await cluster.until("node-a", well)
    assert [(owner.kind, owner.uid) for owner in found.metadata.owner_references] == [
        ("Node", node["metadata"]["uid"])
    ]


async def test_the_node_has_its_gpus_as_extended_resources(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    nvml_shim.describe(sliced(switched(4), 2))
    node = {"metadata": {"name": "node-a"}, "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}}
    await cluster.client.write_json("POST", "/api/v1/nodes", node)
    expected = {"gpu.scheduling/gpu": "3", "gpu.scheduling/gpu-share": "300", "gpu.scheduling/mig": "3"}

    async def published() -> bool:
        status = (await cluster.client.get(NODES, "node-a")).status
        return status.capacity == status.allocatable == {"cpu": "8", **expected}

    async with cluster.agent():
        await wait_until(published)
        lost = {
            "status": {"capacity": {"gpu.scheduling/gpu": "0"}, "allocatable": {"gpu.scheduling/gpu": "0"}}
        }
        await cluster.client.patch(NODES, "node-a", patch.merge(lost), subresource="status")
        await wait_until(published)  # the kubelet has registered the node again


async def test_it_publishes_once_the_api_is_back(nvml_shim: NvmlShim, cluster: Cluster) -> None:
    async with cluster.agent() as agent:
        await cluster.until("node-a", well)
        await cluster.server.stop()
        nvml_shim.lose(0)
        publisher = agent.publisher
        assert publisher is not None
        await wait_until(lambda: publisher.error)
        await cluster.server.start()
        await cluster.until("node-a", lambda s: healths(s)[0] == "Unhealthy", seconds=20)


async def plugged(cluster: Cluster) -> str:
    """Create a bound pod with two GPUs of a device plugin, and return its UID."""
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    containers = [{"name": "main", "image": "x", "resources": resources}]
    pod = {"metadata": {"name": "plugged"}, "spec": {"nodeName": "node-a", "containers": containers}}
    made = await cluster.client.write_json("POST", "/api/v1/namespaces/jobs/pods", pod)
    return str(made["metadata"]["uid"])


async def test_gpus_that_a_kubelet_allocates_while_the_image_is_pulled_are_named_at_once(
    nvml_shim: NvmlShim, cluster: Cluster, tmp_path: Path
) -> None:
    allocated: dict[tuple[str, str], list[str]] = {}
    calls: list[object] = []

    def answer(context: object) -> object:
        calls.append(context)
        return response(allocated)

    with kubelet(tmp_path / "s", answer):
        async with cluster.agent(kubelet=tmp_path / "s", lease_check=600) as agent:
            await cluster.until("node-a", well)
            assert agent.holders is not None
            pods = agent.holders.pods.cache
            uid = await plugged(cluster)
            await wait_until(lambda: len(pods) == 1)
            before = len(calls)
            await wait_until(lambda: len(calls) > before)  # the pod appears before the kubelet admits it
            allocated[("jobs", "plugged")] = [uuid(2), uuid(5)]
            found = await cluster.until("node-a", lambda s: s.status.free == 6, seconds=8)
            assert found.status.devices[2].in_use_by == found.status.devices[5].in_use_by == (uid,)


async def test_gpus_of_resource_claims_are_found_by_the_slices_of_the_node(
    nvml_shim: NvmlShim, cluster: Cluster, tmp_path: Path
) -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        "selectableFields": [{"jsonPath": ".spec.nodeName"}],
    }
    names = {"plural": "resourceslices", "singular": "resourceslice", "kind": "ResourceSlice"}
    crd = {"group": "resource.k8s.io", "scope": "Cluster", "names": names, "versions": [version]}
    await cluster.client.write_json(
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {"metadata": {"name": "resourceslices.resource.k8s.io"}, "spec": crd},
    )
    device = {"name": "gpu-3", "attributes": {"uuid": {"string": uuid(5)}}}
    pool = {"name": "node-a", "generation": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": pool, "devices": [device]}
    await cluster.client.write_json(
        "POST", "/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": "s"}, "spec": spec}
    )
    body = {
        "metadata": {"name": "claimed"},
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "main", "image": "x"}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "one"}],
        },
    }
    made = await cluster.client.write_json("POST", "/api/v1/namespaces/jobs/pods", body)
    answer = response({("jobs", "claimed"): []})
    claim = answer.pod_resources[0].containers[1].dynamic_resources.add(claim_name="one")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node-a", device_name="gpu-3")
    with kubelet(tmp_path / "s", lambda _context: answer):
        async with cluster.agent(kubelet=tmp_path / "s"):
            found = await cluster.until("node-a", lambda s: s.status.free == 7)
    assert found.status.devices[5].in_use_by == (made["metadata"]["uid"],)


async def test_gpus_from_a_device_plugin_are_held_also_while_the_kubelet_restarts(
    nvml_shim: NvmlShim, cluster: Cluster, tmp_path: Path
) -> None:
    socket = tmp_path / "kubelet.sock"
    allocated = {("jobs", "plugged"): [uuid(2), f"{uuid(5)}::1"]}

    async def held() -> dict[int, tuple[str, ...]]:
        found = await cluster.status("node-a")
        return {device.id: device.in_use_by for device in found.status.devices if device.in_use_by}

    uid = await plugged(cluster)
    with capture_logs() as lines:
        async with cluster.agent(kubelet=socket, lease_check=0.1) as agent:
            holders = agent.holders
            assert holders is not None
            with kubelet(socket, lambda _context: response(allocated)):
                await cluster.until("node-a", lambda s: s.status.free == 6)
                assert await held() == {2: (uid,), 5: (uid,)}
            await wait_until(lambda: _failures(lines) == 1)
            reads = holders.reads
            await wait_until(lambda: holders.reads > reads + 3)  # three more failed calls
            assert _failures(lines) == 1
            assert await held() == {2: (uid,), 5: (uid,)}
            allocated[("jobs", "plugged")] = [uuid(2)]
            with kubelet(socket, lambda _context: response(allocated)):
                await cluster.until("node-a", lambda s: s.status.free == 7)
                assert [line["event"] for line in lines].count("plugin_devices_read_again") == 1
            await cluster.client.write_json(
                "DELETE", "/api/v1/namespaces/jobs/pods/plugged", {"gracePeriodSeconds": 0}
            )
            await cluster.until("node-a", lambda s: s.status.free == 8)


def _failures(lines: list[Any]) -> int:
    return sum(line["event"] == "plugin_devices_not_read" for line in lines)


async def test_changes_of_pods_do_not_delay_the_news_of_a_fault(cluster: Cluster) -> None:
    timing = Timing(monotonic=lambda: 100.0)
    publisher = StatusPublisher(cluster.client, "node-a", lambda cordoned: None, timing=timing)
    for _ in range(BURST):
        assert publisher._take_token(urgent=False) == 0
    assert publisher._take_token(urgent=True) == 0
    assert publisher._take_token(urgent=False) == REFILL


def test_fields_that_an_older_crd_does_not_declare_are_left_out() -> None:
    error = (
        "failed to create typed patch object (/node-a; gpu.scheduling/v1, Kind=GpuNodeStatus): errors:\n"
        "  .status.devices[id=0].nvlinks: field not declared in schema\n"
        "  .status.devices[id=1].nvlinks: field not declared in schema\n"
        "  .status.kernelLog: field not declared in schema\n"
    )
    assert undeclared_fields(error) == {"nvlinks", "kernelLog"}
    assert undeclared_fields("the server is busy") == frozenset()
    status = NodeGpus((DeviceStatus(0, health="Healthy", island="i0"),), 1)
    kept = declared_fields(status, frozenset({"island", "total"}))
    assert "total" not in kept
    assert kept["devices"][0]["health"] == "Healthy"
    assert "island" not in kept["devices"][0]
