"""The source with a real Slurm and accounting database, through sacct and through slurmrestd with tokens."""

import asyncio
import getpass
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.sources.slurm.real_cluster import Slurm, running_slurm
from tests.waiting import listens, wait_until

from gpufleet.errors import SlurmUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.commands import SlurmCommands
from gpufleet.sources.slurm.jobs import SlurmJob, job_from_accounting
from gpufleet.sources.slurm.rest import SlurmRest
from gpufleet.sources.slurm.source import SlurmSource


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with running_slurm(accounting=True) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    # Each poll runs a command of Slurm.
    await wait_until(lambda: asyncio.to_thread(condition), 60, interval=0.1)


def state(slurm: Slurm, job: int) -> str:
    """Return the state of a job in the database."""
    output = slurm.command(
        "sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job}"
    )
    return output.strip()


def dropped(slurm: Slurm, job: int) -> bool:
    """Return whether the controller has dropped a job."""
    return str(job) not in slurm.command("squeue", "--noheader", "--states=all", "--format=%A").split()


def by_command(slurm: Slurm, fleet: Fleet, history: float = 0.0) -> SlurmSource:
    settings = SlurmSettings(enabled=True, bin=slurm.bin, conf=slurm.configuration, history=history)
    return SlurmSource(settings, fleet, client=SlurmCommands(settings, slurm.environment))


@asynccontextmanager
async def rest(slurm: Slurm, tmp_path: Path) -> AsyncIterator[SlurmSettings]:
    """Run slurmrestd on a port, with tokens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = slurm.rest(f"127.0.0.1:{port}", tokens=True)
    try:
        await until(lambda: listens(port))
        output = slurm.command("scontrol", "token", f"username={getpass.getuser()}", "lifespan=600")
        token = tmp_path / "token"
        token.write_text(output.partition("=")[2])
        yield SlurmSettings(url=f"http://127.0.0.1:{port}", token_file=token, user=getpass.getuser())
    finally:
        process.terminate()
        process.wait(10)


async def test_a_job_that_ended_before_the_first_refresh_is_added_with_account_and_gpus(
    slurm: Slurm,
) -> None:
    started = time.time()
    job = slurm.submit("true", "--job-name=early", "--gres=gpu:3", "--account=research")
    await until(lambda: state(slurm, job) == "COMPLETED")
    await until(lambda: dropped(slurm, job))
    fleet = Fleet("hpc")
    source = by_command(slurm, fleet, history=3600)
    await source.refresh()
    fleet.start_accounting()
    await source.refresh()
    (ended,) = [record.workload for record in fleet.ended().values() if record.workload.name == "early"]
    assert (ended.status, ended.namespace) == (Status.COMPLETED, "research")
    assert (ended.labels["slurm/user"], ended.labels["slurm/account"]) == (getpass.getuser(), "research")
    (period,) = [p for p in fleet.allocation_periods.drain() if p.workload_name == "early"]
    assert (period.gpus, period.namespace) == (3, "research")
    assert started - 1 <= period.start <= period.end <= time.time()


async def test_a_job_that_ends_between_two_refreshes_gets_its_end_from_the_database(slurm: Slurm) -> None:
    fleet = Fleet("hpc")
    source = by_command(slurm, fleet)
    await source.refresh()
    fleet.start_accounting()
    job = slurm.submit("sleep 3; exit 7", "--job-name=short", "--gres=gpu:2")
    await until(lambda: "RUNNING" in slurm.command("squeue", "--noheader", "--format=%T", f"--jobs={job}"))
    await source.refresh()
    (running,) = [w for w in fleet.workloads().values() if w.name == "short"]
    assert (running.status, running.gpus) == (Status.RUNNING, 2)
    await until(lambda: state(slurm, job) == "FAILED")
    await until(lambda: dropped(slurm, job))
    await source.refresh()
    ended = fleet.ended()[running.uid].workload
    assert ended.status is Status.FAILED
    (period,) = [p for p in fleet.allocation_periods.drain() if p.workload_uid == running.uid]
    assert len(period.held) == 2, "the GPUs of its last observation"
    assert 1 <= period.end - period.start <= 60


async def test_slurmrestd_with_a_token_returns_the_same_jobs_as_the_commands(
    slurm: Slurm, tmp_path: Path
) -> None:
    past = slurm.submit("true", "--job-name=past", "--gres=gpu:1")
    await until(lambda: state(slurm, past) == "COMPLETED")
    job = slurm.submit("sleep 60", "--job-name=now", "--nodes=2", "--gres=gpu:2")
    try:
        await until(
            lambda: "RUNNING" in slurm.command("squeue", "--noheader", "--format=%T", f"--jobs={job}")
        )
        async with rest(slurm, tmp_path) as settings:
            rest_client = SlurmRest(settings)
            commands = SlurmCommands(
                SlurmSettings(enabled=True, bin=slurm.bin, conf=slurm.configuration), slurm.environment
            )
            fleets = []
            for client in (rest_client, commands):
                fleet = Fleet("hpc", clock=lambda: 0.0)
                source = SlurmSource(settings, fleet, client=client)
                assert await source.polling.run_once(source.refresh), source.polling.problem
                fleets.append({w.uid: w for w in fleet.workloads().values() if w.name == "now"})
            assert fleets[0] == fleets[1]
            assert len(fleets[0]) == 1
            try:
                assert await accounted(rest_client, past) == await accounted(commands, past)
            finally:
                await rest_client.close()
    finally:
        slurm.command("scancel", str(job))


async def accounted(client: SlurmRest | SlurmCommands, job: int) -> SlurmJob:
    """Wait until the accounting database has a job and return it."""
    async with asyncio.timeout(60):
        while True:
            jobs = [
                job_from_accounting(record) for record in await client.accounting_jobs(time.time() - 3600)
            ]
            found = [each for each in jobs if each is not None and each.id == job]
            if found:
                return found[0]
            await asyncio.sleep(0.2)


async def test_an_empty_result_is_not_an_error(slurm: Slurm, tmp_path: Path) -> None:
    async with rest(slurm, tmp_path) as settings:
        rest_client = SlurmRest(settings)
        try:
            await rest_client.nodes()
            assert await rest_client.accounting_jobs(time.time() + 86_400) == ()
        finally:
            await rest_client.close()


async def test_an_invalid_token_is_reported_with_its_remedy(slurm: Slurm, tmp_path: Path) -> None:
    async with rest(slurm, tmp_path) as settings:
        assert settings.token_file is not None
        rest_client = SlurmRest(settings)
        assert await rest_client.nodes()
        head, middle, _ = settings.token_file.read_text().strip().split(".")
        settings.token_file.write_text(f"{head}.{middle}.AAAA")
        try:
            with pytest.raises(SlurmUnavailable, match="token") as refused:
                await rest_client.nodes()
        finally:
            await rest_client.close()
        assert middle not in str(refused.value)
