"""Decode responses into typed objects.

An object that does not match its type (written by another version, or without a schema) must not
make a list of 20,000 unreadable: it is skipped and logged.
"""

from typing import Any

import msgspec

from gpufleet.kubernetes.client.errors import UndecodableResponse
from gpufleet.kubernetes.client.resources import ListMeta, RawList, Resource, T
from gpufleet.kubernetes.client.transport import Request
from gpufleet.kubernetes.objects import KubeObject
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")
_raw_list = msgspec.json.Decoder(RawList)
_any_object = msgspec.json.Decoder(KubeObject)


def accept_header(resource: Resource[Any], *, many: bool = False) -> str:
    """Return the Accept header: only metadata if the type reads nothing else."""
    if resource.type is not KubeObject:
        return "application/json"
    kind = "PartialObjectMetadataList" if many else "PartialObjectMetadata"
    return f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


def decode_object(resource: Resource[T], body: bytes, request: Request) -> T:
    """Decode one object."""
    try:
        return resource.decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UndecodableResponse(f"{request}: the response is not a {resource.kind}: {error}") from None


def decode_list(resource: Resource[T], body: bytes, request: Request) -> tuple[list[T], ListMeta]:
    """Decode a page of a list."""
    try:
        page = resource.list_decoder.decode(body)
        return page.items or [], page.metadata
    except msgspec.ValidationError:
        return _decode_one_by_one(resource, body, request)
    except msgspec.MsgspecError as error:
        raise UndecodableResponse(
            f"{request}: the response is not a list of {resource.kind}: {error}"
        ) from None


def _decode_one_by_one(resource: Resource[T], body: bytes, request: Request) -> tuple[list[T], ListMeta]:
    try:
        page = _raw_list.decode(body)
    except msgspec.MsgspecError as error:
        raise UndecodableResponse(
            f"{request}: the response is not a list of {resource.kind}: {error}"
        ) from None
    good = []
    for raw in page.items or []:
        try:
            good.append(resource.decoder.decode(raw))
        except msgspec.MsgspecError as error:
            skip_object(resource, bytes(raw), error)
    return good, page.metadata


def skip_object(resource: Resource[Any], raw: bytes, error: Exception) -> KubeObject:
    """Log an object that can't be decoded; return its metadata as far as it is readable."""
    try:
        item = _any_object.decode(raw)
    except msgspec.MsgspecError:
        item = KubeObject()
    meta = item.metadata
    _log.warning(
        "object_skipped", kind=resource.kind, namespace=meta.namespace, name=meta.name, error=str(error)
    )
    return item


def decode_json(body: bytes, request: Request) -> Any:
    """Decode plain JSON values."""
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise UndecodableResponse(f"{request}: the response is not JSON: {error}") from None
