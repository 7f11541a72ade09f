"""Generate the table of values in each chart's README from values.schema.json and values.yaml.

    python -m charts.reference          # rewrite the tables

helm-docs does the same, but contributors would have to install a Go program, and it reads the texts from
comments, which would repeat the descriptions in the schema.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHARTS = Path(__file__).parent
NAMES = ("gpu-scheduler", "gpufleet")
_BEGIN, _END = "<!-- values: made by `make docs` -->", "<!-- end of values -->"

Leaf = tuple[tuple[str, ...], dict[str, Any]]


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every value that a user can set, with its schema, in the order of the schema; not the deprecated."""
    for name, each in schema["properties"].items():
        if "properties" in each:
            yield from leaves(each, (*path, name))
        elif name != "global" and not each.get("deprecated"):
            yield (*path, name), each


def schema(chart: str) -> dict[str, Any]:
    """Return the schema of a chart's values."""
    loaded: dict[str, Any] = json.loads((CHARTS / chart / "values.schema.json").read_text())
    return loaded


def defaults(chart: str) -> dict[str, Any]:
    """Return the default values of a chart."""
    loaded: dict[str, Any] = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    return loaded


def at(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path; raise KeyError if it does not exist."""
    found: Any = values
    for name in path:
        found = found[name]
    return found


def table(chart: str) -> str:
    """Return the table of values as Markdown."""
    given = defaults(chart)
    rows = [
        f"| `{'.'.join(path)}` | {_shown(at(given, path))} | {_text(each)} |"
        for path, each in leaves(schema(chart))
    ]
    return "\n".join(["| value | default | what it does |", "| --- | --- | --- |", *rows])


def with_table(readme: str, chart: str) -> str:
    """Return the README with a new table."""
    before, rest = readme.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n{table(chart)}\n{_END}{after}"


def _shown(value: object) -> str:
    if value in ("", [], {}):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _text(each: dict[str, Any]) -> str:
    choices = [f"`{choice}`" for choice in each.get("enum", []) if choice]
    return str(each["description"]) + (f" One of {', '.join(choices)}." if choices else "")


if __name__ == "__main__":
    for name in NAMES:
        file = CHARTS / name / "README.md"
        file.write_text(with_table(file.read_text(), name))
