"""Render the charts with helm."""

import copy
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from charts.reference import CHARTS

HELM = Path(sys.executable).with_name("helm")
Object = dict[str, Any]


def helm(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *words], input=stdin, capture_output=True, text=True, timeout=60)


def text(chart: str, values: dict[str, Any], namespace: str = "default") -> str:
    """Return the rendered manifests. Fail with helm's error message."""
    done = _template(chart, json.dumps(values), namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(chart: str, values: dict[str, Any] | None = None, namespace: str = "default") -> list[Object]:
    documents = yaml.load_all(text(chart, values or {}, namespace), Loader=yaml.CSafeLoader)
    return [each for each in documents if each]


def outcome(chart: str, values: dict[str, Any]) -> str:
    """Return the rendered manifests, or the error if the chart calls `fail`."""
    done = _template(chart, json.dumps(values), "default")
    assert done.returncode == 0 or "execution error at" in done.stderr, done.stderr
    return done.stdout or done.stderr


def refusal(chart: str, values: dict[str, Any]) -> str:
    """Return helm's error message for invalid values."""
    done = _template(chart, json.dumps(values), "default")
    assert done.returncode != 0, "helm accepted these values"
    return done.stderr


@functools.cache
def _template(chart: str, values: str, namespace: str) -> subprocess.CompletedProcess[str]:
    return helm(
        "template", chart, str(CHARTS / chart), "--namespace", namespace, "--values", "-", stdin=values
    )


def everything(chart: str) -> dict[str, Any]:
    """Return values with every optional feature on."""
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(f"everything-{chart}.yaml").read_text())
    return loaded


def changed(values: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """Return a copy of `values` with `value` at `path`."""
    result = copy.deepcopy(values)
    place = result
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    return result


def pod_specs(rendered: list[Object]) -> list[tuple[str, Object]]:
    """Return the spec of every pod and pod template, with a name for messages."""
    specs = []
    for each in rendered:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Pod":
            specs.append((name, each["spec"]))
        elif each["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            specs.append((name, each["spec"]["template"]["spec"]))
    return specs


def one(rendered: list[Object], kind: str, name: str) -> Object:
    found = [each for each in rendered if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]
