"""The local source with the NVML shim and real processes."""

import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import psutil
import pynvml  # noqa: F401 - imported before the clock of a deadline runs
import pytest
from tests.shim.nvml import GIB, NvmlShim, uuid
from tests.waiting import wait_until

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.state import Fleet
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.model.node import Health
from gpufleet.model.reading import Quantity
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings import DevicesSettings, LocalSettings, MetricsSettings
from gpufleet.sources.local import LocalSource
from gpufleet.sources.local.sessions import Session, Sessions
from gpufleet.store import Store

LOCAL = LocalSettings(enabled=True, node="workstation")


@pytest.fixture
async def reader(nvml_shim: NvmlShim) -> AsyncIterator[DeadlineReader]:
    reader = DeadlineReader(NvmlReader, deadline=0.5, min_backoff=0.0)
    yield reader
    nvml_shim.unhang()
    await reader.close()


def local_source(reader: DeadlineReader, fleet: Fleet, metrics: EmbeddedMetrics | None = None) -> LocalSource:
    return LocalSource(LOCAL, DevicesSettings(), fleet, metrics, reader=reader)


async def test_readings_and_processes_are_recorded_in_the_metric_source(
    nvml_shim: NvmlShim, reader: DeadlineReader, store: Store
) -> None:
    metrics = EmbeddedMetrics("here", store.readings, store.training, MetricsSettings())
    fleet = Fleet("here")
    nvml_shim.run(3, os.getpid(), 5 * GIB)
    started = time.time()
    source = local_source(reader, fleet, metrics)
    assert await source.polling.run_once(source.refresh), source.polling.problem
    latest = await metrics.latest()
    assert [(gpu.ref.node, gpu.ref.index, gpu.uuid) for gpu in latest.gpus] == [
        ("workstation", index, uuid(index)) for index in range(8)
    ]
    assert latest.value(3, Quantity.UTILIZATION) == 30.0
    assert latest.value(3, Quantity.MEMORY_USED) == 3 * GIB
    assert latest.value(4, Quantity.MEMORY_UTILIZATION) == pytest.approx(5.0)
    assert (latest.sampled_at(3) or 0) >= started
    (process,) = (await metrics.processes()).rows
    assert (process.gpu.index, process.pid, process.gpu_memory_bytes) == (3, os.getpid(), 5 * GIB)
    assert process.user == getpass.getuser()
    assert process.command.split()[0] == psutil.Process().cmdline()[0]
    assert fleet.gpu_columns.readings.value(3, Quantity.UTILIZATION) == 30.0
    assert source.summary().startswith("8 GPUs by NVML")
    (series,) = await metrics.series(Quantity.POWER, [latest.gpus[3].ref], started, started + 60, 15)
    assert series.values[0] == pytest.approx(103.5)


async def test_gpus_have_their_island_and_health(nvml_shim: NvmlShim, reader: DeadlineReader) -> None:
    fleet = Fleet("here")
    source = local_source(reader, fleet)
    await source.refresh()
    view = fleet.views()["workstation"]
    assert (view.node.source, view.total, view.state) == ("local", 8, NodeState.IDLE)
    assert {(g.island, g.bandwidth_gbps, g.health) for g in view.gpus} == {
        ("nvlink-group-0", 900, Health.HEALTHY)
    }
    nvml_shim.xid(2, 48)
    await source.refresh()
    view = fleet.views()["workstation"]
    assert view.gpus[2].health is Health.UNHEALTHY
    assert "48" in view.fault


async def test_an_unresponsive_driver_makes_the_gpus_unknown_until_it_answers(
    nvml_shim: NvmlShim, reader: DeadlineReader
) -> None:
    fleet = Fleet("here")
    source = local_source(reader, fleet)
    assert await source.polling.run_once(source.refresh)
    nvml_shim.hang("nvmlDeviceGetTemperature")
    assert not await source.polling.run_once(source.refresh)
    assert "has not answered" in source.polling.problem
    assert {gpu.health for gpu in fleet.views()["workstation"].gpus} == {Health.UNKNOWN}
    nvml_shim.unhang()
    await wait_until(lambda: source.polling.run_once(source.refresh))
    assert {gpu.health for gpu in fleet.views()["workstation"].gpus} == {Health.HEALTHY}


@dataclass
class Programs:
    """A launcher with a worker in one session, and another process in its own session."""

    launcher: int
    worker: int
    other: int
    end: Callable[[], None]


@pytest.fixture
def programs() -> Iterator[Programs]:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    two = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    launcher = subprocess.Popen(
        [sys.executable, "-c", two, *sleep], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    other = subprocess.Popen(sleep, start_new_session=True)
    assert launcher.stdout is not None
    worker = int(launcher.stdout.readline())

    def end() -> None:
        if launcher.poll() is None:
            os.kill(worker, signal.SIGKILL)
        for process in (launcher, other):
            process.kill()
            process.wait()

    yield Programs(launcher.pid, worker, other.pid, end)
    end()
    launcher.stdout.close()


async def test_the_processes_of_a_session_are_one_workload_and_share_gpus_with_other_sessions(
    nvml_shim: NvmlShim, reader: DeadlineReader, programs: Programs
) -> None:
    fleet = Fleet("here")
    fleet.start_accounting()
    source = local_source(reader, fleet)
    nvml_shim.run(0, programs.launcher, GIB)
    nvml_shim.run(1, programs.worker, GIB)
    nvml_shim.run(1, programs.other, GIB)
    await source.refresh()
    uid = next(uid for uid in fleet.workloads() if f"-{programs.launcher}-" in uid)
    trained = fleet.workloads()[uid]
    assert (trained.kind, trained.status, trained.gpus) == ("Process", Status.RUNNING, 2)
    assert trained.namespace == getpass.getuser()
    assert trained.pods[0].held == (0, 1)
    assert sum(w.pods[0].gpus * w.pods[0].share for w in fleet.workloads().values()) == pytest.approx(2)
    assert fleet.views()["workstation"].allocated == 2
    programs.end()
    nvml_shim.unset(*[key for key in nvml_shim.state if ".process." in key])
    await source.refresh()
    assert not fleet.workloads()
    assert {ended.workload.status for ended in fleet.ended().values()} == {Status.UNKNOWN}
    assert not fleet.allocation_periods.open()


async def test_a_process_of_a_slurm_job_tells_which_gpu_the_job_uses(
    nvml_shim: NvmlShim, reader: DeadlineReader
) -> None:
    fleet = Fleet("here")
    job = FleetPod(uid="j", name="j", node="workstation", phase=Status.RUNNING, gpus=1, alias="42")
    fleet.put_pod(job)
    nvml_shim.run(5, os.getpid(), GIB)
    sessions = Sessions("workstation", lambda pid: Session(pid, "ann", "python", 1.0, "42"))
    source = LocalSource(LOCAL, DevicesSettings(), fleet, None, reader=reader, sessions=sessions)
    await source.refresh()
    assert list(fleet.workloads()) == ["j"]
    assert fleet.views()["workstation"].holders == {5: ("j",)}
