"""Generate the reference of the REST API from the OpenAPI document."""

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_HEAD = """# API reference

Generated from the OpenAPI document of the routes. A server shows the same at `/docs`, and the document at `/openapi.json`.
[API conventions](api-conventions.md) describes envelopes, errors and login, [The API](api.md) has example commands. `data` of a
response has the type named here, inside the [envelope](api-conventions.md#envelopes) of its path.

"""
_SECTIONS = {
    "Clusters and nodes": ("/api/clusters", "/api/nodes", "/api/gpus", "/api/v1/gpu/"),
    "Workloads": ("/api/workloads", "/api/workloadMetadata"),
    "Scheduling": ("/api/claims", "/api/pods", "/api/queue", "/api/leases", "/api/forecast"),
    "Accounting": ("/api/v1/gpu-aggregation",),
    "Faults": ("/api/findings", "/api/repairs", "/api/stragglers"),
    "Server": ("/",),
}
"""Each path is in the first section with a prefix of it."""


def api_reference(document: Schema) -> str:
    """Return the whole page in Markdown."""
    sections: dict[str, list[tuple[str, str, Schema]]] = {title: [] for title in _SECTIONS}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            sections[_section(path)].append((path, method.upper(), operation))
    text = [_HEAD.rstrip()]
    for title, operations in sections.items():
        rows = sorted(operations, key=lambda each: each[:2])
        text.append(f"## {title}")
        text += [_operation(*row, document) for row in rows]
    text.append("## Types")
    schemas = document["components"]["schemas"]
    text += [_type(name, schemas[name]) for name in sorted(schemas)]
    return "\n\n".join(text) + "\n"


def _section(path: str) -> str:
    return next(title for title, prefixes in _SECTIONS.items() if path.startswith(prefixes))


def _operation(path: str, method: str, operation: Schema, document: Schema) -> str:
    lines = [f"### {method} `{path}`", _sentence(operation.get("summary", ""))]
    if description := operation.get("description"):
        lines.append(_paragraph(description))
    if parameters := operation.get("parameters"):
        lines.append("\n".join(_parameter_rows(parameters)))
    if body := operation.get("requestBody"):
        schema = next(iter(body["content"].values()))["schema"]
        lines.append(f"Body: {_text(schema)}.")
    content = operation["responses"]["200"]["content"]
    lines.append(f"Returns {_returned(content, document)}.")
    return "\n\n".join(lines)


def _parameter_rows(parameters: list[Schema]) -> list[str]:
    rows = ["| parameter | in | takes | meaning |", "| --- | --- | --- | --- |"]
    for each in parameters:
        schema = each["schema"]
        default = (
            f", default `{_value(schema['default'])}`" if schema.get("default") not in (None, "") else ""
        )
        needed = ", required" if each.get("required") and each["in"] == "query" else ""
        name, where = each["name"], each["in"]
        meaning = _cell(each.get("description") or "–")
        rows.append(f"| `{name}` | {where} | {_text(schema)}{default}{needed} | {meaning} |")
    return rows


def _returned(content: Schema, document: Schema) -> str:
    medias = " or ".join(f"`{media}`" for media in content)
    schema = content.get("application/json", {}).get("schema") or {}
    data = schema.get("properties", {}).get("data")
    if data is None:
        return medias
    return f"{_text(data)} as {medias}"


def _type(name: str, schema: Schema) -> str:
    lines = [f"### {name}"]
    if description := schema.get("description"):
        lines.append(_paragraph(description))
    properties = schema.get("properties")
    if not properties:
        lines.append(f"Is {_text(schema)}.")
        return "\n\n".join(lines)
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    required = schema.get("required", ())
    for field, each in properties.items():
        optional = "" if field in required else ", optional"
        rows.append(f"| `{field}` | {_text(each)}{optional} | {_cell(each.get('description', '')) or '–'} |")
    return "\n\n".join([*lines, "\n".join(rows)])


def _text(schema: Schema) -> str:
    """Return a schema in a few words."""
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_text(each) for each in choices))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return f"list of {_text(items)}" if items else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"map of {_text(values)}" if isinstance(values, Mapping) and values else "object"
    return _range(
        schema, {"integer": "integer", "number": "number", "string": "text"}.get(kind or "", kind or "any")
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _range(schema: Schema, kind: str) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if schema.get("format"):
        return f"{kind} ({schema['format']})"
    if low is not None and high is not None:
        return f"{kind} {low} to {high}"
    return f"{kind} from {low}" if low is not None else kind


def _sentence(text: str) -> str:
    return _paragraph(text).rstrip(".") + "."


def _paragraph(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return _paragraph(text).replace("|", "\\|")
