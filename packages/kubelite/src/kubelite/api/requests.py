"""One request that changes something, and what its body says: JSON, YAML or protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from kubelite.api.paths import Target
from kubelite.api.protobuf import read_protobuf
from kubelite.errors import ApiError, bad_request
from kubelite.kinds import Kind
from kubelite.objects.context import Asking

_MOST_VALUES = 1_000_000


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
            found = yaml.load(call.body, Loader=_YamlLoader)  # noqa: S506  a safe loader, without timestamps
        except (yaml.YAMLError, RecursionError) as error:
            raise bad_request(f"the body is not YAML: {error}") from error
        if _weight(found, {}) > _MOST_VALUES:
            raise bad_request("the body is not YAML: document contains excessive aliasing")
        return found
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


def _weight(value: Any, known: dict[int, int]) -> int:
    """How many values there are with every alias written out: a few lines can stand for billions."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES + 1  # for an alias of what it is in itself, which has no end
        below = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_weight(one, known) for one in below)
    return known[id(value)]


class _YamlLoader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a date stays text."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
