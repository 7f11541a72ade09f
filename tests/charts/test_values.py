"""Every chart value is documented, validated by helm, and used."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from charts.reference import CHARTS, NAMES, Leaf, at, defaults, leaves, schema, with_table
from tests.charts.rendering import changed, everything, helm, outcome, refusal

LEAVES = [(chart, leaf) for chart in NAMES for leaf in leaves(schema(chart))]
_FIXED = (
    ("database", "bundled", "password"),
    ("auth", "workloadKeySecret", "name"),
    ("auth", "oidc", "sessionKeySecret", "name"),
)
"""Secrets that the chart generates. Without a fixed value, every rendering would differ."""

NEEDS: dict[tuple[str, ...], dict[str, Any]] = {
    ("database", "existingSecret", "key"): {"database": {"existingSecret": {"name": "given"}}},
    ("networkPolicy", "serverNamespace"): {"networkPolicy": {"metricsFrom": [{"podSelector": {}}]}},
    ("webhook", "certManager", "issuerRef", "kind"): {
        "webhook": {"certManager": {"enabled": True, "issuerRef": {"name": "given", "kind": "Issuer"}}}
    },
}
"""Values that have an effect only together with others that `everything` does not set."""


@pytest.mark.parametrize("chart", NAMES)
def test_helm_lint_passes(chart: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / chart))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chart", NAMES)
def test_every_value_has_a_default_and_every_default_a_description(chart: str) -> None:
    described = {path for path, _ in leaves(schema(chart))}
    for path in described:
        at(defaults(chart), path)
    assert {path for path in _paths(defaults(chart)) if not _within(path, described)} == set()


def test_values_that_are_no_longer_needed_are_accepted_and_named_in_the_notes(tmp_path: Path) -> None:
    chart = shutil.copytree(CHARTS / "gpu-scheduler", tmp_path / "gpu-scheduler")
    notes = (chart / "templates" / "NOTES.txt").read_text()
    page = f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}\nnotes: {{{{ include "notes" . | toJson }}}}\n'
    (chart / "templates" / "notes.yaml").write_text(page)  # `helm template` does not print NOTES.txt
    for values, named in [({}, False), ({"permit": "10s", "certificateLifetime": "2160h"}, True)]:
        words = ("template", str(chart), "--show-only", "templates/notes.yaml", "--values", "-")
        done = helm(*words, stdin=json.dumps({"scheduler": values}))
        assert done.returncode == 0, done.stderr
        assert (
            "scheduler.permit is no longer needed and is ignored: 10s is built in" in done.stdout
        ) is named
        assert ("scheduler.certificateLifetime is no longer needed" in done.stdout) is named


@pytest.mark.parametrize("chart", NAMES)
def test_the_comments_in_values_yaml_are_the_descriptions_of_the_schema(chart: str) -> None:
    expected = {".".join(path): each["description"] for path, each in leaves(schema(chart))}
    assert _comments((CHARTS / chart / "values.yaml").read_text()) == expected


@pytest.mark.parametrize("chart", NAMES)
def test_the_readme_table_is_up_to_date(chart: str) -> None:
    readme = (CHARTS / chart / "README.md").read_text()
    assert with_table(readme, chart) == readme, "run `make docs`"


@pytest.mark.parametrize(
    ("chart", "leaf"), LEAVES, ids=[f"{chart}-{'.'.join(leaf[0])}" for chart, leaf in LEAVES]
)
def test_every_value_changes_the_rendered_chart(chart: str, leaf: Leaf) -> None:
    path, each = leaf
    example = each["examples"][0]
    bases = [NEEDS.get(path, everything(chart)), {}]
    if chart == "gpufleet":
        for fixed in _FIXED:
            bases = [changed(base, fixed, "fixed") for base in bases]
    assert any(outcome(chart, base) != outcome(chart, changed(base, path, example)) for base in bases), (
        f"{'.'.join(path)} set to {example!r} changes nothing"
    )


@pytest.mark.parametrize("chart", NAMES)
def test_a_misspelt_value_is_refused(chart: str) -> None:
    assert "Additional property tga is not allowed" in refusal(chart, {"image": {"tga": "v1"}})
    assert "Additional property replicaz is not allowed" in refusal(chart, {"replicaz": 1})


@pytest.mark.parametrize(
    ("chart", "path", "wrong"),
    [
        ("gpu-scheduler", ("scheduler", "replicas"), 0),
        ("gpu-scheduler", ("scheduler", "port"), 70000),
        ("gpu-scheduler", ("scheduler", "hold"), "soon"),
        ("gpu-scheduler", ("scheduler", "image", "tag"), 1),
        ("gpu-scheduler", ("webhook", "failurePolicy"), "Maybe"),
        ("gpu-scheduler", ("agent", "reader"), "rocm"),
        ("gpu-scheduler", ("agent", "driverLibraries"), "lib64"),
        ("gpufleet", ("database", "url"), "mysql://x"),
        ("gpufleet", ("prometheus", "url"), "prometheus:9090"),
        ("gpufleet", ("database", "bundled", "storage", "size"), "large"),
        ("gpufleet", ("kubernetes", "extraOwners"), [{"apiGroup": "x"}]),
        ("gpufleet", ("log", "level"), "loud"),
    ],
)
def test_a_wrong_value_is_refused_by_name(chart: str, path: tuple[str, ...], wrong: object) -> None:
    assert ".".join(path) in refusal(chart, changed({}, path, wrong))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"auth": {"tokenReview": False}}, "the API would need no login"),
        ({"auth": {"oidc": {"issuer": "https://provider.example"}}}, "it would admit no user"),
        ({"database": {"bundled": {"enabled": False}}}, "set database.existingSecret.name or database.url"),
        ({"ingress": {"enabled": True}}, "set at least one host name"),
    ],
)
def test_inconsistent_values_are_refused_with_a_remedy(values: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal("gpufleet", values)


def _paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in values.items():
        deeper = _paths(value, (*above, name)) if isinstance(value, dict) else []
        found += deeper or [(*above, name)]
    return found


def _within(path: tuple[str, ...], described: set[tuple[str, ...]]) -> bool:
    """Return whether `path` is a described value or lies in one, such as a map of labels."""
    return any(path[: len(each)] == each for each in described)


def _comments(values: str) -> dict[str, str]:
    """Return the text of each `# --` comment by the path of its value."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    comment = ""
    for line in values.splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment += text.removeprefix("#")
            continue
        if key := re.match(r"( *)(\w+):", line):
            above = [*((depth, name) for depth, name in above if depth < len(key[1])), (len(key[1]), key[2])]
            if comment.startswith(" -- "):
                found[".".join(name for _, name in above)] = comment.removeprefix(" -- ")
        comment = ""
    return found
