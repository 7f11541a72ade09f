"""One request that changes something, and what its body says: JSON, YAML or protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from gpufleet.kubelite.conform import Asking
from gpufleet.kubelite.kinds import Kind
from gpufleet.kubelite.paths import Target
from gpufleet.kubelite.protobuf import read_protobuf
from gpufleet.kubelite.status import ApiError, bad_request


@dataclass(frozen=True)
class Call:
    """A request that names a resource, read once."""

    method: str
    target: Target
    kind: Kind
    query: Mapping[str, str]
    accept: str
    content_type: str
    body: bytes
    asking: Asking


def decoded(call: Call) -> Any:
    """The body of a request, whichever of the three ways it is written."""
    if not call.body:
        raise bad_request("the request has no body")
    if call.content_type in ("application/yaml", "application/apply-patch+yaml") and call.body[:1] != b"{":
        try:
            return yaml.load(call.body, Loader=_YamlLoader)  # noqa: S506  a safe loader, without timestamps
        except yaml.YAMLError as error:
            raise bad_request(f"the body is not YAML: {error}") from error
    if call.content_type == "application/vnd.kubernetes.protobuf":
        return read_protobuf(call.body, _message_type(call))
    try:
        return msgspec.json.decode(call.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def _message_type(call: Call) -> str:
    """The type of a protobuf body: the kind's own, unless a subresource or verb takes another."""
    if call.method == "DELETE":
        return "DeleteOptions"
    special = {"binding": "Binding", "eviction": "Eviction", "scale": "Scale"}
    if call.kind.custom:
        raise ApiError(415, "custom resources are sent as JSON or YAML")
    return special.get(call.target.subresource, call.kind.type_name)


class _YamlLoader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a date stays text."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
