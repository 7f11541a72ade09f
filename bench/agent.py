"""Measure CPU and memory of the agent: eight GPUs on the NVML shim, publishing to an embedded Kubernetes API.

The agent runs in its own process with a program on every GPU. It is measured twice: once it reads the GPUs every second
instead of every 15 seconds and is scraped after each reading; once it only looks for signs of faults, ten times a
second instead of once. Both CPU times, divided by the real periods, are its share of a core; work between readings
(watches, events) therefore counts several times. The work of the shim, a text file instead of a driver, is included.

Memory is measured for two agents: one with cached bytecode, as in the image, and one that compiles every module at
the start. The library of a real driver adds to both: NVML 580 with one H200 takes 18 MiB.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import aiohttp
from tests.shim.nvml import GIB, NvmlShim, build_shim, switched

from bench.result import Result
from gpufleet.kubernetes import KubeClient, load_connection
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.runtime.settings import AgentSettings
from kubelite import KubeLite

PERIOD, HEALTH_PERIOD = AgentSettings.period, AgentSettings.health_period
ROUNDS = 20
READING = ("--set", "agent.period=1s", "--set", "agent.health_period=10m")
LOOKING = ("--set", "agent.period=10m", "--set", "agent.health_period=100ms")
LOOKS_A_SECOND = 10
_TICK = os.sysconf("SC_CLK_TCK")


def measure() -> Iterable[Result]:
    """Yield the figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        bytecode = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        asyncio.run(_measure(bytecode, rounds=3))
        figures = asyncio.run(_measure(bytecode, ROUNDS))
        looks = asyncio.run(_measure(bytecode, ROUNDS, LOOKING))
    with tempfile.TemporaryDirectory() as folder:
        none = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        compiled = asyncio.run(_measure(none, rounds=5))
    look = looks["cpu"] / (ROUNDS * LOOKS_A_SECOND)
    share = 100 * (figures["cpu"] / ROUNDS / PERIOD + look / HEALTH_PERIOD)
    yield Result("one reading and one scrape of 8 GPUs", 1000 * figures["cpu"] / ROUNDS, "ms CPU")
    yield Result("one look for signs of faults on 8 GPUs", 1000 * look, "ms CPU")
    yield Result("a reading and a scrape every 15 s, a look every second", share, "% of a core", at_most=1.0)
    yield Result("memory, resident", figures["resident"] / 2**20, "MiB", at_most=65)
    yield Result("memory without bytecode", compiled["resident"] / 2**20, "MiB", at_most=65)
    yield Result("size of the metrics page", figures["page"] / 1024, "KiB")
    yield Result("writes to the API in all rounds", figures["writes"], "writes", at_most=1)


async def _measure(
    environment: dict[str, str], rounds: int, periods: tuple[str, ...] = READING
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        shim = NvmlShim(build_shim(), Path(folder))
        shim.describe(switched(8))
        for gpu in range(8):
            shim.run(gpu, os.getpid(), 70 * GIB)
        async with KubeLite() as server:
            kubeconfig = Path(folder) / "kubeconfig"
            server.write_kubeconfig(kubeconfig)
            async with KubeClient(load_connection(str(kubeconfig))) as client:
                for definition in definitions():
                    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                    await client.write_json("POST", path, definition)
            return await _run(
                {**os.environ, **shim.environment(), **environment}, kubeconfig, rounds, periods
            )


async def _run(
    environment: dict[str, str], kubeconfig: Path, rounds: int, periods: tuple[str, ...]
) -> dict[str, float]:
    flags = ["--port", "0", "--node", "bench", "--kubeconfig", str(kubeconfig), *periods]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gpufleet", "agent", *flags),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        async with aiohttp.ClientSession(url) as session:
            for _ in range(3):
                text = await _scrape(session)
            before = _cpu(process.pid)
            for _ in range(rounds):
                if periods == READING:
                    text = await _scrape(session)
                else:
                    await asyncio.sleep(1.0)
            writes = next(
                line for line in text.splitlines() if line.startswith("gpufleet_agent_status_writes_total")
            )
            return {
                "cpu": _cpu(process.pid) - before,
                "resident": _resident(process.pid),
                "page": len(text),
                "writes": float(writes.split()[1]),
            }
    finally:
        process.terminate()
        await process.wait()


async def _scrape(session: aiohttp.ClientSession) -> str:
    await asyncio.sleep(1.0)
    async with session.get("/metrics") as response:
        return await response.text()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
