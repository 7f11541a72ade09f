"""Completion in real zsh and fish, from Debian packages."""

import os
import pty
import re
import select
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.debian import unpacked

from gpufleet.cli import main
from gpufleet.cli.commands import COMMANDS

pytestmark = pytest.mark.long


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", request.param]) == 0
    return capsys.readouterr().out


def _fish(script: str, home: Path, line: str) -> list[str]:
    root = unpacked("fish", "fish-common", "libpcre2-32-0")
    file = home / "gpufleet.fish"
    file.write_text(script)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu"),
        "TERM": "dumb",
    }
    code = f"set fish_function_path {root}/usr/share/fish/functions; source {file}; complete -C '{line}'"
    done = subprocess.run(
        [str(root / "usr/bin/fish"), "--no-config", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [each.partition("\t")[0] for each in done.stdout.splitlines()]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_commands_flags_and_values(script: str, tmp_path: Path) -> None:
    assert set(COMMANDS) <= set(_fish(script, tmp_path, "gpufleet "))
    assert _fish(script, tmp_path, "gpufleet expl") == ["explain"]
    assert "nodes" in _fish(script, tmp_path, "gpufleet get no")
    assert _fish(script, tmp_path, "gpufleet get nodes --sel") == ["--selector"]
    values = _fish(script, tmp_path, "gpufleet get nodes -o ")
    assert {"wide", "json", "yaml", "csv", "name"} <= set(values)
    assert "--log-level" in _fish(script, tmp_path, "gpufleet serve --log-")


class Zsh:
    """An interactive zsh on a pseudo-terminal."""

    def __init__(self, home: Path) -> None:
        root = unpacked("zsh-static", "zsh-common")
        functions = root / "usr/share/zsh/functions"
        self._process, self._terminal = _on_a_terminal([str(root / "bin/zsh-static"), "-f", "-i"], home)
        folders = " ".join(str(each) for each in [home, functions, *functions.rglob("*")] if each.is_dir())
        self.enter(f"fpath=({folders}); PS1='ready> '; unsetopt beep; autoload -Uz compinit; compinit -u -D")

    def enter(self, line: str) -> str:
        """Run a line and return what it printed."""
        return self._type(f"{line}; print -r -- done-$((40+2))\n", "done-42")

    def complete(self, line: str, expected: str) -> str:
        """Press Tab after `line`; return the screen once it has `expected`, then clear the line."""
        shown = self._type(f"{line}\t", expected)
        self._type("\x15\x15", "")
        return shown

    def close(self) -> None:
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _type(self, text: str, expected: str) -> str:
        os.write(self._terminal, text.encode())
        shown = ""
        while expected not in shown:
            ready, _, _ = select.select([self._terminal], [], [], 30)
            assert ready, f"no {expected!r} in {shown!r}"
            shown += _plain(os.read(self._terminal, 65536).decode(errors="replace"))
        return shown


def _on_a_terminal(command: list[str], home: Path) -> "tuple[subprocess.Popen[bytes], int]":
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb"}
    process = subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    return process, ours


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)


@pytest.fixture(params=["sourced", "in fpath"])
def zsh(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Zsh]:
    """A zsh with the script installed in one of the two documented ways."""
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    file = tmp_path / ("_gpufleet" if request.param == "in fpath" else "gpufleet.zsh")
    file.write_text(script)
    shell = Zsh(tmp_path)
    try:
        if request.param == "sourced":
            shell.enter(f"source {file}")
        yield shell
    finally:
        shell.close()


def test_zsh_completes_commands_flags_and_values(zsh: Zsh) -> None:
    assert "gpufleet explain" in zsh.complete("gpufleet expl", "explain")
    assert "gpufleet get nodes" in zsh.complete("gpufleet get no", "get nodes")
    assert "--selector" in zsh.complete("gpufleet get nodes --sel", "--selector")
    values = zsh.complete("gpufleet get nodes -o ", "yaml")
    assert {"wide", "json", "yaml"} <= set(values.split())
