"""Compare the Dockerfile with the rest of the project. No container engine is needed."""

import re
import tomllib
from pathlib import Path

import pytest
from charts.reference import CHARTS, NAMES
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


def test_every_role_of_the_charts_has_an_image_with_its_dependencies() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for role, added in (("agent", ""), ("scheduler", ""), ("server", ",mcp")):
        assert role in extras
        assert f'FROM wheels AS {role}-program\nRUN $INSTALL "gpufleet[{role}{added}]"' in DOCKERFILE
        assert f"FROM base AS {role}\n" in DOCKERFILE
        assert f"COPY --from={role}-program /opt/gpufleet /opt/gpufleet" in DOCKERFILE
    images = {
        image.partition(":")[0]
        for chart in NAMES
        for _, spec in pod_specs(objects(chart))
        for image in (each["image"] for each in spec["containers"])
    }
    assert {each for each in images if each.startswith("gpufleet")} == {
        "gpufleet-agent",
        "gpufleet-scheduler",
        "gpufleet-server",
    }


def test_dependencies_are_installed_from_wheels_with_hashes() -> None:
    [download] = re.findall(r"pip download (.*)", DOCKERFILE)
    assert {"--require-hashes", "--only-binary", ":all:", "requirements/runtime.txt"} <= set(download.split())
    installs = re.findall(r"(?:pip|bin/python) (?:install|wheel) (.*)", DOCKERFILE)
    assert len(installs) == 4
    assert all("--no-index" in each for each in installs)
    assert "npm ci" in DOCKERFILE
    assert "npm install" not in DOCKERFILE


def test_the_images_have_no_pip() -> None:
    assert re.search(
        r"rm -rf ensurepip .* site-packages/\* /usr/local/bin/pip\*", re.sub(r" +", " ", DOCKERFILE)
    )
    assert "venv --without-pip /opt/gpufleet" in DOCKERFILE
    assert re.search(r"^FROM scratch AS base\nCOPY --from=python / /$", DOCKERFILE, re.MULTILINE)


def test_the_bytecode_is_compiled_in_the_images() -> None:
    compiled = re.findall(r"-m compileall (.*)", DOCKERFILE)
    assert len(compiled) == 2
    assert all("--invalidation-mode unchecked-hash" in each for each in compiled)
    assert DOCKERFILE.count("&& $COMPILE") == 3


def test_the_images_and_the_charts_agree_on_the_user() -> None:
    users = set(re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)) - {("0", "0")}
    [user] = users
    for chart, deployment in (
        ("gpufleet", "Deployment gpufleet"),
        ("gpu-scheduler", "Deployment gpu-scheduler-webhook"),
    ):
        security = dict(pod_specs(objects(chart)))[deployment]["securityContext"]
        assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user


def test_base_images_name_a_release() -> None:
    for image in re.findall(r"^ARG \w+_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE):
        assert re.search(r":\d", image), image
