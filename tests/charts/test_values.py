"""Every value is documented, is checked by helm, and does something."""

from typing import Any

import pytest
from charts.reference import CHARTS, NAMES, Leaf, at, defaults, leaves, schema, with_table
from tests.charts.rendering import changed, everything, helm, outcome, refusal

LEAVES = [(chart, leaf) for chart in NAMES for leaf in leaves(schema(chart))]
_FIXED = (("database", "bundled", "password"), ("auth", "workloadKeySecret", "name"))
"""Secrets that are made anew at each rendering would make every value seem to do something."""

NEEDS: dict[tuple[str, ...], dict[str, Any]] = {
    ("database", "existingSecret", "key"): {"database": {"existingSecret": {"name": "given"}}},
    ("webhook", "certManager", "issuerRef", "kind"): {
        "webhook": {"certManager": {"enabled": True, "issuerRef": {"name": "given", "kind": "Issuer"}}}
    },
}
"""Values that act only beside others, and not in `everything`."""


@pytest.mark.parametrize("chart", NAMES)
def test_helm_finds_nothing_to_criticise(chart: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / chart))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chart", NAMES)
def test_every_value_has_a_default_and_every_default_a_description(chart: str) -> None:
    described = {path for path, _ in leaves(schema(chart))}
    for path in described:
        at(defaults(chart), path)
    assert {path for path in _paths(defaults(chart)) if not _within(path, described)} == set()


@pytest.mark.parametrize("chart", NAMES)
def test_the_table_in_the_readme_is_true(chart: str) -> None:
    readme = (CHARTS / chart / "README.md").read_text()
    assert with_table(readme, chart) == readme, "run `make docs`"


@pytest.mark.parametrize(
    ("chart", "leaf"), LEAVES, ids=[f"{chart}-{'.'.join(leaf[0])}" for chart, leaf in LEAVES]
)
def test_every_value_does_something(chart: str, leaf: Leaf) -> None:
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
        ({"auth": {"tokenReview": False}}, "nobody would have to log in"),
        ({"database": {"bundled": {"enabled": False}}}, "give database.existingSecret.name or database.url"),
        ({"ingress": {"enabled": True}}, "give at least one host name"),
    ],
)
def test_values_that_make_no_server_are_refused_with_what_to_do(
    values: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal("gpufleet", values)


def _paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in values.items():
        deeper = _paths(value, (*above, name)) if isinstance(value, dict) else []
        found += deeper or [(*above, name)]
    return found


def _within(path: tuple[str, ...], described: set[tuple[str, ...]]) -> bool:
    """A map of the user's own (labels, resources) is described as a whole."""
    return any(path[: len(each)] == each for each in described)
