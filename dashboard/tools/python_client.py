"""Generate the types and calls of `gpufleet.client` from the OpenAPI document.

Every GET route that returns JSON becomes a function in `calls.py`, every schema that these routes use a struct in
`types.py`.

python -m dashboard.tools.python_client    # writes them
"""

import keyword
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from dashboard.tools.openapi import openapi_document

Schema = dict[str, Any]
CLIENT = Path(__file__).parents[2] / "src" / "gpufleet" / "client"
NAMES = {
    "clusters": "accounted_clusters",
    "namespaces": "accounted_namespaces",
    "list_clusters": "clusters",
    "list_nodes": "nodes",
    "list_workloads": "workloads",
    "list_claims": "claims",
    "list_leases": "leases",
    "cluster_overview": "overview",
    "list_gpus": "gpus",
    "gpu_processes": "processes",
    "hierarchy": "workload_hierarchy",
    "usage_report": "report",
}
"""Names of functions that differ from the operationId."""

PAGES = ({"pageNum", "pageSize"}, {"page", "page_size"})
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_HEAD = '"""{title}\n\nGenerated from the OpenAPI document by `python -m dashboard.tools.python_client`. Do not edit.\n"""\n\n'


def client_modules(document: Schema) -> dict[str, str]:
    """Return the text of each generated module by its file name."""
    operations = [
        (path, methods["get"])
        for path, methods in sorted(document["paths"].items())
        if "get" in methods and _data(methods["get"]) is not None
    ]
    schemas = document["components"]["schemas"]
    used: dict[str, None] = {}
    for _, operation in operations:
        _collect(_data(operation), schemas, used)
    return {
        "types.py": _types(schemas, sorted(used)),
        "calls.py": _calls(operations, schemas),
        "methods.py": _methods(operations),
    }


def formatted(code: str) -> str:
    """Return Python code as the project formats it."""
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix", "--quiet"], ["format"]):
        words = [str(ruff), *command, "--stdin-filename", str(CLIENT / "generated.py"), "-"]
        code = subprocess.run(words, input=code, text=True, capture_output=True, check=True).stdout
    return code


def method_name(operation: Schema) -> str:
    """Return the name of the function for an operation."""
    name = str(operation["operationId"])
    return NAMES.get(name, name)


def is_paged(operation: Schema) -> bool:
    """Return whether the operation returns one page of a list."""
    return any(pair <= {each["name"] for each in operation["parameters"]} for pair in PAGES)


def _data(operation: Schema) -> Schema | None:
    content = operation["responses"]["200"]["content"].get("application/json", {})
    found: Schema | None = content.get("schema", {}).get("properties", {}).get("data")
    return found


