"""The subset of JSONPath that printer columns and scale paths use."""

import re
from typing import Any

_STEP = re.compile(
    r"\.([A-Za-z0-9_\-]+|\*)|\['((?:[^'\\]|\\.)+)'\]|\[(-?\d+|\*|-1:)\]|\[\?\(@\.([A-Za-z0-9_.]+)\s*==\s*[\"']([^\"']*)[\"']\)\]"
)


def json_path(item: Any, path: str) -> list[Any]:
    """Return every value at a path of fields, indexes, `[-1:]`, `[*]` and `[?(@.type=="Ready")]`."""
    found: list[Any] = [item]
    text = path if path.startswith((".", "[")) else f".{path}"
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return []
        position = match.end()
        found = [value for item in found for value in _follow(item, match)]
    return found


def _follow(value: Any, match: re.Match[str]) -> list[Any]:
    field, quoted, index, key, expected = match.groups()
    name = field or (quoted.replace("\\.", ".") if quoted else None)
    if name == "*" or index == "*":
        return (
            list(value.values())
            if isinstance(value, dict)
            else list(value)
            if isinstance(value, list)
            else []
        )
    if name is not None:
        if "\\" in name:
            name = name.replace("\\", "")
        return [value[name]] if isinstance(value, dict) and name in value else []
    if index is not None:
        at = int(index.removesuffix(":"))
        return [value[at]] if isinstance(value, list) and -len(value) <= at < len(value) else []
    return (
        [item for item in value if str((json_path(item, key) or [""])[0]) == expected]
        if isinstance(value, list)
        else []
    )
