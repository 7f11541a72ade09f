"""Run a real VictoriaMetrics for tests, from PATH, the cache or Debian's archive.

Unpacking the package needs no root. Without VictoriaMetrics the tests that need it are skipped with
the reason.
"""

import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.debian import unpacked
from tests.prometheus_fixture import free_port


def program() -> Path:
    """Return the program. Skip the test if it is missing."""
    found = shutil.which("victoria-metrics")
    return Path(found) if found else unpacked("victoria-metrics") / "usr/bin/victoria-metrics"


@contextmanager
def running_victoriametrics(config: str = "", openmetrics: str = "") -> Iterator[str]:
    """Run VictoriaMetrics with a scrape configuration and history, and yield its address."""
    executable = program()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scrape.yml").write_text(config)
        port = free_port()
        log = (folder / "log").open("wb")
        process = subprocess.Popen(
            [
                executable,
                f"-storageDataPath={folder / 'data'}",
                f"-httpListenAddr=127.0.0.1:{port}",
                "-retentionPeriod=1y",
                "-memory.allowedBytes=128MB",
                "-loggerLevel=ERROR",
                *([f"-promscrape.config={folder / 'scrape.yml'}"] if config else []),
            ],
            stdout=log,
            stderr=log,
        )
        log.close()
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process, folder / "log")
            if openmetrics:
                _request(f"{address}/api/v1/import/prometheus", _in_milliseconds(openmetrics).encode())
                _request(f"{address}/internal/force_flush")  # make imported samples visible immediately
            yield address
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _in_milliseconds(openmetrics: str) -> str:
    """Convert timestamps: OpenMetrics uses seconds, the imported text format milliseconds."""
    return re.sub(r" (\d+(?:\.\d+)?)$", lambda at: f" {round(float(at[1]) * 1000)}", openmetrics, flags=re.M)


def _request(url: str, body: bytes | None = None) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10) as response:
        response.read()


def _wait(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            _request(f"{address}/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"victoria-metrics was not ready within 60 s: {log.read_text()[-500:]}")
