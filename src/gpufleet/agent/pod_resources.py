"""Ask the kubelet which pod got which GPU from a device plugin or by a ResourceClaim.

The kubelet serves the gRPC service `v1.PodResourcesLister` on a unix socket since Kubernetes 1.20. `List`
returns each pod by namespace and name, with the ids of its devices: those of device plugins, and the GPUs
of ResourceClaims as `driver/pool/device`. A few fields of the response matter here, nested up to five
levels deep. They are decoded by hand: grpclib needs no protobuf runtime (measured: grpclib adds
3 MiB to the agent, grpcio with protobuf 21 MiB and threads).
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from gpufleet.agent.protobuf import fields, text
from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.resource_claims import GPU_DRIVERS

PodName = tuple[str, str]
"""Namespace and name."""

_LIST = "/v1.PodResourcesLister/List"
# Field numbers in the kubelet's messages.
_PODS = 1
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3
_CONTAINER_DEVICES, _CONTAINER_DYNAMIC = 2, 5
_DEVICE_IDS = 2
_DYNAMIC_CLAIM_RESOURCES = 4
_CLAIM_DRIVER, _CLAIM_POOL, _CLAIM_DEVICE = 2, 3, 4


async def list_plugin_devices(socket: Path, deadline: float = 5.0) -> Mapping[PodName, set[str]]:
    """Return device ids by pod. Each call opens a connection, so a kubelet may restart in between."""
    try:
        async with asyncio.timeout(deadline), Channel(path=str(socket), codec=RawCodec()) as channel:
            method: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(channel, _LIST, bytes, bytes)
            return decode(await method(b"", timeout=deadline))
    except TimeoutError:
        problem = f"no answer within {deadline:g} s"
    except GRPCError as error:
        problem = f"gRPC status {error.status.value}: {error.message}"
    except OSError as error:
        problem = error.strerror or str(error)
    except (ProtocolError, StreamTerminatedError, ValueError) as error:
        problem = str(error) or type(error).__name__
    raise KubernetesUnavailable(f"the kubelet at {socket}: {problem}")


class RawCodec(CodecBase):
    """Passes messages through as bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        """Return the message."""
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        """Return the message."""
        return data


def decode(response: bytes) -> dict[PodName, set[str]]:
    """Return device ids by pod from a ListPodResourcesResponse; pods without devices are left out."""
    found: dict[PodName, set[str]] = {}
    for pod in fields(response, _PODS):
        ids = {
            id.decode(errors="replace")
            for container in fields(pod, _POD_CONTAINERS)
            for devices in fields(container, _CONTAINER_DEVICES)
            for id in fields(devices, _DEVICE_IDS)
        }
        ids |= {
            "/".join(text(resource, field) for field in (_CLAIM_DRIVER, _CLAIM_POOL, _CLAIM_DEVICE))
            for container in fields(pod, _POD_CONTAINERS)
            for claim in fields(container, _CONTAINER_DYNAMIC)
            for resource in fields(claim, _DYNAMIC_CLAIM_RESOURCES)
            if text(resource, _CLAIM_DRIVER) in GPU_DRIVERS
        }
        if ids:
            found[text(pod, _POD_NAMESPACE), text(pod, _POD_NAME)] = ids
    return found
