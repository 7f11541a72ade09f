"""The Dockerfile, as far as it can be held to the rest of the project without an engine."""

import re
from pathlib import Path

import pytest
from charts.reference import CHARTS
from tests.charts.rendering import objects, pod_specs

ROOT = CHARTS.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def test_everything_that_is_copied_is_in_the_project_and_in_the_context() -> None:
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)]
    sources = {source for words in copied for source in words}
    assert sources >= {"src", "pyproject.toml", "requirements/runtime.txt"}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in sorted(sources):
        assert any(Path(source).is_relative_to(each) for each in let_in), f"{source} is not in the context"
        if source.startswith("dashboard") and not (ROOT / "dashboard").exists():
            pytest.skip("the sources of the page are not here")
        assert (ROOT / source).exists(), source


def test_what_is_only_there_to_build_is_not_in_the_image() -> None:
    [line] = re.findall(r"pip uninstall --yes\s+(editables.*?)&&", DOCKERFILE)
    removed = set(line.split()) - {"pip", "setuptools"}
    assert removed == _only_to_build((ROOT / "requirements" / "runtime.txt").read_text())


def test_dependencies_come_with_their_hashes_and_are_never_built() -> None:
    installs = re.findall(r"pip install (.*?)(?:&&|\n)", DOCKERFILE)
    locked = [words for words in installs if "-r requirements/runtime.txt" in words]
    own = [words for words in installs if words not in locked]
    assert len(locked) == 1
    assert {"--require-hashes", "--only-binary", ":all:"} <= set(locked[0].split())
    assert [set(words.split()) >= {"--no-deps", "--no-build-isolation", "."} for words in own] == [True]
    assert "npm ci" in DOCKERFILE
    assert "npm install" not in DOCKERFILE


def test_nothing_is_compiled_when_a_container_starts() -> None:
    compiled = re.findall(r"-m compileall (.*?)&& groupadd|-m compileall (.*?)\n", DOCKERFILE)
    paths = " ".join(part for found in compiled for part in found)
    assert "/opt/gpufleet/lib" in paths
    assert "stdlib" in paths
    assert paths.count("--invalidation-mode unchecked-hash") == 2


def test_the_image_and_the_charts_agree_on_the_user() -> None:
    [user] = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    for chart, deployment in (
        ("gpufleet", "Deployment gpufleet"),
        ("gpu-scheduler", "Deployment gpu-scheduler-webhook"),
    ):
        security = dict(pod_specs(objects(chart)))[deployment]["securityContext"]
        assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user


def test_base_images_are_of_a_named_release() -> None:
    for image in re.findall(r"^ARG \w+_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE):
        assert re.search(r":\d", image), image


def _only_to_build(lock: str) -> set[str]:
    """Packages that nothing but requirements/build.in, or what that brings, asks for."""
    asked_by: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=[a-z0-9])", lock):
        name, _, rest = block.partition("==")
        asked_by[name] = set(rest.partition("# via")[2].replace("#", " ").split()) - {"-r"}
    found: set[str] = {"requirements/build.in"}
    while more := {name for name, askers in asked_by.items() if askers <= found} - found:
        found |= more
    return found - {"requirements/build.in"}
