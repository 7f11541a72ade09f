"""The agent as a DRA driver: its ResourceSlices in the embedded API, and its answers to a kubelet's gRPC calls."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.agent.conftest import Cluster
from tests.shim.nvml import NvmlShim, machine, sliced, switched, uuid
from tests.waiting import wait_until

from gpufleet.agent.agent import Agent
from gpufleet.agent.dra.devices import CORDONED_TAINT, UNHEALTHY_TAINT
from gpufleet.kubernetes import GPU_NODE_STATUSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.resource_claims import Device, ResourceClaim

DRIVER = "gpu.scheduling"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Json = dict[str, Any]

# Messages of the kubelet's APIs, made by protobuf's own library. A map is a list of entries on the wire.
_STRING, _BOOL = 9, 8
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "InfoRequest": [],
    "PluginInfo": [
        ("type", 1, _STRING, False),
        ("name", 2, _STRING, False),
        ("endpoint", 3, _STRING, False),
        ("supported_versions", 4, _STRING, True),
    ],
    "RegistrationStatus": [("plugin_registered", 1, _BOOL, False), ("error", 2, _STRING, False)],
    "Empty": [],
    "Claims": [("claims", 1, "Claim", True)],
    "Claim": [("namespace", 1, _STRING, False), ("uid", 2, _STRING, False), ("name", 3, _STRING, False)],
    "Prepared": [("claims", 1, "PreparedEntry", True)],
    "PreparedEntry": [("key", 1, _STRING, False), ("value", 2, "PreparedClaim", False)],
    "PreparedClaim": [("devices", 1, "Device", True), ("error", 2, _STRING, False)],
    "Device": [
        ("request_names", 1, _STRING, True),
        ("pool_name", 2, _STRING, False),
        ("device_name", 3, _STRING, False),
        ("cdi_device_ids", 4, _STRING, True),
    ],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="dra.proto", package="dra", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, int):
                added.type = kind
            else:
                added.type, added.type_name = 11, f".dra.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dra.{name}")) for name in _MESSAGES
    }


MESSAGES = _classes()


class Kubelet:
    """Calls a driver as the kubelet does, with another gRPC library than the driver's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registration = root / "plugins_registry" / f"{DRIVER}-reg.sock"

    async def register(self) -> Any:
        """Wait for the driver, ask for its endpoint and accept it."""
        await wait_until(self.registration.exists)
        service = "/pluginregistration.Registration"
        info = await self._call(self.registration, f"{service}/GetInfo", "InfoRequest", "PluginInfo")
        status = {"plugin_registered": True}
        await self._call(
            self.registration, f"{service}/NotifyRegistrationStatus", "RegistrationStatus", "Empty", **status
        )
        return info

    async def prepare(self, *claims: ResourceClaim) -> dict[str, Any]:
        """Return the answer for each claim, by name."""
        return await self._claims("NodePrepareResources", claims)

    async def unprepare(self, *claims: ResourceClaim) -> dict[str, Any]:
        return await self._claims("NodeUnprepareResources", claims)

    async def _claims(self, method: str, claims: Sequence[ResourceClaim]) -> dict[str, Any]:
        metas = [each.metadata for each in claims]
        asked = [MESSAGES["Claim"](namespace=m.namespace, uid=m.uid, name=m.name) for m in metas]
        path = f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}"
        socket = self.root / "plugins" / DRIVER / "dra.sock"
        answer = await self._call(socket, path, "Claims", "Prepared", claims=asked)
        names = {m.uid: m.name for m in metas}
        return {names[entry.key]: entry.value for entry in answer.claims}

    async def _call(self, socket: Path, path: str, request: str, response: str, **fields: Any) -> Any:
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            method = channel.unary_unary(
                path,
                request_serializer=MESSAGES[request].SerializeToString,
                response_deserializer=MESSAGES[response].FromString,
            )
            return await method(MESSAGES[request](**fields), timeout=20)