def _collect(schema: Any, schemas: Schema, used: dict[str, None]) -> None:
    """Add the names of all schemas that `schema` refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema and (name := _ref(schema)) not in used:
            used[name] = None
            _collect(schemas[name], schemas, used)
        for value in schema.values():
            _collect(value, schemas, used)
    elif isinstance(schema, list):
        for value in schema:
            _collect(value, schemas, used)


def _types(schemas: Schema, names: list[str]) -> str:
    return (
        _HEAD.format(title="The data that the server returns.")
        + "from typing import Any, Literal\n\nimport msgspec\n\n\n"
        + "\n\n".join(_struct(name, schemas[name]) for name in names)
    )


def _struct(name: str, schema: Schema) -> str:
    required = set(schema.get("required", ()))
    lines = [f"class {_class(name)}(msgspec.Struct, kw_only=True):"]
    lines += _docstring(schema.get("description") or schema["title"])
    for field, each in schema["properties"].items():
        kind, python = _type(each), _snake(field)
        if field not in required and "default" not in each:
            kind = _union([kind, "None"])
        lines.append(f"    {python}: {kind}" + _assignment(field, python, each, field in required))
        if each.get("description"):
            lines += _docstring(each["description"])
    return "\n".join(lines) + "\n"


def _assignment(field: str, python: str, schema: Schema, required: bool) -> str:
    """Return the default of a field, and its name on the wire where that differs."""
    default = schema.get("default")
    options = [] if field == python else [f"name={field!r}"]
    if not required and isinstance(default, list | dict):
        options.append(f"default_factory={type(default).__name__}")
    elif not required:
        options.append(f"default={default!r}")
    if not options:
        return ""
    return (
        f" = {default!r}"
        if options == [f"default={default!r}"]
        else f" = msgspec.field({', '.join(options)})"
    )


def _calls(operations: list[tuple[str, Schema]], schemas: Schema) -> str:
    functions = [_function(path, operation, schemas) for path, operation in operations]
    head = (
        "from datetime import datetime\nfrom typing import Literal\n\n"
        "from gpufleet.client import types\nfrom gpufleet.client.call import Call, Paged\n\n\n"
    )
    title = "One function for each GET route: it returns what to request and the type of the answer."
    return _HEAD.format(title=title) + head + "\n\n".join(functions)


def _methods(operations: list[tuple[str, Schema]]) -> str:
    lines = [
        _HEAD.format(title="The methods of the clients: the calls, sent by a sync or an async sender."),
        "from gpufleet.client import calls\n",
        "from gpufleet.client.binding import async_one, async_rows, one, rows\n",
    ]
    for name, prefix, kind in (("Methods", "", "block"), ("AsyncMethods", "async_", "are awaited")):
        lines += ["\n\n", f"class {name}:\n", f'    """One method for each GET route; they {kind}."""\n\n']
        for _, operation in operations:
            binding = prefix + ("rows" if is_paged(operation) else "one")
            lines.append(f"    {method_name(operation)} = {binding}(calls.{method_name(operation)})\n")
    return "".join(lines)


def _function(path: str, operation: Schema, schemas: Schema) -> str:
    paged = is_paged(operation)
    hidden = set().union(*PAGES) if paged else set()
    parameters = [each for each in operation["parameters"] if each["name"] not in hidden]
    in_path = [each["name"] for each in parameters if each["in"] == "path"]
    positional = [f"{name}: str" for name in in_path]
    named = [_parameter(each) for each in parameters if each["in"] == "query"]
    named.sort(key=lambda text: "=" in text)
    arguments = [*positional, *(["*"] if named else []), *named]
    data = _data(operation)
    assert data is not None
    kind = _page(data) if paged else _type(data, "types.")
    result = f"Paged[types.{_row(kind, schemas)}]" if paged else f"Call[{kind}]"
    lines = [f"def {method_name(operation)}({', '.join(arguments)}) -> {result}:"]
    lines += _docstring(operation["summary"] + ".")
    query = ", ".join(f"{e['name']!r}: {_snake(e['name'])}" for e in parameters if e["in"] == "query")
    words = [repr(path), f"{{{', '.join(f'{name!r}: {name}' for name in in_path)}}}", f"{{{query}}}"]
    if paged:
        number = "pageNum" if "pageNum" in {each["name"] for each in operation["parameters"]} else "page"
        words += [f"types.{kind}", repr(number)]
        lines.append(f"    return Paged({', '.join(words)})")
    else:
        lines.append(f"    return Call({', '.join([*words, kind])})")
    return "\n".join(lines) + "\n"


def _parameter(parameter: Schema) -> str:
    schema = parameter["schema"]
    kind = "datetime | str" if schema.get("format") == "date-time" else _type(schema)
    name = _snake(parameter["name"])
    return f"{name}: {kind}" if parameter["required"] else f"{name}: {kind} | None = None"


def _page(data: Schema) -> str:
    """Return the name of the page; some routes return all rows instead if no page is requested."""
    choices = data.get("anyOf", [data])
    return next(_class(_ref(each)) for each in choices if "$ref" in each)


def _row(page: str, schemas: Schema) -> str:
    schema = next(schema for name, schema in schemas.items() if _class(name) == page)
    return _class(_ref(schema["properties"]["data"]["items"]))


def _type(schema: Schema, prefix: str = "") -> str:
    if "$ref" in schema:
        name = prefix + _class(_ref(schema))
        return name if prefix else f'"{name}"'
    if "anyOf" in schema:
        return _union([_type(each, prefix) for each in schema["anyOf"]])
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return f"tuple[{', '.join(_type(each, prefix) for each in schema['prefixItems'])}]"
    if kind == "array":
        return f"list[{_type(schema.get('items', {}), prefix)}]"
    if kind == "object":
        return f"dict[str, {_type(schema.get('additionalProperties') or {}, prefix)}]"
    return _SCALARS[kind] if isinstance(kind, str) else "Any"


def _union(kinds: list[str]) -> str:
    """Return a union; it is quoted as a whole if a part is, because a quoted name is no type yet."""
    union = " | ".join(kinds)
    return f'"{union.replace(chr(34), "")}"' if '"' in union else union


def _ref(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _class(name: str) -> str:
    """Return a class name: `Page_WasteRow_` becomes `WasteRowPage`."""
    generic = re.fullmatch(r"(\w+?)_(\w+)_", name)
    return generic[2] + generic[1] if generic else name


def _snake(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return f"{words}_" if keyword.iskeyword(words) else words


def _docstring(text: str) -> list[str]:
    text = text.replace("\\", "\\\\")
    if len(text) <= 100:
        return [f'    """{text}"""']
    lines = textwrap.wrap(text, 100)
    return [f'    """{lines[0]}', *(f"    {line}" for line in lines[1:]), '    """']


if __name__ == "__main__":
    for name, text in client_modules(openapi_document()).items():
        (CLIENT / name).write_text(formatted(text), encoding="utf-8")
