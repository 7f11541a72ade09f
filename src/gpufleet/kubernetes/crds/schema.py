"""Generate structural OpenAPI schemas from msgspec types.

Kubernetes requires schemas without references, titles and `anyOf`, and has extensions for CEL rules
and merge keys. Walking the types with `msgspec.inspect` is shorter than converting the output of
`msgspec.json.schema`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import NODEFAULT, inspect

Schema = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A rule in CEL and in Python: objects for which it is false are rejected with `message` at `field`.

    The API server evaluates `cel`. The webhook calls `holds` with the same object, as decoded JSON.
    """

    cel: str
    holds: Callable[[Schema], bool]
    message: str
    field: str

    def render(self) -> Schema:
        """Return the rule as an entry of x-kubernetes-validations."""
        return {
            "rule": self.cel,
            "message": self.message,
            "reason": "FieldValueInvalid",
            "fieldPath": f".{self.field}",
        }


def structural_schema(kind: type) -> Schema:
    """Return the schema of the struct `kind`, with its docstring, field descriptions and rules."""
    return _schema(inspect.type_info(kind))


def _schema(info: inspect.Type) -> Schema:
    if isinstance(info, inspect.Metadata):
        return {**_schema(info.type), **(info.extra_json_schema or {})}
    if isinstance(info, inspect.UnionType):
        (only,) = (member for member in info.types if not isinstance(member, inspect.NoneType))
        return _schema(only)
    if isinstance(info, inspect.StructType):
        return _object(info)
    if isinstance(info, inspect.DictType):
        return {"type": "object", "additionalProperties": _schema(info.value_type)}
    if isinstance(info, inspect.VarTupleType):
        return _given({"type": "array", "items": _schema(info.item_type)}, maxItems=info.max_length)
    if isinstance(info, inspect.LiteralType):
        return {"type": "string", "enum": list(info.values)}
    return _scalar(info)


def _scalar(info: inspect.Type) -> Schema:
    match info:
        case inspect.StrType():
            return _given({"type": "string"}, minLength=info.min_length, maxLength=info.max_length)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            top = info.le if info.lt is None else info.lt - 1
            return _given({"type": "integer", "format": "int64"}, minimum=info.ge, maximum=top)
        case inspect.FloatType():
            return {"type": "number"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
    raise TypeError(f"no schema for {info}")


def _object(info: inspect.StructType) -> Schema:
    schema: Schema = {"type": "object", "description": (info.cls.__doc__ or "").strip()}
    if required := [field.encode_name for field in info.fields if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _property(field) for field in info.fields}
    if rules := getattr(info.cls, "rules", ()):
        schema["x-kubernetes-validations"] = [rule.render() for rule in rules]
    return schema


def _property(field: inspect.Field) -> Schema:
    schema = _schema(field.type)
    # Writers leave defaults out; the server fills them in, so that kubectl prints them.
    if isinstance(field.default, bool | int) or (
        "enum" in schema and field.default is not NODEFAULT and field.default
    ):
        schema["default"] = field.default
    if schema["type"] == "object" and field.default_factory is not NODEFAULT:
        # The server fills an empty status with the defaults of its fields: a new claim is Pending.
        schema["default"] = {}
    return schema


def _given(schema: Schema, **limits: float | None) -> Schema:
    return {**schema, **{name: limit for name, limit in limits.items() if limit is not None}}
