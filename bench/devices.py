"""Measure the cost of reading the GPUs of a node: eight GPUs, through the NVML shim, every 15 seconds.

A separate process only reads devices. Its CPU time for readings and processes, divided by the period, is a
share of a core. Its resident memory is compared with a Python that has imported nothing. The figures
include the work of the shim, which reads a text file instead of asking a driver.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.shim.nvml import GIB, NvmlShim, build_shim, switched

from bench.result import Result

PERIOD = 15.0
ROUNDS = 300

READ = f"""
import json, os, time
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.processes import ProcessTable
reader = NvmlReader(ProcessTable(trust_pids=True))
def cost(call, rounds):
    call()
    started = time.process_time()
    for _ in range(rounds):
        call()
    return (time.process_time() - started) / rounds
figures = {{
    "readings": cost(reader.readings, {ROUNDS}),
    "processes": cost(reader.processes, {ROUNDS}),
    "inventory": cost(reader.inventory, 20),
}}
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
print(json.dumps(figures | {{"resident": resident()}}))
"""
BARE = """
import os
with open("/proc/self/statm") as statm:
    print(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
"""


def measure() -> Iterable[Result]:
    """Yield the figures, each from a new process."""
    with tempfile.TemporaryDirectory() as folder:
        shim = NvmlShim(build_shim(), Path(folder))
        shim.describe(switched(8))
        for gpu in range(8):
            shim.run(gpu, os.getpid(), 70 * GIB)
        figures = json.loads(_python(READ, shim.environment()))
    bare = int(_python(BARE, {}))
    yield Result("one reading of 8 GPUs", 1000 * figures["readings"], "ms CPU")
    yield Result("processes of 8 GPUs", 1000 * figures["processes"], "ms CPU")
    yield Result("inventory of 8 GPUs, 18 links each", 1000 * figures["inventory"], "ms CPU")
    share = 100 * (figures["readings"] + figures["processes"] + figures["inventory"]) / PERIOD
    yield Result("all three every 15 s", share, "% of a core", at_most=1.0)
    yield Result("memory of a process that only reads", figures["resident"] / 2**20, "MiB", at_most=80)
    yield Result(
        "memory relative to a bare Python", figures["resident"] / bare, "×", note=f"{bare / 2**20:.0f} MiB"
    )


def _python(program: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout
