"""Measure `gpufleet demo` with 32 and 2,000 nodes: time to start, CPU, memory and response time."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil

from bench.result import Result

CPU_SECONDS = 60.0
"""Seconds over which CPU is measured: four refreshes."""


def measure() -> Iterator[Result]:
    for nodes, start_budget, cpu_budget in ((32, 20.0, 0.2), (2000, 90.0, 1.0)):
        folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
        folder.chmod(0o711)  # PostgreSQL's user must reach the database in it
        try:
            yield from _measure(folder, nodes, start_budget, cpu_budget)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _measure(folder: Path, nodes: int, start_budget: float, cpu_budget: float) -> Iterator[Result]:
    with _demo(folder, nodes) as (seconds, address, process):
        yield Result(f"first start at {nodes} nodes", seconds, "s", at_most=start_budget)
        _wait_for_history(folder, address)
        before, began = _cpu(process), time.monotonic()
        time.sleep(CPU_SECONDS)
        share = (_cpu(process) - before) / (time.monotonic() - began)
        yield Result(
            f"CPU when running at {nodes} nodes", share, "cores", at_most=cpu_budget, note="with PostgreSQL"
        )
        memory = process.memory_info().rss / 2**20
        yield Result(f"memory of the process at {nodes} nodes", memory, "MiB", at_most=2048)
        yield Result(
            f"overview response at {nodes} nodes", 1000 * _response_seconds(address), "ms", at_most=100
        )
    with _demo(folder, nodes) as (seconds, _, _):
        yield Result(f"second start at {nodes} nodes", seconds, "s", at_most=start_budget)


@contextmanager
def _demo(folder: Path, nodes: int) -> Iterator[tuple[float, str, psutil.Process]]:
    command = [sys.executable, "-m", "gpufleet", "demo", "--data", str(folder), "--port", "0"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--nodes", str(nodes)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        printed = ""
        for line in process.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        seconds = time.monotonic() - began
        address = re.search(r"http://127\.0\.0\.1:\d+", printed)
        assert address, printed
        yield seconds, address[0], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def _wait_for_history(folder: Path, address: str) -> None:
    """Wait until the remaining history is written and accounted for: both are work of the first minutes only."""
    deadline = time.monotonic() + 600
    while not list(folder.glob("demo/*/demo.json")) and time.monotonic() < deadline:
        time.sleep(0.5)
    hours = -1
    while (counted := _accounted_hours(address)) != hours and time.monotonic() < deadline:
        hours = counted
        time.sleep(10)


def _accounted_hours(address: str) -> int:
    now = datetime.now(UTC)
    span = {"start_time": (now - timedelta(days=30)).isoformat(), "end_time": now.isoformat()}
    query = urllib.parse.urlencode({**span, "page": 1, "page_size": 1})
    url = f"{address}/api/v1/gpu-aggregation/cluster/hourly-stats?{query}"
    with urllib.request.urlopen(url, timeout=30) as response:
        return int(msgspec.json.decode(response.read())["data"]["total"])


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of the process and its PostgreSQL children."""
    processes = [process, *process.children(recursive=True)]
    total = 0.0
    for each in processes:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _response_seconds(address: str) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(f"{address}/api/clusters/overview", timeout=30) as response:
        response.read()
    return time.monotonic() - began