def _definition(kind: str, plural: str, scope: str, devices: Json, selectable: Sequence[str] = ()) -> Json:
    """Return a CRD that stands for a kind of resource.k8s.io."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {**anything, "properties": {"devices": devices}} if devices else anything
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": anything}}},
        "selectableFields": [{"jsonPath": path} for path in selectable],
        "subresources": {"status": {}} if kind == "ResourceClaim" else {},
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "metadata": {
            "name": f"{plural}.resource.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://example.com"},
        },
        "spec": {"group": "resource.k8s.io", "scope": scope, "names": names, "versions": [version]},
    }


class Driver:
    """Agents that serve as drivers, and what they publish."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster, self.kubelet = cluster, Kubelet(root)
        (root / "plugins_registry").mkdir()

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Agent]:
        async with self.cluster.agent(dra=True, kubelet_root=self.kubelet.root, **options) as agent:
            yield agent

    async def devices(self) -> dict[str, Device]:
        """Return the published devices."""
        slices = (await self.cluster.client.list(RESOURCE_SLICES)).items
        assert all(each.spec.pool.name == each.spec.node_name == "node-a" for each in slices)
        return {device.name: device for each in slices for device in each.spec.devices}

    async def tainted(self) -> dict[str, list[str]]:
        found = await self.devices()
        return {name: [t.key for t in device.taints] for name, device in found.items() if device.taints}

    async def claim(self, name: str, *devices: str, pool: str = "node-a") -> ResourceClaim:
        """Create a claim that has these devices."""
        client = self.cluster.client
        path = "/apis/resource.k8s.io/v1/namespaces/jobs/resourceclaims"
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        await client.write_json("POST", path, body)
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": pool, "device": device} for device in devices
        ]
        status = {"status": {"allocation": {"devices": {"results": results}}}}
        return await client.patch(
            RESOURCE_CLAIMS, name, patch.merge(status), namespace="jobs", subresource="status"
        )


