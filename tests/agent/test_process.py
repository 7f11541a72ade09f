"""The agent as a process of its own, on the shim, without Kubernetes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from tests.shim.nvml import GIB, NvmlShim

from gpufleet.agent.agent import MAX_STUCK_CALLS, Agent
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.runtime.settings import AgentSettings, DevicesSettings

pytestmark = pytest.mark.long


@contextmanager
def agent(shim: NvmlShim, *flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
    command = [sys.executable, "-m", "gpufleet", "agent", "--port", "0", "--node", "box", *flags]
    process = subprocess.Popen(
        command,
        env={**environment, **shim.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        assert line.startswith("gpufleet agent of box serves on http://127.0.0.1:")
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


async def get(url: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
        return answer.status, await answer.text()


async def until(url: str, path: str, status: int, words: str = "") -> str:
    deadline = time.monotonic() + 20
    found = (0, "")
    while time.monotonic() < deadline:
        found = await get(url, path)
        if found[0] == status and words in found[1]:
            return found[1]
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is not {status} with {words!r} but {found}")


async def test_a_single_machine_serves_metrics_and_stops_on_sigterm(nvml_shim: NvmlShim) -> None:
    nvml_shim.run(3, os.getpid(), 7 * GIB)
    with agent(nvml_shim, "--set", "agent.period=200ms") as (process, url):
        await until(url, "/readyz", 200)
        text = await until(url, "/metrics", 200, "nvidia_gpu_process_gpu_memory_bytes")
        assert 'gpu="3"' in text
        assert "nvidia_gpu_temperature_celsius" in text
        assert (await get(url, "/livez"))[0] == 200
        assert (await get(url, "/nothing"))[0] == 404
        async with aiohttp.ClientSession() as session, session.post(url + "/metrics") as answer:
            assert answer.status == 405
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 15) == 0


async def test_the_port_answers_while_the_driver_hangs(nvml_shim: NvmlShim) -> None:
    with agent(nvml_shim, "--set", "agent.period=100ms", "--set", "devices.deadline=200ms") as (process, url):
        await until(url, "/metrics", 200, "nvidia_gpu_temperature_celsius")
        nvml_shim.hang("nvmlDeviceGetTemperature")
        await until(url, "/metrics", 200, "gpufleet_agent_driver_answers 0.0")
        assert (await get(url, "/livez"))[0] == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 15) == 0


async def test_a_driver_in_which_every_call_hangs_asks_for_a_restart(nvml_shim: NvmlShim) -> None:
    reader = DeadlineReader(NvmlReader, deadline=0.1, min_backoff=0.01, max_backoff=0.01)
    agent = Agent("box", AgentSettings(), DevicesSettings(), reader=reader)
    await agent.monitor.read()
    assert (agent.not_alive(), agent.not_ready()) == ("", "")
    nvml_shim.hang("nvmlDeviceGetTemperature")
    async with asyncio.timeout(10):
        while reader.stuck < MAX_STUCK_CALLS:
            assert agent.not_alive() == ""
            await agent.monitor.read()
            await asyncio.sleep(0.02)
    assert agent.not_alive() == "4 calls into the GPU driver do not return; a restart is needed"
    nvml_shim.unhang()
    await agent.close()


def once(nvml_shim: NvmlShim, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gpufleet", "agent", "--once", "--node", "box", *flags]
    environment = {**os.environ, **nvml_shim.environment()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_once_prints_a_line_for_each_gpu(nvml_shim: NvmlShim) -> None:
    done = once(nvml_shim)
    header, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert header.split()[:4] == ["GPU", "MODEL", "HEALTH", "UTIL"]
    assert [line.split()[0] for line in lines] == [str(index) for index in range(8)]
    wide = once(nvml_shim, "-o", "wide").stdout
    assert "UUID" in wide.splitlines()[0]
    gpus = json.loads(once(nvml_shim, "-o", "json").stdout)
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert all(gpu["uuid"] in wide for gpu in gpus)


def test_once_prints_the_metrics_that_it_would_serve(nvml_shim: NvmlShim) -> None:
    done = once(nvml_shim, "-o", "prometheus")
    assert done.returncode == 0
    assert done.stdout.count("nvidia_gpu_utilization_percent{") == 8


def test_a_port_in_use_is_reported_with_a_remedy(nvml_shim: NvmlShim) -> None:
    with agent(nvml_shim) as (_process, url):
        port = url.rpartition(":")[2]
        command = [sys.executable, "-m", "gpufleet", "agent", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1
        assert f"port {port} on 127.0.0.1 is in use by another program" in done.stderr


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ([], {}, False),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        (["--kubeconfig", "x"], {}, True),
        (["--kubernetes", "off", "--kubeconfig", "x"], {}, False),
    ],
)
def test_it_publishes_only_where_a_cluster_is_configured(
    flags: list[str], environment: dict[str, str], expected: bool
) -> None:
    from gpufleet.agent.process import publishes
    from gpufleet.runtime.settings import load_settings

    given = dict(zip(flags[::2], flags[1::2], strict=True))
    names = {"--kubeconfig": "kubernetes.kubeconfig", "--kubernetes": "agent.kubernetes"}
    settings = load_settings({names[flag]: value for flag, value in given.items()}, {})
    assert publishes(settings, environment) is expected
