"""Which pod got which GPU from a device plugin: the kubelet tells, on its PodResources socket.

The service is `v1.PodResourcesLister`, served by every kubelet since Kubernetes 1.20. Its `List` names each pod
by namespace and name with the ids of its devices; whoever asks knows the uids of the pods on this node. Four
fields of the answer are of interest, nested four deep. They are decoded by hand, since protobuf's library takes
five times the memory of all that asking needs (see `grpc`); fields that are not known are passed over here as
they are there.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gpufleet.agent.grpc_client import CallFailed, ask
from gpufleet.errors import KubernetesUnavailable

PodName = tuple[str, str]
"""Namespace and name."""

LIST = "/v1.PodResourcesLister/List"
# Numbers of fields in the kubelet's messages.
_PODS = 1
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3
_CONTAINER_DEVICES = 2
_DEVICE_IDS = 2


async def plugged(socket: Path, seconds: float = 5.0) -> Mapping[PodName, set[str]]:
    """Device ids by pod; KubernetesUnavailable says why the kubelet doesn't tell."""
    try:
        return decode(await ask(socket, LIST, b"", seconds))
    except CallFailed as error:
        raise KubernetesUnavailable(f"the kubelet at {socket}: {error}") from error


def decode(answer: bytes) -> dict[PodName, set[str]]:
    """What a ListPodResourcesResponse says of devices; pods without any are left out."""
    found: dict[PodName, set[str]] = {}
    for pod in _parts(answer, _PODS):
        ids = {
            id.decode(errors="replace")
            for container in _parts(pod, _POD_CONTAINERS)
            for devices in _parts(container, _CONTAINER_DEVICES)
            for id in _parts(devices, _DEVICE_IDS)
        }
        if ids:
            found[_text(pod, _POD_NAMESPACE), _text(pod, _POD_NAME)] = ids
    return found


def _text(message: bytes, wanted: int) -> str:
    return next((part.decode(errors="replace") for part in _parts(message, wanted)), "")


def _parts(message: bytes, wanted: int) -> Iterator[bytes]:
    """The fields of that number that are strings or messages; all others are passed over."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        match key & 7:
            case 0:
                _, at = _number(message, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length, start = _number(message, at)
                at = start + length
                if key >> 3 == wanted and at <= len(message):
                    yield message[start:at]
            case kind:
                raise CallFailed(f"the answer has a field of kind {kind}, which is none of protobuf's")
    if at > len(message):
        raise CallFailed("the answer ends within a field")


def _number(message: bytes, at: int) -> tuple[int, int]:
    """The number at that place, seven bits to a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise CallFailed("the answer ends within a number")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise CallFailed("the answer has a number of more than 64 bits")
