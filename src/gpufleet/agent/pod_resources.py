"""Ask the kubelet which pod got which GPU from a device plugin or by a ResourceClaim.

The kubelet serves the gRPC service `v1.PodResourcesLister` on a unix socket since Kubernetes 1.20. `List`
returns each pod by namespace and name, with the ids of its devices: those of device plugins, and the GPUs
of ResourceClaims as `driver/pool/device`. A few fields of the response matter here, nested up to five
levels deep. They are decoded by hand: grpclib needs no protobuf runtime (measured: grpclib adds
3 MiB to the agent, grpcio with protobuf 21 MiB and threads).
"""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

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
        async with asyncio.timeout(deadline), Channel(path=str(socket), codec=_RawCodec()) as channel:
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


class _RawCodec(CodecBase):
    """Passes messages through as bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def decode(response: bytes) -> dict[PodName, set[str]]:
    """Return device ids by pod from a ListPodResourcesResponse; pods without devices are left out."""
    found: dict[PodName, set[str]] = {}
    for pod in _fields(response, _PODS):
        ids = {
            id.decode(errors="replace")
            for container in _fields(pod, _POD_CONTAINERS)
            for devices in _fields(container, _CONTAINER_DEVICES)
            for id in _fields(devices, _DEVICE_IDS)
        }
        ids |= {
            "/".join(_text(resource, field) for field in (_CLAIM_DRIVER, _CLAIM_POOL, _CLAIM_DEVICE))
            for container in _fields(pod, _POD_CONTAINERS)
            for claim in _fields(container, _CONTAINER_DYNAMIC)
            for resource in _fields(claim, _DYNAMIC_CLAIM_RESOURCES)
            if _text(resource, _CLAIM_DRIVER) in GPU_DRIVERS
        }
        if ids:
            found[_text(pod, _POD_NAMESPACE), _text(pod, _POD_NAME)] = ids
    return found


def _text(message: bytes, number: int) -> str:
    return next((value.decode(errors="replace") for value in _fields(message, number)), "")


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the strings and sub-messages with that field number, and skip all other fields."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length, start = _varint(message, at)
                at = start + length
                if key >> 3 == number and at <= len(message):
                    yield message[start:at]
            case kind:
                raise ValueError(f"the response has a field of unknown wire type {kind}")
    if at > len(message):
        raise ValueError("the response ends within a field")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at that position and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("the response ends within a number")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("the response has a number of more than 64 bits")
