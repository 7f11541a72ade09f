"""Decode protobuf bodies, which typed clients such as `kubectl create` send.

Responses are JSON, which those clients accept. The field numbers are in the table of built-in
kinds. The decoder is written by hand because the protobuf library needs message classes generated
from descriptions a hundred times the size of that table. Unknown fields are refused rather than
dropped, so that nothing a client sends is lost silently.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from kubelite.builtin.fields import OF_LIST, OF_MAP, builtin_types
from kubelite.errors import ApiError, bad_request
from kubelite.json import Json

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Field = tuple[str, str]
Value = int | bytes


def read_protobuf(body: bytes, type_name: str) -> Json:
    """Return the object in a body as JSON."""
    if body[:4] != _MAGIC:
        raise bad_request("the body does not start with the Kubernetes protobuf prefix")
    try:
        envelope = dict(_read_wire(body[4:]))
        kind = dict(_read_wire(_bytes(envelope.get(1, b""))))
        item = _message(type_name, _bytes(envelope.get(2, b"")))
        named = {
            name: _bytes(kind[number]).decode()
            for number, name in ((1, "apiVersion"), (2, "kind"))
            if kind.get(number)
        }
    except (IndexError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise bad_request(f"the body is not protobuf: {error}") from error
    return {**named, **item}


def _read_wire(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("unexpected end")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("varint instead of bytes")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes instead of a varint")
    return value - (1 << 64) if value >> 63 else value


@cache
def _by_number(type_name: str) -> dict[int, Field | dict[int, Field]]:
    """Return the fields of a type by number. A dict stands for an inner message that JSON inlines."""
    builtin_type = builtin_types()[type_name]
    found: dict[int, Field | dict[int, Field]] = {}
    for name, path in builtin_type.numbers.items():
        field = (name, builtin_type.fields[name].partition("=")[0])
        if len(path) == 1:
            found[path[0]] = field
        else:
            inner = found.setdefault(path[0], {})
            assert isinstance(inner, dict)
            inner[path[1]] = field
    return found


def _message(type_name: str, data: bytes) -> Json:
    result: Json = {}
    _read_fields(type_name, _by_number(type_name), data, result)
    return result


def _read_fields(type_name: str, known: Any, data: bytes, result: Json) -> None:
    for number, value in _read_wire(data):
        field = known.get(number)
        if isinstance(field, dict):
            _read_fields(type_name, field, _bytes(value), result)
        elif field is None:
            raise _unreadable(f"field {number} of {type_name}")
        else:
            name, kind = field
            _add(result, name, kind, value)


def _add(result: Json, name: str, kind: str, value: Value) -> None:
    if match := OF_LIST.fullmatch(kind):
        result.setdefault(name, []).append(_value(match[1], value))
    elif match := OF_MAP.fullmatch(kind):
        entry = dict(_read_wire(_bytes(value)))
        inner = match[1]
        empty: Value = 0 if inner in ("int", "bool") else b""
        result.setdefault(name, {})[_bytes(entry.get(1, b"")).decode()] = _value(inner, entry.get(2, empty))
    else:
        found = _value(kind, value)
        # Go writes empty structs and strings to protobuf that it omits from JSON.
        if (
            found not in ("", {}, None)
            or (kind not in ("str", "time") and kind not in builtin_types())
            or (found == {} and value == b"" and kind in builtin_types() and name in _MEANINGFUL_WHEN_EMPTY)
        ):
            result[name] = found


_MEANINGFUL_WHEN_EMPTY = frozenset(
    {"emptyDir", "securityContext", "selector", "namespaceSelector", "objectSelector"}
)


def _value(kind: str, value: Value) -> Any:
    read = _PLAIN.get(kind)
    if read is not None:
        return read(value)
    if kind == "any":
        raise _unreadable("a field without a schema")
    return _message(kind, _bytes(value))


def _time(value: Value) -> str | None:
    parts = dict(_read_wire(_bytes(value)))
    if not parts:
        return None
    moment = _EPOCH + timedelta(
        seconds=_number(parts.get(1, 0)), microseconds=_number(parts.get(2, 0)) // 1000
    )
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if parts.get(2) else "%Y-%m-%dT%H:%M:%SZ"
    return moment.strftime(form)


def _int_or_text(value: Value) -> int | str:
    parts = dict(_read_wire(_bytes(value)))
    if parts.get(1, 0) == 1:
        return _bytes(parts.get(3, b"")).decode()
    return _number(parts.get(2, 0))


def _quantity(value: Value) -> str:
    return _bytes(dict(_read_wire(_bytes(value))).get(1, b"0")).decode()


_PLAIN: dict[str, Callable[[Value], Any]] = {
    "str": lambda value: _bytes(value).decode(),
    "int": _number,
    "bool": lambda value: bool(_number(value)),
    "bytes": lambda value: base64.b64encode(_bytes(value)).decode(),
    "time": _time,
    "quantity": _quantity,
    "intstr": _int_or_text,
}


def _unreadable(what: str) -> ApiError:
    return ApiError(
        415,
        f"kubelite can't read {what} in protobuf; send JSON (kubectl ... --dry-run=client -o json | kubectl create -f -)",
    )
