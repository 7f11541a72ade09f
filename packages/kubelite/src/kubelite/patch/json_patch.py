"""JSON patch (RFC 6902) and merge patch (RFC 7386). The patched object is not modified.

Written by hand because no library distinguishes the errors that Kubernetes does: a failed `test`
is a 422, a malformed patch a 400.
"""

import copy
from typing import Any

from kubelite.errors import ApiError, bad_request
from kubelite.json import Json, encode

MAX_OPERATIONS = 10_000
MAX_COPIED = 3 * 1024 * 1024
"""Bytes that the copy operations of a patch may add. Each operation can double the object."""


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch: maps merge, null deletes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result: Json = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def json_patch(target: Json, operations: Any) -> Json:
    """Apply the operations of a JSON patch in order, all or nothing."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise ApiError(413, f"a JSON patch takes at most {MAX_OPERATIONS} operations")
    result: Any = copy.deepcopy(target)
    copied = 0
    for operation in operations:
        if isinstance(operation, dict) and operation.get("op") == "copy":
            copied += len(encode(_look(result, _pointer(operation.get("from")))))
            if copied > MAX_COPIED:
                raise _unprocessable(f"its copies add more than {MAX_COPIED} bytes")
        result = _operate(result, operation)
    if not isinstance(result, dict):
        raise bad_request("the JSON patch leaves no object")
    return result


def _operate(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise bad_request("an operation of a JSON patch needs op and path")
    op, path = operation.get("op"), _pointer(operation["path"])
    if op == "test":
        if _look(document, path) != operation.get("value"):
            raise _unprocessable(f"testing value {operation['path']} failed")
        return document
    if op == "remove":
        return _remove(document, path)
    if op in ("move", "copy"):
        source = _pointer(operation.get("from"))
        value = copy.deepcopy(_look(document, source))
        if op == "move":
            document = _remove(document, source)
        return _add(document, path, value)
    if op not in ("add", "replace"):
        raise bad_request(f"unexpected kind of JSON patch operation: {op!r}")
    if "value" not in operation:
        raise bad_request(f"the {op} operation at {operation['path']} needs a value")
    value = copy.deepcopy(operation["value"])
    if op == "replace":
        _look(document, path)
        if path and isinstance(parent := _look(document, path[:-1]), list):
            parent[_index(path[-1], len(parent) - 1)] = value
            return document
    return _add(document, path, value)


def _pointer(text: Any) -> list[str]:
    if text == "":
        return []
    if not isinstance(text, str) or not text.startswith("/"):
        raise bad_request(f"a JSON pointer starts with '/': {text!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/")]


def _look(document: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            document = document[_index(step, len(document) - 1)]
        else:
            raise _unprocessable(f"doc is missing path: /{'/'.join(path)}")
    return document


def _index(step: str, last: int) -> int:
    if not step.isdigit() or int(step) > last:
        raise _unprocessable(f"the JSON patch names index {step}, the list has {last + 1}")
    return int(step)


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _look(document, path[:-1])
    if isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else _index(path[-1], len(parent))
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _unprocessable(f"nothing can be added at /{'/'.join(path)}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise _unprocessable("the whole object can't be removed by a patch")
    _look(document, path)
    parent = _look(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent) - 1)]
    else:
        del parent[path[-1]]
    return document


def _unprocessable(message: str) -> ApiError:
    return ApiError(
        422, f"the server rejected our request due to an error in our request: {message}", reason="Invalid"
    )
