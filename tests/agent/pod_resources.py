"""The PodResources service of a kubelet on a real gRPC server, with the messages of its API (`v1`).

Message classes are made from the description below by protobuf's own library; nothing here knows of the
agent's decoding.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _INT64, _UINT64 = 9, 3, 4
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [
        ("name", 1, _STRING, False),
        ("namespace", 2, _STRING, False),
        ("containers", 3, "ContainerResources", True),
    ],
    "ContainerResources": [
        ("name", 1, _STRING, False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, _INT64, True),
        ("memory", 4, "ContainerMemory", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "ContainerMemory": [
        ("memory_type", 1, _STRING, False),
        ("size", 2, _UINT64, False),
        ("topology", 3, "TopologyInfo", False),
    ],
    "ContainerDevices": [
        ("resource_name", 1, _STRING, False),
        ("device_ids", 2, _STRING, True),
        ("topology", 3, "TopologyInfo", False),
    ],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "NUMANode": [("ID", 1, _INT64, False)],
    "DynamicResource": [
        ("claim_name", 2, _STRING, False),
        ("claim_namespace", 3, _STRING, False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, _STRING, False),
        ("pool_name", 3, _STRING, False),
        ("device_name", 4, _STRING, False),
    ],
    "CDIDevice": [("name", 1, _STRING, False)],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, int):
                added.type = kind
            else:
                added.type, added.type_name = 11, f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _MESSAGES
    }


MESSAGES = _classes()
Devices = Mapping[tuple[str, str], list[str]]
"""Device ids by namespace and name of the pod."""


def response(devices: Devices) -> Any:
    """Return a response of the kubelet with fields beyond the devices."""
    answer = MESSAGES["ListPodResourcesResponse"]()
    for (namespace, name), ids in devices.items():
        pod = answer.pod_resources.add(name=name, namespace=namespace)
        pod.containers.add(name="sidecar", cpu_ids=[0, 4, 1023])
        container = pod.containers.add(name="main", cpu_ids=[1, 2])
        container.memory.add(memory_type="hugepages-1Gi", size=2**40).topology.nodes.add(ID=1)
        claim = container.dynamic_resources.add(claim_name="net", claim_namespace=namespace)
        claim.claim_resources.add(driver_name="net.example.com", device_name="nic-0").cdi_devices.add(
            name="n"
        )
        for id in ids:  # kubelets tell devices of each NUMA node apart
            entry = container.devices.add(resource_name="nvidia.com/gpu", device_ids=[id])
            entry.topology.nodes.add(ID=1)
    return answer


@contextmanager
def kubelet(socket: Path, answer: Callable[[Any], Any]) -> Iterator[grpc.Server]:
    """Serve on `socket` within the block; `answer` takes the call's context and makes the response."""

    def listed(_request: Any, context: Any) -> Any:
        return answer(context)

    method = grpc.unary_unary_rpc_method_handler(
        listed,
        request_deserializer=MESSAGES["ListPodResourcesRequest"].FromString,
        response_serializer=MESSAGES["ListPodResourcesResponse"].SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield server
    finally:
        server.stop(grace=0).wait(10)
