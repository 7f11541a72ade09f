"""Requests that write, and decoding of their bodies: JSON, YAML or protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from kubelite.api.paths import Target
from kubelite.api.protobuf import read_protobuf
from kubelite.errors import ApiError, bad_request
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext

_MAX_VALUES = 1_000_000


@dataclass(frozen=True)
class WriteRequest:
    """A request that writes to a resource."""

    method: str
    target: Target
    kind: Kind
    query: Mapping[str, str]
    accept: str
    content_type: str
    body: bytes
    context: WriteContext


def decode_body(request: WriteRequest) -> Any:
    """Return the decoded body of a request."""
    if not request.body:
        raise bad_request("the request has no body")
    if (
        request.content_type in ("application/yaml", "application/apply-patch+yaml")
        and request.body[:1] != b"{"
    ):
        try:
            found = yaml.load(request.body, Loader=_YamlLoader)  # noqa: S506  a safe loader, without timestamps
        except (yaml.YAMLError, RecursionError) as error:
            raise bad_request(f"the body is not YAML: {error}") from error
        if _count_values(found, {}) > _MAX_VALUES:
            raise bad_request("the body is not YAML: document contains excessive aliasing")
        return found
    if request.content_type == "application/vnd.kubernetes.protobuf":
        return read_protobuf(request.body, _message_type(request))
    try:
        return msgspec.json.decode(request.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def _message_type(request: WriteRequest) -> str:
    """Return the message type of a protobuf body: that of the kind, the subresource or the verb."""
    if request.method == "DELETE":
        return "DeleteOptions"
    special = {"binding": "Binding", "eviction": "Eviction", "scale": "Scale"}
    if request.kind.custom:
        raise ApiError(415, "custom resources are sent as JSON or YAML")
    return special.get(request.target.subresource, request.kind.type_name)


def _count_values(value: Any, known: dict[int, int]) -> int:
    """Count values with every alias expanded: a few lines of YAML can expand to billions."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = _MAX_VALUES + 1  # an alias of a parent never ends
        children = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count_values(child, known) for child in children)
    return known[id(value)]


class _YamlLoader(yaml.SafeLoader):
    """Read YAML as Kubernetes does: dates stay strings."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