async def _install(cluster: Cluster, device: Json | None = None) -> None:
    devices = {"type": "array", "items": device} if device else {}
    for definition in (
        _definition(
            "ResourceSlice", "resourceslices", "Cluster", devices, [".spec.nodeName", ".spec.driver"]
        ),
        _definition("ResourceClaim", "resourceclaims", "Namespaced", {}),
    ):
        await cluster.client.write_json("POST", CRDS, definition)
    await cluster.client.write_json("POST", "/api/v1/nodes", {"metadata": {"name": "node-a"}})


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    """A directory with a short path: the address of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-") as name:
        yield Path(name)


@pytest.fixture
async def driver(cluster: Cluster, kubelet_root: Path) -> Driver:
    await _install(cluster)
    return Driver(cluster, kubelet_root)


async def test_gpus_are_published_with_what_claims_select_by(nvml_shim: NvmlShim, driver: Driver) -> None:
    nvml_shim.describe(switched(8))
    async with driver.running():
        await wait_until(lambda: _has(driver, 8))
        found = await driver.devices()
    device = found["gpu-3"]
    values = {key: value.text or value.number for key, value in device.attributes.items()}
    assert values["uuid"] == uuid(3)
    assert (values["type"], values["index"], values["vendor"]) == ("gpu", 3, "nvidia")
    assert str(values["resource.kubernetes.io/pciBusID"]).startswith("0000:")
    assert str(values["model"]).startswith("NVIDIA_H100")
    assert values["island"] == "nvlink-group-0"
    assert int(device.capacity["memory"].value) > 2**30
    assert await driver.tainted() == {}
    owners = (await driver.cluster.client.list(RESOURCE_SLICES)).items[0].metadata.owner_references
    assert [(each.kind, each.name) for each in owners] == [("Node", "node-a")]


async def test_mig_instances_are_published_instead_of_their_gpu(nvml_shim: NvmlShim, driver: Driver) -> None:
    nvml_shim.describe(sliced(machine(2), 0))
    async with driver.running():
        found = await wait_until(driver.devices)
        parts = [name for name in found if name.startswith("gpu-0-mig-")]
        assert parts
        assert "gpu-0" not in found
        assert "gpu-1" in found
        part = found[parts[0]].attributes
        assert (part["type"].text, part["parentUUID"].text) == ("mig", uuid(0))
        await driver.kubelet.register()
        claim = await driver.claim("slice", parts[0])
        answer = (await driver.kubelet.prepare(claim))["slice"]
        assert list(answer.devices[0].cdi_device_ids) == [f"nvidia.com/gpu={part['uuid'].text}"]


async def test_health_and_cordons_become_taints_and_vanish(nvml_shim: NvmlShim, driver: Driver) -> None:
    async with driver.running():
        await wait_until(lambda: _has(driver, 8))
        nvml_shim.xid(3, 48)
        await wait_until(lambda: _is_tainted(driver, {"gpu-3": [UNHEALTHY_TAINT]}))
        nvml_shim.set("3.field.83", 10)  # reset: the energy counter starts again
        nvml_shim.xid(0, 13)
        await wait_until(lambda: _is_tainted(driver, {}))
        cordon = patch.apply({"status": {"devices": [{"id": 5, "cordoned": True}]}}, manager="operator")
        await driver.cluster.client.patch(GPU_NODE_STATUSES, "node-a", cordon, subresource="status")
        await wait_until(lambda: _is_tainted(driver, {"gpu-5": [CORDONED_TAINT]}))


async def test_without_device_taints_an_unhealthy_gpu_is_left_out(
    nvml_shim: NvmlShim, cluster: Cluster, kubelet_root: Path
) -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    known = {"name": {"type": "string"}, "attributes": anything, "capacity": anything}
    await _install(cluster, {"type": "object", "properties": known})
    driver = Driver(cluster, kubelet_root)
    async with driver.running():
        await wait_until(lambda: _has(driver, 8))
        nvml_shim.xid(3, 48)
        await wait_until(lambda: _has(driver, 7))
        assert "gpu-3" not in await driver.devices()


async def test_a_deleted_slice_is_published_again(driver: Driver, nvml_shim: NvmlShim) -> None:
    async with driver.running():
        await wait_until(lambda: _has(driver, 8))
        name = (await driver.cluster.client.list(RESOURCE_SLICES)).items[0].metadata.name
        await driver.cluster.client.delete(RESOURCE_SLICES, name)
        await wait_until(lambda: _has(driver, 8))


async def test_the_kubelet_is_told_the_cdi_devices_of_a_claim(driver: Driver, nvml_shim: NvmlShim) -> None:
    async with driver.running() as agent:
        info = await driver.kubelet.register()
        endpoint = str(driver.kubelet.root / "plugins" / DRIVER / "dra.sock")
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, endpoint)
        assert list(info.supported_versions) == ["v1.DRAPlugin"]
        assert b"gpufleet_agent_dra_registered 1.0" in agent.exporter.render()
        two, other = await driver.claim("two", "gpu-1", "gpu-6"), await driver.claim("other", "gpu-9")
        elsewhere = await driver.claim("elsewhere", "gpu-2", pool="node-b")
        for _ in range(2):  # a call may be repeated
            found = await driver.kubelet.prepare(two, other, elsewhere)
            devices = [
                (d.pool_name, d.device_name, *d.request_names, *d.cdi_device_ids)
                for d in found["two"].devices
            ]
            assert devices == [
                ("node-a", "gpu-1", "gpus", f"nvidia.com/gpu={uuid(1)}"),
                ("node-a", "gpu-6", "gpus", f"nvidia.com/gpu={uuid(6)}"),
            ]
            assert found["two"].error == ""
            assert found["other"].error == "this node has no device gpu-9"
            assert "has no devices of gpu.scheduling on this node" in found["elsewhere"].error
        assert (await driver.kubelet.unprepare(two))["two"].error == ""


async def test_a_claim_that_was_created_again_or_does_not_exist_is_refused(
    driver: Driver, nvml_shim: NvmlShim
) -> None:
    async with driver.running():
        await driver.kubelet.register()
        old = await driver.claim("one", "gpu-1")
        await driver.cluster.client.delete(RESOURCE_CLAIMS, "one", "jobs")
        assert "not found" in (await driver.kubelet.prepare(old))["one"].error
        await driver.claim("one", "gpu-1")
        assert "was deleted and created again" in (await driver.kubelet.prepare(old))["one"].error


async def test_a_device_is_not_prepared_for_two_claims_even_by_a_restarted_agent(
    driver: Driver, nvml_shim: NvmlShim
) -> None:
    async with driver.running():
        await driver.kubelet.register()
        first = await driver.claim("first", "gpu-1", "gpu-2")
        second = await driver.claim("second", "gpu-2")
        assert len((await driver.kubelet.prepare(first))["first"].devices) == 2
    assert not driver.kubelet.registration.exists()
    async with driver.running():
        await driver.kubelet.register()
        refused = (await driver.kubelet.prepare(second))["second"].error
        assert refused == "gpu-2 is in use by ResourceClaim jobs/first"
        await driver.cluster.client.delete(RESOURCE_CLAIMS, "first", "jobs")  # its unprepare was missed
        assert len((await driver.kubelet.prepare(second))["second"].devices) == 1
        third = await driver.claim("third", "gpu-2")
        await driver.kubelet.unprepare(second)
        assert len((await driver.kubelet.prepare(third))["third"].devices) == 1


async def _has(driver: Driver, count: int) -> bool:
    return len(await driver.devices()) == count


async def _is_tainted(driver: Driver, taints: dict[str, list[str]]) -> bool:
    return len(await driver.devices()) == 8 and await driver.tainted() == taints
