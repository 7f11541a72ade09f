"""Slurm jobs and containers of the simulated fleet, read by the Slurm and Docker sources."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tests.waiting import wait_until

from gpufleet.demo.fake_servers import FakeServers
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.simulation.hardware import BUILT, DAY
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.errors import SlurmUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import DockerSettings, SlurmSettings
from gpufleet.sources.docker import DockerSource
from gpufleet.sources.docker.engine import Engine
from gpufleet.sources.slurm.rest import SlurmRest
from gpufleet.sources.slurm.source import SlurmSource

NOW = BUILT + 300 * DAY + 12_345.0
SIMULATION = Simulation(seed=3, nodes=32, gpus=8)


class SourceReader:
    """A fleet filled by the Slurm and Docker sources, at a time that a test sets."""

    def __init__(self) -> None:
        self.at = NOW
        self.fleet = Fleet("demo", clock=lambda: self.at)

    @asynccontextmanager
    async def opened(self, history: float = 0.0) -> AsyncIterator["SourceReader"]:
        async with FakeServers(SIMULATION, lambda: self.at) as servers:
            settings = SlurmSettings(url=servers.url, history=history)
            self.slurm = SlurmSource(settings, self.fleet, clock=lambda: self.at)
            self.docker = DockerSource(DockerSettings(url=servers.url), self.fleet, clock=lambda: self.at)
            yield self
            await self.slurm.close()
            await self.docker.close()

    async def refresh(self) -> None:
        await self.slurm.refresh()
        await self.docker.refresh()
        self.fleet.put_readings(SIMULATION.readings_at(self.at))

    def holders(self) -> dict[tuple[str, int], str]:
        return {
            (name, gpu): uids[0]
            for name, view in self.fleet.views().items()
            for gpu, uids in view.holders.items()
            if uids
        }


def expected_holders(at: float) -> dict[tuple[str, int], str]:
    return {
        (holding.node, gpu): holding.pod_uid
        for holding in allocation_periods(SIMULATION, at, at + 1)
        for gpu in holding.held
        if holding.source != "k8s"
    }


async def test_at_any_time_the_holders_equal_the_simulation() -> None:
    async with SourceReader().opened() as followed:
        seen: set[str] = set()
        for _ in range(60):
            await followed.refresh()
            assert followed.holders() == expected_holders(followed.at)
            seen |= {workload.status for workload in followed.fleet.workloads().values()}
            followed.at += 731.0
        assert {Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED} <= seen


async def test_every_gpu_second_is_recorded_once() -> None:
    async with SourceReader().opened() as followed:
        await followed.refresh()
        followed.fleet.start_accounting()
        end = NOW + 9 * 3600
        while followed.at < end:
            followed.at += 60.0
            await followed.refresh()
        written = {(p.pod_uid, p.start): p for p in followed.fleet.allocation_periods.drain()}
        since = min(period.start for period in written.values())
        expected = [h for h in allocation_periods(SIMULATION, since - DAY, end) if h.source != "k8s"]
        expected = [h for h in expected if h.end == 0.0 or h.end > NOW]
        seconds = Counter[str]()
        for holding in expected:
            seconds[holding.pod_uid] += round(((holding.end or end) - holding.start) * holding.gpus)
        recorded = Counter[str]()
        for period in written.values():
            recorded[period.pod_uid] += round(((period.end or end) - period.start) * period.gpus)
        ended_before = {uid for uid in recorded if uid not in seconds}
        assert all(period.end <= NOW for period in written.values() if period.pod_uid in ended_before), (
            "recorded a period that the simulation does not have"
        )
        assert {uid: recorded[uid] for uid in seconds} == dict(seconds)
        assert {period.model for period in written.values()} == {"NVIDIA_A100_SXM4_80GB", "NVIDIA_L40S"}


async def test_earlier_jobs_are_read_from_the_accounting_database() -> None:
    async with SourceReader().opened(history=2 * DAY) as followed:
        await followed.refresh()
        followed.fleet.start_accounting()
        await followed.refresh()
        ended = {uid for uid, record in followed.fleet.ended().items() if record.workload.kind == "SlurmJob"}
        expected = {
            run.uid
            for run in SIMULATION.runs(NOW - 2 * DAY, NOW)
            if run.slot.role.source == "slurm" and run.ended + 300 <= NOW
        }
        assert len(expected) > 20
        assert ended == expected


async def test_users_accounts_and_partitions_are_read() -> None:
    async with SourceReader().opened() as followed:
        await followed.refresh()
        jobs = [w for w in followed.fleet.workloads().values() if w.kind == "SlurmJob"]
        runs = {run.uid: run for run in SIMULATION.runs(NOW, NOW)}
        for job in jobs:
            run = runs.get(job.uid)
            if run is not None:
                assert job.labels["slurm/user"] == run.user
                assert job.namespace == job.labels["slurm/account"] == run.team.name
                assert job.labels["slurm/partition"] in ("gpu", "interactive")
        assert any(len({pod.node for pod in job.counted}) == 2 for job in jobs), "no job spans two nodes"


async def test_a_changed_container_is_reported_before_the_next_listing() -> None:
    runs = [run for run in SIMULATION.runs(NOW, NOW + DAY) if run.slot.role.name == "container-batch"]
    bound = min(run.bound for run in runs if run.bound > NOW)
    at, polls = bound - 1, 0

    def clock() -> float:
        nonlocal polls
        polls += 1
        return at

    async with FakeServers(SIMULATION, clock) as servers:
        engine = Engine(DockerSettings(url=servers.url))
        try:
            changes = engine.changes()
            change = asyncio.ensure_future(anext(changes))
            await wait_until(lambda: polls >= 3)
            assert not change.done()
            at = bound + 1
            await asyncio.wait_for(change, 20)
            await changes.aclose()  # type: ignore[attr-defined]
        finally:
            await engine.close()


async def test_a_fleet_too_small_for_slurm_has_no_slurm() -> None:
    async with FakeServers(Simulation(1, 4, 8), lambda: NOW) as servers:
        rest = SlurmRest(SlurmSettings(url=servers.url))
        try:
            with pytest.raises(SlurmUnavailable, match="slurmrestd has no /slurm"):
                await rest.jobs()
        finally:
            await rest.close()


async def test_invalid_parameters_get_a_response() -> None:
    async with FakeServers(SIMULATION, lambda: NOW) as servers, aiohttp.ClientSession(servers.url) as session:
        for start in ("yesterday", "utsnow", "-1", "1e9", "99999999999999999999", ""):
            async with session.get("/slurmdb/v0.0.41/jobs", params={"start_time": start}) as response:
                assert response.status == 200
                assert isinstance((await response.json())["jobs"], list)
        async with session.get("/v1.51/containers/nothing/json") as response:
            assert response.status == 404
        async with session.get("/containers/json") as response:
            assert {row["State"] for row in await response.json()} == {"running"}
