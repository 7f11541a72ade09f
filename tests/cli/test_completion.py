"""Completion scripts, run by bash, and the kubectl plugin; test_completion_shells.py has zsh and fish."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from packages.krew.build import build

from gpufleet import __version__
from gpufleet.cli import main
from gpufleet.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", request.param]) == 0
    return capsys.readouterr().out


def _bash(script: str, *line: str) -> list[str]:
    words = " ".join(f"'{word}'" for word in line)
    code = f"{script}\nCOMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _gpufleet; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_flags_and_values(script: str) -> None:
    assert set(_bash(script, "gpufleet", "")) == {*COMMANDS, "help", "version"}
    assert _bash(script, "gpufleet", "expl") == ["explain"]
    assert _bash(script, "gpufleet", "get", "no") == ["nodes"]
    assert _bash(script, "gpufleet", "get", "nodes", "-o", "") == ["wide", "json", "yaml", "csv", "name"]
    assert _bash(script, "gpufleet", "get", "nodes", "--sel") == ["--selector"]
    assert _bash(script, "gpufleet", "serve", "--log-") == ["--log-level", "--log-format"]
    assert _bash(script, "gpufleet", "agent", "--set", "agent.pod") == ["agent.pod_logs="]
    assert _bash(script, "gpufleet", "serve", "--set", "store.u") == []  # a secret


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_describes_commands_and_flags(script: str) -> None:
    assert "complete -c gpufleet -n __fish_use_subcommand -a get -d 'List nodes" in script
    assert "-n '__fish_seen_subcommand_from get' -s o -l output -x -a 'wide json yaml csv name'" in script


def test_the_plugin_runs_as_a_command_of_kubectl(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["kubectl", "gpufleet", "--version"], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == (f"gpufleet {__version__}\n", 0), done.stderr


def test_the_krew_manifest_names_the_archive_and_its_digest(tmp_path: Path) -> None:
    manifest = yaml.safe_load(build("example", "1.2.3", tmp_path).read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = tmp_path / platform["uri"].rpartition("/")[2]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        member = tar.extractfile(platform["bin"])
        assert member is not None
        script = member.read().decode()
    assert [each["from"] for each in platform["files"]] == names
    assert "gpufleet[top]==1.2.3" in script
    (tmp_path / "plugin").write_text(script)
    (tmp_path / "gpufleet").write_text('#!/bin/sh\necho "ran $*"\n')
    (tmp_path / "gpufleet").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "plugin"), "get", "nodes"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "ran get nodes\n"
    missing = subprocess.run(
        ["/bin/sh", str(tmp_path / "plugin")], env={"PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert (missing.returncode, "pip install 'gpufleet[top]'" in missing.stderr) == (1, True)
