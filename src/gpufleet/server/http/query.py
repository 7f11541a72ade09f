"""Query parameters as one typed struct per route.

A route declares what it takes as a msgspec struct; its field names (through `rename`) are the
names on the wire, its types and `Meta` the rules. From that struct come the values, the sentence
about a wrong one, the warning about an unknown one, and the parameters in `/openapi.json`:
none of them can drift from the others.

An empty value counts as not given, because forms send their empty fields along. A parameter
that takes one value and comes twice is refused: either choice would surprise somebody.
"""

import difflib
import math
import re
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec

from gpufleet.errors import InvalidRequest
from gpufleet.server.http.param_rules import takes

Q = TypeVar("Q", bound=msgspec.Struct)
Schema = dict[str, Any]

_MAX_PARAMETERS = 200
_MAX_WARNINGS = 5
_SHOWN_CHARACTERS = 60
_AT = re.compile(r" - at `\$\.(?P<name>[^`\[.]+)")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_PLUS_LOST = re.compile(r" (?=\d\d:\d\d$)")
_REF = "#/components/schemas/{name}"


class QueryReader(Generic[Q]):
    """Reads query strings into `Q`."""

    def __init__(self, type_: type[Q]) -> None:
        self.type = type_
        self.fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
        self.schemas = _parameter_schemas(type_)
        self._lists = {name for name, schema in self.schemas.items() if _is(schema, "type", "array")}
        self._moments = {name for name, schema in self.schemas.items() if _is(schema, "format", "date-time")}

    def read(self, query_string: bytes) -> tuple[Q, list[str]]:
        """The values, and the names that this route does not know."""
        values: dict[str, Any] = {}
        unknown: list[str] = []
        if query_string:
            for name, value in pairs(query_string):
                if name not in self.fields:
                    unknown.append(name)
                elif value:
                    self._keep(values, name, value)
        try:
            read = msgspec.convert(values, self.type, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(self._sentence(str(error), values)) from None
        return self._checked(read, values), unknown

    def _keep(self, values: dict[str, Any], name: str, value: str) -> None:
        if name in self._lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidRequest(f"parameter {name}: given more than once; it takes one value")
        else:
            values[name] = self._moment(name, value) if name in self._moments else value

    def _moment(self, name: str, value: str) -> datetime:
        """A moment as it is written; a bare number is none, though it could be taken for Unix seconds."""
        try:
            # An offset's "+" that nobody escaped arrives as a space: 2025-11-05T00:00:00 08:00.
            return msgspec.convert(_PLUS_LOST.sub("+", value), datetime)
        except msgspec.ValidationError:
            raise InvalidRequest(self._refusal(name, value)) from None

    def _checked(self, read: Q, values: dict[str, Any]) -> Q:
        """Refuse what fits the type but no computation, and bring moments to UTC."""
        for name, field in self.fields.items():
            value = getattr(read, field.name)
            if value is None and name in values:  # the word null, which is a text like any other
                raise InvalidRequest(self._refusal(name, values[name]))
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidRequest(self._refusal(name, str(value)))
            if isinstance(value, int) and abs(value) >= 2**63:
                raise InvalidRequest(self._refusal(name, str(value)))
            if isinstance(value, datetime) and value.tzinfo is not None:
                try:
                    read = msgspec.structs.replace(read, **{field.name: value.astimezone(UTC)})
                except OverflowError:
                    raise InvalidRequest(self._refusal(name, value.isoformat())) from None
        return read

    def _sentence(self, message: str, values: dict[str, Any]) -> str:
        if (missing := _MISSING.search(message)) and missing["name"] in self.schemas:
            name = missing["name"]
            return f"parameter {name} is missing; it takes {takes(self.schemas[name])}"
        if (at := _AT.search(message)) and at["name"] in self.schemas:
            return self._refusal(at["name"], values.get(at["name"]))
        return message.split(" - at `$", 1)[0]

    def _refusal(self, name: str, value: object) -> str:
        return f"parameter {name}: {_shown(value)} is not valid; it takes {takes(self.schemas[name])}"


def pairs(query_string: bytes) -> list[tuple[str, str]]:
    """The decoded names and values; what is no text is refused."""
    try:
        found = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise InvalidRequest("the query is not valid UTF-8; percent-encode it") from None
    except ValueError:
        raise InvalidRequest(f"the query has more than {_MAX_PARAMETERS} parameters") from None
    if b"%00" in query_string and any("\x00" in name or "\x00" in value for name, value in found):
        raise InvalidRequest("the query contains a NUL character, which no parameter takes")
    return found


def warnings_about(unknown: list[str], known: list[str]) -> list[bytes]:
    """`Warning` header values that name each unknown parameter and the nearest known one."""
    return [_warning(name, known) for name in list(dict.fromkeys(unknown))[:_MAX_WARNINGS]]


def _warning(name: str, known: list[str]) -> bytes:
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower()[:_SHOWN_CHARACTERS], lowered, n=1)
    hint = f"; did you mean '{lowered[close[0]]}'?" if close else ""
    # Percent-encoded, so that a name can neither end the quoted text nor the header.
    shown = quote(name[:_SHOWN_CHARACTERS], safe="-_.[]:/@ ")
    return f"299 gpufleet \"unknown query parameter '{shown}' was ignored{hint}\"".encode()


def _shown(value: object) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


def _parameter_schemas(type_: type[msgspec.Struct]) -> dict[str, Schema]:
    (root,), components = msgspec.json.schema_components((type_,), ref_template=_REF)
    own = components[root["$ref"].rsplit("/", 1)[1]]
    return {name: _inlined(schema, components) for name, schema in own["properties"].items()}


def _inlined(schema: Schema, components: dict[str, Schema]) -> Schema:
    """A schema without references (to enums) and without null, which no query can carry."""
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rsplit("/", 1)[1]], components)
    if "anyOf" in schema:
        choices = [_inlined(each, components) for each in schema["anyOf"] if each.get("type") != "null"]
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        default = {"default": schema["default"]} if schema.get("default") is not None else {}
        return (
            {**choices[0], **rest, **default} if len(choices) == 1 else {"anyOf": choices, **rest, **default}
        )
    if schema.get("type") == "array" and "items" in schema:
        return {**schema, "items": _inlined(schema["items"], components)}
    return schema


def _is(schema: Schema, key: str, value: str) -> bool:
    return schema.get(key) == value or any(_is(each, key, value) for each in schema.get("anyOf", ()))
