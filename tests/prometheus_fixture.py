"""A real Prometheus for tests: found on PATH or in the cache, else taken from Debian's archive.

Unpacking the package needs no root. Where none can be had the tests that need it are skipped
with the reason.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet" / "prometheus"


@dataclass(frozen=True)
class Binaries:
    prometheus: Path
    promtool: Path


def binaries() -> Binaries:
    """Prometheus and its tool, or a skip that says what is missing."""
    for folder in (_on_path(), _CACHE / "usr/bin"):
        if folder is not None and (folder / "prometheus").exists() and (folder / "promtool").exists():
            return Binaries(folder / "prometheus", folder / "promtool")
    _fetch()
    return Binaries(_CACHE / "usr/bin/prometheus", _CACHE / "usr/bin/promtool")


def _on_path() -> Path | None:
    found = shutil.which("prometheus")
    return Path(found).parent if found and shutil.which("promtool") else None


def _fetch() -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"no prometheus on PATH, and no {tool} to fetch one with")
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE.parent) as folder:
        fetched = subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, timeout=120
        )
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if not packages:
            pytest.skip(f"no prometheus on PATH, and apt-get could not fetch one: {fetched.stderr[-200:]}")
        subprocess.run(["dpkg", "-x", packages[0], f"{folder}/unpacked"], check=True, timeout=120)
        try:
            (Path(folder) / "unpacked").rename(_CACHE)
        except OSError:  # another test process was faster
            assert (_CACHE / "usr/bin/prometheus").exists()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_prometheus(config: str, openmetrics: str = "") -> Iterator[str]:
    """The address of a Prometheus with this configuration and history; gone afterwards."""
    tools = binaries()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(config)
        if openmetrics:
            (folder / "history.txt").write_text(openmetrics)
            backfill = ["tsdb", "create-blocks-from", "--max-block-duration=720h", "openmetrics"]
            subprocess.run(
                [tools.promtool, *backfill, folder / "history.txt", folder / "data"],
                check=True,
                capture_output=True,
                timeout=60,
            )
        port = free_port()
        log = (folder / "log").open("wb")
        process = subprocess.Popen(
            [
                tools.prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        log.close()
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process, folder / "log")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"prometheus did not get ready within 20 s: {log.read_text()[-500:]}")
