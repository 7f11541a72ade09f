"""From bytes to typed objects, and what happens to those that don't fit.

One object that breaks its type (written by another version, or by hand without a schema)
must not make a list of 20,000 unreadable: it is left out, and said in the log.
"""

from typing import Any

import msgspec

from gpufleet.kubernetes.client.errors import UndecodableAnswer
from gpufleet.kubernetes.client.resources import ListMeta, RawList, Resource, T
from gpufleet.kubernetes.client.transport import Request
from gpufleet.kubernetes.objects import KubeObject
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")
_raw_list = msgspec.json.Decoder(RawList)
_any_object = msgspec.json.Decoder(KubeObject)


def accept(resource: Resource[Any], *, many: bool = False) -> str:
    """What to ask the server for: metadata alone where the type reads no more."""
    if resource.type is not KubeObject:
        return "application/json"
    kind = "PartialObjectMetadataList" if many else "PartialObjectMetadata"
    return f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


def item(resource: Resource[T], body: bytes, request: Request) -> T:
    """One object."""
    try:
        return resource.decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UndecodableAnswer(f"{request}: not a {resource.kind} as expected: {error}") from None


def items(resource: Resource[T], body: bytes, request: Request) -> tuple[list[T], ListMeta]:
    """The objects of a page, and the page's own metadata."""
    try:
        page = resource.list_decoder.decode(body)
        return page.items or [], page.metadata
    except msgspec.ValidationError:
        return _one_by_one(resource, body, request)
    except msgspec.MsgspecError as error:
        raise UndecodableAnswer(f"{request}: not a list of {resource.kind}: {error}") from None


def _one_by_one(resource: Resource[T], body: bytes, request: Request) -> tuple[list[T], ListMeta]:
    try:
        page = _raw_list.decode(body)
    except msgspec.MsgspecError as error:
        raise UndecodableAnswer(f"{request}: not a list of {resource.kind}: {error}") from None
    good = []
    for raw in page.items or []:
        try:
            good.append(resource.decoder.decode(raw))
        except msgspec.MsgspecError as error:
            left_out(resource, bytes(raw), error)
    return good, page.metadata


def left_out(resource: Resource[Any], raw: bytes, error: Exception) -> KubeObject:
    """Say in the log which object can't be read and why; returns what it says of itself."""
    try:
        known = _any_object.decode(raw)
    except msgspec.MsgspecError:
        known = KubeObject()
    meta = known.metadata
    _log.warning(
        "object left out", kind=resource.kind, namespace=meta.namespace, name=meta.name, error=str(error)
    )
    return known


def anything(body: bytes, request: Request) -> Any:
    """Plain JSON values."""
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise UndecodableAnswer(f"{request}: not JSON: {error}") from None
