"""Polled sources in the real wiring: alone, together, and with one that fails."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.shim.nvml import GIB, NvmlShim, build_shim, switched
from tests.sources.docker.engine_server import EngineServer
from tests.waiting import block_until

from gpufleet.errors import Unavailable
from gpufleet.runtime.settings import Settings, StoreSettings, load_settings
from gpufleet.server.wiring.assemble import open_components

CLUSTERS = """
[clusters.good.docker]
url = "{url}"
gpus = 8
[clusters.broken.slurm]
enabled = true
bin = "{nowhere}"
[clusters.away.docker]
url = "unix://{nowhere}/docker.sock"
"""


@pytest.fixture
def settings(store_settings: StoreSettings, tmp_path: Path) -> Settings:
    file = tmp_path / "gpufleet.toml"
    file.write_text(CLUSTERS.format(url=f"unix://{tmp_path}/engine.sock", nowhere=tmp_path / "nowhere"))
    return load_settings({}, {}, file).replace(store_settings)


async def test_a_failing_cluster_does_not_affect_another(settings: Settings, tmp_path: Path) -> None:
    engine = EngineServer("dgx-7")
    engine.run("train", DeviceRequests=[{"Count": 2, "Capabilities": [["gpu"]]}])
    async with engine.serving(tmp_path / "engine.sock"), AsyncExitStack() as exit_stack:
        components = await open_components(settings, exit_stack)
        good = components.clusters.get("good").fleet
        assert [w.name for w in good.workloads().values()] == ["train"]
        assert good.views()["dgx-7"].allocated == 2
        for name in ("broken", "away"):
            assert not components.clusters.get(name).fleet.views()
        with pytest.raises(Unavailable, match=r"cluster broken: .*can't be run.*set slurm\.bin"):
            await components.probes["slurm"]()
        with pytest.raises(Unavailable, match=r"cluster away: .*can't be reached"):
            await components.probes["docker"]()
        assert {"slurm/broken", "docker/good", "docker/away"} <= set(components.background.running())


@contextmanager
def serving(tmp_path: Path, database: str, environment: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """`gpufleet serve --local` as its users start it: its address and its log."""
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpufleet", "serve", "--local", "--port", "0", "--log-format", "json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment, "DATABASE_URL": database, "GPUFLEET_LOCAL_NODE": "workstation"},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("gpufleet serves on"), log.read_text()
        yield line.rpartition(" ")[2].strip(), log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


def get_json(url: str) -> dict[str, object]:
    answer = httpx.get(url)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_serve_local_shows_gpus_and_processes_with_nothing_else_installed(
    tmp_path: Path, postgres_url: str
) -> None:
    shim = NvmlShim(build_shim(), tmp_path)
    shim.describe(switched(2))
    shim.run(1, os.getpid(), 3 * GIB)
    with serving(tmp_path, postgres_url, shim.environment()) as (address, _):
        gpus = get_json(f"{address}/api/v1/gpu/metrics")["data"]
        processes = get_json(f"{address}/api/v1/gpu/processes")["data"]
        health = get_json(f"{address}/api/healthz")["data"]
    text = json.dumps([gpus, processes])
    assert text.count('"workstation"') >= 3, text
    assert isinstance(health, dict)
    assert health["dependencies"]["local"]["state"] == "ok", health
    assert health["dependencies"]["local"]["message"].startswith("2 GPUs by NVML")
    assert str(os.getpid()) in json.dumps(processes)


def test_serve_local_without_a_driver_says_so_in_one_line_and_serves(
    tmp_path: Path, postgres_url: str
) -> None:
    empty = NvmlShim(build_shim(), tmp_path)
    empty.describe({"driver": "580.95.05", "nvml": "13.580.95", "count": "0"})
    with serving(tmp_path, postgres_url, empty.environment()) as (address, log):
        block_until(lambda: "no GPU found" in log.read_text())
        health = get_json(f"{address}/api/healthz")["data"]
        warnings = [line for line in log.read_text().splitlines() if "source_unavailable" in line]
    assert isinstance(health, dict)
    assert health["dependencies"]["local"]["state"] == "down"
    assert len(warnings) == 1
    assert "no GPU found on this machine" in warnings[0]
