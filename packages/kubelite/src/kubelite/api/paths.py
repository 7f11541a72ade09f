"""Parse URL paths: `/apis/<group>/<version>/namespaces/<ns>/<plural>/<name>/<subresource>`."""

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True)
class Target:
    """The resource, object and subresource that a path names."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target | None:
    """Return the target of a path, or None if the path names no resource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if (
        rest[0] == "namespaces"
        and len(rest) >= 3
        and not (len(rest) == 3 and rest[2] in ("status", "finalize") and not group)
    ):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or not all(rest):
        return None
    padded = [*rest, "", ""]
    return Target(group, version, padded[0], namespace, padded[1], padded[2])
