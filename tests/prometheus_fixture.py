"""Run a real Prometheus for tests, from PATH, the cache or Debian's archive.

Unpacking the package needs no root. Without Prometheus the tests that need it are skipped with
the reason.
"""

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

from tests.debian import unpacked


@dataclass(frozen=True)
class Binaries:
    prometheus: Path
    promtool: Path


def binaries() -> Binaries:
    """Return Prometheus and promtool. Skip the test if they are missing."""
    folder = _on_path() or unpacked("prometheus") / "usr/bin"
    return Binaries(folder / "prometheus", folder / "promtool")


def _on_path() -> Path | None:
    found = shutil.which("prometheus")
    return Path(found).parent if found and shutil.which("promtool") else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_prometheus(config: str, openmetrics: str = "") -> Iterator[str]:
    """Run Prometheus with a configuration and history, and yield its address."""
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
    raise AssertionError(f"prometheus was not ready within 20 s: {log.read_text()[-500:]}")
