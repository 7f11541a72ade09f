"""Compare the Dockerfile with the rest of the project. No container engine is needed."""

import re
from pathlib import Path

import pytest
from charts.reference import CHARTS
from tests.charts.rendering import objects, pod_specs

ROOT = CHARTS.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def test_every_copied_file_exists_and_is_in_the_build_context() -> None:
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)]
    sources = {source for words in copied for source in words}
    assert sources >= {"src", "pyproject.toml", "requirements/runtime.txt"}
    context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in sorted(sources):
        assert any(Path(source).is_relative_to(each) for each in context), f"{source} is not in the context"
        if source.startswith("dashboard") and not (ROOT / "dashboard").exists():
            pytest.skip("needs the sources of the dashboard")
        assert (ROOT / source).exists(), source


def test_the_image_has_no_build_tools_and_nothing_that_only_the_demo_needs() -> None:
    [line] = re.findall(r"pip uninstall --yes\s+(editables.*?)&&", DOCKERFILE)
    removed = set(line.split()) - {"pip", "setuptools"}
    lock = (ROOT / "requirements" / "runtime.txt").read_text()
    assert removed == _required_only_by({"requirements/build.in", "kubelite"}, lock)


def test_dependencies_are_installed_from_wheels_with_hashes() -> None:
    installs = re.findall(r"pip install (.*?)(?:&&|\n)", DOCKERFILE)
    locked = [words for words in installs if "-r requirements/runtime.txt" in words]
    own = [words for words in installs if words not in locked]
    assert len(locked) == 1
    assert {"--require-hashes", "--only-binary", ":all:"} <= set(locked[0].split())
    assert [set(words.split()) >= {"--no-deps", "--no-build-isolation", "."} for words in own] == [True]
    assert "npm ci" in DOCKERFILE
    assert "npm install" not in DOCKERFILE


def test_the_bytecode_is_compiled_in_the_image() -> None:
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


def test_base_images_name_a_release() -> None:
    for image in re.findall(r"^ARG \w+_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE):
        assert re.search(r":\d", image), image


def _required_only_by(roots: set[str], lock: str) -> set[str]:
    """Return the locked packages that only `roots` require, directly or through others."""
    required_by: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=[a-z0-9])", lock.partition("\n# The following")[0]):
        name, _, rest = block.partition("==")
        required_by[name] = set(rest.partition("# via")[2].replace("#", " ").split()) - {"-r"}
    found = set(roots)
    while more := {name for name, parents in required_by.items() if parents <= found} - found:
        found |= more
    return found - roots
