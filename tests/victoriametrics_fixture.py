"""A real VictoriaMetrics for tests: found on PATH or in the cache, else taken from Debian's archive.

As with Prometheus, unpacking the package needs no root, and where none can be had the tests that
need it are skipped with the reason.
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
    """VictoriaMetrics, or a skip that says what is missing."""
    found = shutil.which("victoria-metrics")
    return Path(found) if found else unpacked("victoria-metrics") / "usr/bin/victoria-metrics"


@contextmanager
def running_victoriametrics(config: str = "", openmetrics: str = "") -> Iterator[str]:
    """The address of a VictoriaMetrics with this scrape configuration and history; gone afterwards."""
    started = program()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scrape.yml").write_text(config)
        port = free_port()
        log = (folder / "log").open("wb")
        process = subprocess.Popen(
            [
                started,
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
                _ask(f"{address}/api/v1/import/prometheus", _in_milliseconds(openmetrics).encode())
                _ask(f"{address}/internal/force_flush")  # what came in is found at once, not after a second
            yield address
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _in_milliseconds(openmetrics: str) -> str:
    """OpenMetrics writes times in seconds, the older text format that is imported in milliseconds."""
    return re.sub(r" (\d+(?:\.\d+)?)$", lambda at: f" {round(float(at[1]) * 1000)}", openmetrics, flags=re.M)


def _ask(url: str, body: bytes | None = None) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10) as answer:
        answer.read()


def _wait(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            _ask(f"{address}/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"victoria-metrics did not get ready within 60 s: {log.read_text()[-500:]}")
