"""The source with a real Slurm: jobs appear in the fleet, run, end and disappear."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.sources.slurm.real_cluster import Slurm
from tests.waiting import block_until, wait_until

from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.commands import SlurmCommands
from gpufleet.sources.slurm.source import SlurmSource


def settings(slurm: Slurm, timeout: float = 10.0) -> SlurmSettings:
    return SlurmSettings(enabled=True, bin=slurm.bin, conf=slurm.configuration, timeout=timeout, refresh=1.0)


def slurm_source(slurm: Slurm, timeout: float = 10.0) -> tuple[SlurmSource, Fleet]:
    fleet = Fleet("hpc")
    fleet.start_accounting()
    chosen = settings(slurm, timeout)
    return SlurmSource(chosen, fleet, client=SlurmCommands(chosen, slurm.environment)), fleet


async def until(condition: Callable[[], bool]) -> None:
    await wait_until(condition, interval=0.1)  # each poll runs a command of Slurm


async def until_running(slurm: Slurm, *jobs: int) -> None:
    def running() -> bool:
        output = slurm.command("squeue", "--noheader", "--format=%A %T", "--jobs", ",".join(map(str, jobs)))
        return all(line.endswith(" RUNNING") for line in output.splitlines())

    await until(running)


async def until_ended(slurm: Slurm, *jobs: int) -> None:
    await until(lambda: not slurm.command("squeue", "--noheader", "--jobs", ",".join(map(str, jobs))))


@contextmanager
def jobs(slurm: Slurm) -> Iterator[None]:
    """Cancel all jobs of a test at its end, and wait until the GPUs are free."""
    try:
        yield
    finally:
        slurm.command("scancel", "--user", psutil.Process().username())
        block_until(lambda: not slurm.command("squeue", "--noheader"))


def named(fleet: Fleet, name: str) -> Workload:
    (found,) = [w for w in fleet.workloads().values() if w.name == name]
    return found


async def test_jobs_with_shards_hold_their_part_of_a_gpu(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    with jobs(slurm):
        submitted = [
            slurm.submit(
                "sleep 60", f"--job-name=shards-{count}", f"--gres=shard:{count}", "--nodelist=node-1"
            )
            for count in (1, 3, 4)
        ]
        await until_running(slurm, *submitted)
        assert await source.polling.run_once(source.refresh), source.polling.problem
        held = {}
        for count in (1, 3, 4):
            [pod] = named(fleet, f"shards-{count}").pods
            held[count] = pod.gpus, pod.share, pod.held
        # Four shards make a GPU: the first two jobs share one.
        assert held == {1: (1, 0.25, (0,)), 3: (1, 0.75, (0,)), 4: (1, 1.0, (1,))}
        assert fleet.views()["node-1"].allocated == 2


async def test_a_job_on_two_nodes_holds_its_allocated_gpus(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    with jobs(slurm):
        job = slurm.submit("sleep 60", "--job-name=wide", "--nodes=2", "--gres=gpu:a100:3", "--comment=cc-42")
        await until_running(slurm, job)
        assert await source.polling.run_once(source.refresh), source.polling.problem
        wide = named(fleet, "wide")
        assert (wide.kind, wide.status, wide.gpus, wide.source) == ("SlurmJob", Status.RUNNING, 6, "slurm")
        assert wide.namespace == psutil.Process().username()  # no accounts here: the user is the namespace
        assert wide.labels["slurm/partition"] == "batch"
        assert wide.annotations["slurm/comment"] == "cc-42"
        assert [(pod.node, pod.held) for pod in wide.pods] == [("node-1", (0, 1, 2)), ("node-2", (0, 1, 2))]
        views = fleet.views()
        assert [(v.node.gpu_model, v.total, v.allocated, v.state) for v in views.values()] == [
            ("NVIDIA_A100", 8, 3, NodeState.PARTIAL),
            ("NVIDIA_A100", 8, 3, NodeState.PARTIAL),
        ]
        assert views["node-1"].holders[2] == (wide.pods[0].uid,)


async def test_an_ended_job_keeps_its_gpus_in_history_and_frees_them_on_the_node(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    with jobs(slurm):
        bad = slurm.submit("sleep 1.5; false", "--job-name=bad", "--gpus=2")
        quick = slurm.submit("sleep 1.5", "--job-name=quick", "--gpus=1")
        await until_running(slurm, bad, quick)
        await source.refresh()
        assert named(fleet, "bad").status is Status.RUNNING
        held = named(fleet, "bad").pods[0].held
        await until_ended(slurm, bad, quick)
        await source.refresh()
        assert named(fleet, "bad").status is Status.FAILED
        assert named(fleet, "quick").status is Status.COMPLETED
        (pod,) = named(fleet, "bad").pods
        assert pod.held == held
        assert len(held) == 2
        assert pod.ended >= pod.started > 0
        assert {v.allocated for v in fleet.views().values()} == {0}
    periods = [p for p in fleet.allocation_periods.drain() if p.workload_name == "bad"]
    assert [(p.gpus, p.held, p.start, p.end) for p in periods] == [(2, held, pod.started, pod.ended)]


async def test_arrays_and_heterogeneous_jobs_are_one_workload_each(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    with jobs(slurm):
        slurm.submit("sleep 60", "--job-name=sweep", "--array=0-3%2", "--gpus=2")
        het = slurm.command(
            "sbatch", "--parsable", "--output=/dev/null", "--job-name=pair", "--nodes=1", "--gpus=1",
            ":", "--nodes=1", "--gpus=2", "--wrap=sleep 60",
        )  # fmt: skip
        await until(lambda: slurm.command("squeue", "--noheader", "--states=RUNNING").count("\n") == 4)
        await source.refresh()
        sweep, pair = named(fleet, "sweep"), named(fleet, "pair")
        assert (sweep.kind, sweep.gpus, sweep.requested) == ("SlurmJobArray", 4, 8)
        names = [branch.name for branch in fleet.object_tree(sweep.uid).children]
        assert names == ["sweep_0", "sweep_1", "sweep_[2-3%2]"]
        assert (pair.kind, pair.gpus, pair.status) == ("SlurmHetJob", 3, Status.RUNNING)
        assert pair.annotations["slurm/job-id"] == het.strip()
        assert [branch.name for branch in fleet.object_tree(pair.uid).children] == ["pair+0", "pair+1"]


async def test_a_pending_job_requests_its_gpus_and_holds_none(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    with jobs(slurm):
        held = slurm.submit("sleep 60", "--job-name=later", "--hold", "--ntasks=4", "--gpus-per-task=2")
        await source.refresh()
        later = named(fleet, "later")
        assert (later.status, later.gpus, later.requested) == (Status.PENDING, 0, 8)
        assert later.annotations["slurm/reason"] == "JobHeldUser"
        slurm.command("scontrol", "release", str(held))
        await until_running(slurm, held)
        await source.refresh()
        assert (named(fleet, "later").uid, named(fleet, "later").gpus) == (later.uid, 8)


async def test_a_requeued_job_stays_the_same_workload(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    with jobs(slurm):
        job = slurm.submit("sleep 60", "--job-name=again", "--gpus=8", "--nodelist=node-1")
        await until_running(slurm, job)
        await source.refresh()
        first = named(fleet, "again")
        # Real time: a requeue changes the time of submission, which Slurm keeps in whole seconds.
        submitted = fleet.ownership.owners[first.uid].created
        await wait_until(lambda: time.time() >= submitted + 1)
        slurm.command("scontrol", "requeuehold", str(job))
        await until(lambda: "PENDING" in slurm.command("squeue", "--noheader", "--format=%T"))
        await source.refresh()
        waiting = named(fleet, "again")
        assert (waiting.uid, waiting.status, waiting.gpus) == (first.uid, Status.PENDING, 0)
        assert fleet.views()["node-1"].allocated == 0


async def test_a_drained_node_is_cordoned_and_a_node_that_is_down_is_faulty_with_the_reason(
    slurm: Slurm,
) -> None:
    source, fleet = slurm_source(slurm)
    try:
        slurm.command("scontrol", "update", "NodeName=node-1", "State=DRAIN", "Reason=new fans, State=odd")
        slurm.command("scontrol", "update", "NodeName=node-2", "State=DOWN", "Reason=gpu fell off the bus")
        await source.refresh()
        drained, down = fleet.views()["node-1"], fleet.views()["node-2"]
        assert (drained.node.cordoned, drained.fault, drained.usable) == (True, "", 0)
        assert drained.node.labels["slurm/reason"] == "new fans, State=odd"
        assert (down.state, down.fault) == (NodeState.FAULTY, "Slurm says DOWN: gpu fell off the bus")
    finally:
        for node in slurm.names:
            slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
    async with asyncio.timeout(20):  # the controller pings the nodes first
        while {view.state for view in fleet.views().values()} != {NodeState.IDLE}:
            await asyncio.sleep(0.2)
            await source.refresh()


async def test_a_hanging_controller_leaves_the_fleet_unchanged_and_no_process_behind(
    slurm: Slurm,
) -> None:
    source, fleet = slurm_source(slurm, timeout=0.5)
    with jobs(slurm):
        job = slurm.submit("sleep 60", "--job-name=steady", "--gpus=4")
        await until_running(slurm, job)
        assert await source.polling.run_once(source.refresh)
        slurm.freeze()
        try:
            assert not await source.polling.run_once(source.refresh)
            assert "did not answer within 0.5 s" in source.polling.problem
            assert "last success at" in source.polling.problem
            assert named(fleet, "steady").gpus == 4
            assert not [p for p in psutil.Process().children() if p.name() in ("scontrol", "squeue")]
        finally:
            slurm.thaw()
        async with asyncio.timeout(10):
            while not await source.polling.run_once(source.refresh):
                pass
        assert source.polling.problem == ""


async def test_slurmrestd_returns_the_same_as_the_commands(slurm: Slurm, tmp_path: Path) -> None:
    by_command, fleet = slurm_source(slurm)
    socket = tmp_path / "rest.sock"
    process = slurm.rest(f"unix:{socket}")
    try:
        await until(socket.exists)
        other = Fleet("hpc")
        by_rest = SlurmSource(SlurmSettings(url=f"unix://{socket}"), other)
        with jobs(slurm):
            job = slurm.submit("sleep 60", "--job-name=both", "--nodes=2", "--gres=gpu:1", "--gpus=2")
            await until_running(slurm, job)
            slurm.command("scontrol", "update", "NodeName=node-1", "State=DRAIN", "Reason=broken fan")
            await by_command.refresh()
            assert await by_rest.polling.run_once(by_rest.refresh), by_rest.polling.problem
            slurm.command("scontrol", "update", "NodeName=node-1", "State=RESUME")
        assert other.workloads() == fleet.workloads()
        cordoned = [
            (v.node.cordoned, v.node.labels["slurm/reason"])
            for v in other.views().values()
            if v.node.cordoned
        ]
        assert cordoned == [(True, "broken fan")]
        assert {n: v.holders for n, v in other.views().items()} == {
            n: v.holders for n, v in fleet.views().items()
        }
        await by_rest.close()
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("bin", [Path("/nonexistent"), None])
async def test_without_slurms_commands_the_error_names_the_setting(bin: Path | None, tmp_path: Path) -> None:
    chosen = SlurmSettings(enabled=True, bin=bin)
    source = SlurmSource(
        chosen, Fleet("hpc"), client=SlurmCommands(chosen, {**os.environ, "PATH": str(tmp_path)})
    )
    assert not await source.polling.run_once(source.refresh)
    assert "set slurm.bin" in source.polling.problem or bin is None


async def test_every_task_of_a_pending_array_requests_its_gpus(slurm: Slurm) -> None:
    source, fleet = slurm_source(slurm)
    tasks = [str(number * (number + 3)) for number in range(1, 31)]  # longer than Slurm prints by default
    with jobs(slurm):
        slurm.submit("true", "--hold", "--job-name=strided", "--array=1-99:3", "--gpus=2")
        slurm.submit("true", "--hold", "--job-name=scattered", f"--array={','.join(tasks)}", "--gpus=1")
        await source.refresh()
        assert (named(fleet, "strided").requested, named(fleet, "scattered").requested) == (66, 30)
