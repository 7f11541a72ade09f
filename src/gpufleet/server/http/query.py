"""Read query parameters into one typed struct per route.

A route declares its parameters as a msgspec struct: field names (through `rename`) are the names on the
wire, types and `Meta` are the rules. The values, the message about a wrong one, the warning about an
unknown one and the parameters in `/openapi.json` all come from that struct.

An empty value counts as absent, because forms send their empty fields. A single-value parameter that
comes twice is refused, because either choice could be the wrong one.
"""

import difflib
import math
import re
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec

from gpufleet.errors import InvalidRequest
from gpufleet.server.http.param_rules import describe

Q = TypeVar("Q", bound=msgspec.Struct)
Schema = dict[str, Any]

_MAX_PARAMETERS = 200
_MAX_WARNINGS = 5
_MAX_QUOTED = 60
_AT_FIELD = re.compile(r" - at `\$\.(?P<name>[^`\[.]+)")
_MISSING_FIELD = re.compile(r"missing required field `(?P<name>[^`]+)`")
_UNESCAPED_PLUS = re.compile(r" (?=\d\d:\d\d$)")
_REF = "#/components/schemas/{name}"


class QueryReader(Generic[Q]):
    """Read query strings into the struct `Q`."""

    def __init__(self, type_: type[Q]) -> None:
        self.type = type_
        self.fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
        self.schemas = _parameter_schemas(type_)
        self._lists = {name for name, schema in self.schemas.items() if _has(schema, "type", "array")}
        self._datetimes = {
            name for name, schema in self.schemas.items() if _has(schema, "format", "date-time")
        }

    def read(self, query_string: bytes) -> tuple[Q, list[str]]:
        """Return the values, and the names of unknown parameters. Raise InvalidRequest for a wrong value."""
        values: dict[str, Any] = {}
        unknown: list[str] = []
        if query_string:
            for name, value in _parse(query_string):
                if name not in self.fields:
                    unknown.append(name)
                elif value:
                    self._add(values, name, value)
        try:
            params = msgspec.convert(values, self.type, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(self._explain(str(error), values)) from None
        return self._checked(params, values), unknown

    def _add(self, values: dict[str, Any], name: str, value: str) -> None:
        if name in self._lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidRequest(f"parameter {name}: given more than once; it takes one value")
        else:
            values[name] = self._datetime(name, value) if name in self._datetimes else value

    def _datetime(self, name: str, value: str) -> datetime:
        """Parse a date and time. Refuse a bare number, which msgspec would take for Unix seconds."""
        try:
            # The "+" of an offset arrives as a space if the client did not escape it.
            return msgspec.convert(_UNESCAPED_PLUS.sub("+", value), datetime)
        except msgspec.ValidationError:
            raise self._invalid(name, value) from None

    def _checked(self, params: Q, values: dict[str, Any]) -> Q:
        """Refuse values that fit the type but cannot be computed with; convert datetimes to UTC."""
        for name, field in self.fields.items():
            value = getattr(params, field.name)
            if value is None and name in values:  # msgspec reads the text "null" as None
                raise self._invalid(name, values[name])
            if isinstance(value, float) and not math.isfinite(value):
                raise self._invalid(name, value)
            if isinstance(value, int) and abs(value) >= 2**63:
                raise self._invalid(name, value)
            if isinstance(value, datetime) and value.tzinfo is not None:
                try:
                    params = msgspec.structs.replace(params, **{field.name: value.astimezone(UTC)})
                except OverflowError:
                    raise self._invalid(name, value.isoformat()) from None
        return params

    def _explain(self, message: str, values: dict[str, Any]) -> str:
        """Turn a message of msgspec into one about a parameter."""
        if (missing := _MISSING_FIELD.search(message)) and missing["name"] in self.schemas:
            name = missing["name"]
            return f"parameter {name} is missing; it takes {describe(self.schemas[name])}"
        if (at := _AT_FIELD.search(message)) and at["name"] in self.schemas:
            return str(self._invalid(at["name"], values.get(at["name"])))
        return message.split(" - at `$", 1)[0]

    def _invalid(self, name: str, value: object) -> InvalidRequest:
        text = ", ".join(value) if isinstance(value, list) else str(value)
        quoted = repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")
        return InvalidRequest(
            f"parameter {name}: {quoted} is not valid; it takes {describe(self.schemas[name])}"
        )


def _parse(query_string: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise InvalidRequest("the query is not valid UTF-8; percent-encode it") from None
    except ValueError:
        raise InvalidRequest(f"the query has more than {_MAX_PARAMETERS} parameters") from None
    if b"%00" in query_string and any("\x00" in name or "\x00" in value for name, value in pairs):
        raise InvalidRequest("the query contains a NUL character, which no parameter takes")
    return pairs


def unknown_parameter_warnings(unknown: list[str], known: list[str]) -> list[bytes]:
    """Return `Warning` header values that name each unknown parameter and the nearest known one."""
    return [_warning(name, known) for name in list(dict.fromkeys(unknown))[:_MAX_WARNINGS]]


def _warning(name: str, known: list[str]) -> bytes:
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower()[:_MAX_QUOTED], lowered, n=1)
    hint = f"; did you mean '{lowered[close[0]]}'?" if close else ""
    # Percent-encoded, so that a name can end neither the quoted text nor the header.
    quoted = quote(name[:_MAX_QUOTED], safe="-_.[]:/@ ")
    return f"299 gpufleet \"unknown query parameter '{quoted}' was ignored{hint}\"".encode()


def _parameter_schemas(type_: type[msgspec.Struct]) -> dict[str, Schema]:
    (root,), components = msgspec.json.schema_components((type_,), ref_template=_REF)
    own = components[root["$ref"].rsplit("/", 1)[1]]
    return {name: _inlined(schema, components) for name, schema in own["properties"].items()}


def _inlined(schema: Schema, components: dict[str, Schema]) -> Schema:
    """Return `schema` without references (to enums) and without null, which no query can carry."""
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rsplit("/", 1)[1]], components)
    if "anyOf" in schema:
        choices = [_inlined(each, components) for each in schema["anyOf"] if each.get("type") != "null"]
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        if rest.get("default", ...) is None:
            del rest["default"]
        return {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **rest}
    if schema.get("type") == "array" and "items" in schema:
        return {**schema, "items": _inlined(schema["items"], components)}
    return schema


def _has(schema: Schema, key: str, value: str) -> bool:
    """Return whether `schema`, or one of its choices, has `value` under `key`."""
    return schema.get(key) == value or any(_has(each, key, value) for each in schema.get("anyOf", ()))
