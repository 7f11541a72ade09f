"""Build the wheels, install them into fresh environments and run the commands from there.

The versions come from the lock file, so a new release of a dependency cannot break this test. It needs the
package index (or uv's cache) and the built dashboard, but no control plane.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "runtime.txt"
PAGE = ROOT / "src/gpufleet/server/dashboard/static/index.html"
PACKAGES = {
    "server": ["server", "store", "sources", "accounting", "fleet", "exporters"],
    "agent": ["agent", "gpus"],
    "scheduler": ["scheduler", "webhook", "placement"],
    "demo": ["demo", "server", "scheduler", "webhook"],
}
"""Packages that can be imported with an extra alone."""

TRACE = ROOT / "examples" / "trace"
NO_CLUSTER = ["--kubeconfig", "/nowhere"]
STARTS = [
    ("server", ["db", "check", "--data", "/nowhere"], "there is no database"),
    ("agent", ["agent", "--once", "-o", "prometheus"], "gpufleet_agent_"),
    ("scheduler", ["scheduler", *NO_CLUSTER], "/nowhere"),
    ("scheduler", ["webhook", *NO_CLUSTER], "/nowhere"),
    ("scheduler", ["explain", "pod", "trainer-0", *NO_CLUSTER], "/nowhere"),
    ("scheduler", ["simulate", "--nodes", f"{TRACE}/nodes.csv", "--pods", f"{TRACE}/pods.csv"], "default"),
]
"""Commands that end by themselves, with a part of their output."""

_IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(f"gpufleet.{name}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
_THIRD_PARTY = """
import json, sys
from gpufleet.report import Reporter
Reporter().log(step=1, loss=2.5)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names)))
"""


@pytest.fixture(scope="session")
def uv() -> str:
    found = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
    if not Path(found).exists():
        pytest.skip("needs uv, which make installs")
    return found


@pytest.fixture(scope="session")
def wheels(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheels of gpufleet and kubelite."""
    if not PAGE.exists():
        pytest.skip("needs the built dashboard: make dashboard (Node.js 20 or newer)")
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, ROOT / "packages" / "kubelite"):
        options = ["--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
        subprocess.run([uv, "build", "--quiet", *options, str(project)], check=True, timeout=60)
    return folder


@pytest.fixture(scope="session")
def install(uv: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the `bin` of a fresh environment with the wheel and one extra, or none."""

    def install(extra: str) -> Path:
        environment = tmp_path_factory.mktemp(extra or "base") / "env"
        subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, environment], check=True, timeout=60
        )
        python = ["--python", str(environment / "bin/python")]
        subprocess.run(
            [uv, "pip", "install", "--quiet", *python, *_locked(wheels), _requirement(wheels, extra)],
            check=True,
            timeout=300,
        )
        return environment / "bin"

    return install


def test_the_wheel_contains_the_page_and_the_database_migrations(wheels: Path) -> None:
    with zipfile.ZipFile(_wheel(wheels)) as wheel:
        names = wheel.namelist()
    for pattern in (
        "server/dashboard/static/index.html",
        "server/dashboard/static/assets/",
        "migrations/0001_",
    ):
        assert any(pattern in name for name in names), pattern
    assert not [name for name in names if "kubelite" in name or "node_modules" in name]


def test_the_demo_starts_from_the_wheel_in_an_empty_directory(uv: str, wheels: Path, tmp_path: Path) -> None:
    port = _free_port()
    command = [uv, "tool", "run", "--isolated", *_locked(wheels), "--from", _requirement(wheels, "demo")]
    log = tmp_path / "log"
    empty = tmp_path / "empty"
    empty.mkdir()
    if os.geteuid() == 0:  # PostgreSQL's user must reach the database in it
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    with log.open("wb") as output:
        demo = subprocess.Popen(
            [*command, "gpufleet", "demo", "--nodes", "4", "--port", str(port)],
            cwd=empty,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
        )
    try:
        health = _get(f"http://127.0.0.1:{port}/api/healthz", demo, log)
        assert json.loads(health)["data"]["simulated"] is True
        assert b"<title>gpufleet</title>" in _get(f"http://127.0.0.1:{port}/", demo, log)
    finally:
        demo.terminate()
        status = demo.wait(timeout=60)
    assert status == 0, log.read_text()


def test_the_base_install_reports_training_numbers_without_any_dependency(
    install: Callable[[str], Path],
) -> None:
    base = install("")
    loaded = _run(base / "python", "-c", _THIRD_PARTY).stdout
    assert set(json.loads(loaded)) - {"__main__"} == {"gpufleet"}
    assert "Usage:" in _run(base / "gpufleet", "--help").stdout
    for name, command in COMMANDS.items():
        refused = _run(base / "gpufleet", name, status=None)
        assert refused.returncode != 0
        assert f"gpufleet[{command.extra}]" in refused.stderr, refused.stderr
        assert len(refused.stderr.splitlines()) == 1, refused.stderr


@pytest.mark.parametrize("extra", PACKAGES)
def test_an_extra_installs_everything_its_commands_import(install: Callable[[str], Path], extra: str) -> None:
    folder = install(extra)
    _run(folder / "python", "-c", _IMPORT_ALL, *PACKAGES[extra])
    for name, command in COMMANDS.items():
        if command.extra == extra:
            assert name in _run(folder / "gpufleet", name, "--help").stdout
    for _, words, expected in (start for start in STARTS if start[0] == extra):
        done = _run(folder / "gpufleet", *words, status=None)
        assert expected in done.stdout + done.stderr, done.stderr


def _wheel(wheels: Path) -> Path:
    [wheel] = wheels.glob("gpufleet-*.whl")
    return wheel


def _requirement(wheels: Path, extra: str) -> str:
    return f"{_wheel(wheels)}[{extra}]" if extra else str(_wheel(wheels))


def _locked(wheels: Path) -> list[str]:
    """Options of uv that take kubelite from `wheels` and versions from the lock file."""
    return ["--find-links", str(wheels), "--constraints", str(LOCK)]


def _environment() -> dict[str, str]:
    """The environment without settings of gpufleet or paths of this checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GPUFLEET")
        and name not in ("PORT", "PYTHONPATH", "DATABASE_URL", "VIRTUAL_ENV")
    }


def _run(program: Path, *words: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=60, cwd="/", env=_environment()
    )
    assert status is None or done.returncode == status, done.stderr
    return done


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _get(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 120) -> bytes:
    """Return the body at `url`, waiting until the server is up."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return bytes(response.read())
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"no answer from {url}:\n{log.read_text()}"
            time.sleep(0.2)
