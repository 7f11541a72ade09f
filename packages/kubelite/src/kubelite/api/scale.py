"""The `scale` subresource: the replicas of an object as an autoscaling/v1 Scale."""

from typing import Any

from kubelite.errors import bad_request
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.schema.jsonpath import json_path


def get_scale(kind: Kind, item: Json) -> Json:
    """Return the Scale of an object."""
    paths = kind.scale
    assert paths is not None
    metadata = {
        name: item["metadata"].get(name)
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    }
    status: Json = {"replicas": _first(item, paths.status_path) or 0}
    selector = _first(item, paths.selector_path) if paths.selector_path else None
    if selector is not None:
        status["selector"] = selector if isinstance(selector, str) else _selector_text(selector)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: value for name, value in metadata.items() if value},
        "spec": {"replicas": replicas} if (replicas := _first(item, paths.spec_path)) else {},
        "status": status,
    }


def _first(item: Json, path: str) -> Any:
    return next(iter(json_path(item, path)), None)


def _selector_text(selector: Json) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items()))


def with_scale(kind: Kind, item: Json, scale: Any) -> Json:
    """Return the object with the replicas of a Scale."""
    assert kind.scale is not None
    replicas = (scale.get("spec") or {}).get("replicas", 0) if isinstance(scale, dict) else None
    if not isinstance(replicas, int) or replicas < 0:
        raise bad_request("spec.replicas of a Scale is a whole number, 0 or more")
    steps = kind.scale.spec_path.strip(".").split(".")
    result = dict(item)
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        result["metadata"] = {**item["metadata"], "resourceVersion": version}
    inner = result
    for step in steps[:-1]:
        inner[step] = dict(inner.get(step) or {})
        inner = inner[step]
    inner[steps[-1]] = replicas
    return result
