"""Jobs that end between two refreshes, with and without an accounting database."""

from typing import Any

import msgspec
import pytest

from gpufleet.errors import SlurmUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.source import SlurmSource
from gpufleet.sources.slurm.wire import AccountingRecord, JobRecord, NodeRecord


class FakeClient:
    """Return the records that a test sets."""

    def __init__(self) -> None:
        self.now: list[JobRecord] = []
        self.before: list[AccountingRecord] = []
        self.since: list[float] = []
        self.broken = False

    async def jobs(self) -> tuple[JobRecord, ...]:
        return tuple(self.now)

    async def nodes(self) -> tuple[NodeRecord, ...]:
        return (NodeRecord(name="n1", gres="gpu:a100:8", state=["MIXED"]),)

    async def accounting_jobs(self, since: float) -> tuple[AccountingRecord, ...]:
        self.since.append(since)
        if self.broken:
            raise SlurmUnavailable("slurmdbd is away")
        return tuple(self.before)

    async def close(self) -> None:
        pass


def running(id: int, **values: Any) -> JobRecord:
    fields = {
        "job_state": "RUNNING",
        "nodes": "n1",
        "gres_detail": ["gpu:a100:2(IDX:4-5)"],
        "submit_time": 100,
    }
    return JobRecord(**{"job_id": id, "name": f"job{id}", "start_time": 1000, **fields, **values})


def ended(id: int, state: str = "COMPLETED", start: int = 1000, end: int = 1500) -> AccountingRecord:
    return AccountingRecord(
        job_id=id,
        name=f"job{id}",
        state={"current": [state]},
        nodes="n1",
        tres={"allocated": [{"type": "gres", "name": "gpu", "count": 2}]},
        time={"submission": 100, "start": start, "end": end},
    )


class Scenario:
    def __init__(self, history: float = 0.0) -> None:
        self.time = 2000.0
        self.client = FakeClient()
        self.fleet = Fleet("hpc", clock=lambda: self.time)
        settings = SlurmSettings(enabled=True, history=history)
        self.source = SlurmSource(settings, self.fleet, client=self.client, clock=lambda: self.time)
        self.fleet.start_accounting()

    async def refresh(self, at: float) -> None:
        self.time = at
        await self.source.refresh()

    def periods(self) -> list[tuple[str, tuple[int, ...], float, float]]:
        return [(p.workload_name, p.held, p.start, p.end) for p in self.fleet.allocation_periods.drain()]


async def test_a_job_that_ended_between_refreshes_gets_its_end_from_accounting() -> None:
    it = Scenario()
    it.client.now = [running(7)]
    await it.refresh(2000)
    it.client.now, it.client.before = [], [ended(7, "TIMEOUT", end=2100), ended(8)]
    await it.refresh(9000)
    (record,) = it.fleet.ended().values()
    assert (record.workload.name, record.workload.status, record.workload.ended) == (
        "job7",
        Status.FAILED,
        2100,
    )
    assert it.periods() == [("job7", (4, 5), 1000, 2100)]
    assert it.client.since == [pytest.approx(2000 - 120)]


@pytest.mark.parametrize("broken", [False, True])
async def test_without_accounting_a_job_ends_at_the_last_refresh(broken: bool) -> None:
    it = Scenario()
    it.client.broken = broken
    it.client.now = [running(7)]
    await it.refresh(2000)
    it.client.now = []
    await it.refresh(9000)
    (record,) = it.fleet.ended().values()
    assert record.workload.status is Status.UNKNOWN
    assert it.periods() == [("job7", (4, 5), 1000, 2000)]


async def test_jobs_from_before_the_start_are_added_once() -> None:
    it = Scenario(history=3600)
    it.client.before = [ended(3), ended(4, "RUNNING", end=0)]
    await it.refresh(2000)
    assert it.client.since == []
    await it.refresh(2015)
    await it.refresh(2030)
    assert it.client.since == [2015 - 3600]
    assert [record.workload.name for record in it.fleet.ended().values()] == ["job3"]
    assert it.periods() == [("job3", (), 1000, 1500)]


async def test_a_reused_id_is_another_job() -> None:
    it = Scenario()
    it.client.now = [running(1)]
    await it.refresh(2000)
    it.client.now = [running(1, submit_time=1900, start_time=1990, gres_detail=["gpu:a100:1(IDX:0)"])]
    await it.refresh(2010)
    assert len(it.fleet.ended()) == 1
    (job,) = it.fleet.workloads().values()
    assert job.gpus == 1
    assert it.fleet.views()["n1"].holders == {0: (job.pods[0].uid,)}


async def test_a_finished_array_is_removed_with_its_last_task() -> None:
    it = Scenario()
    it.client.now = [running(5, array_job_id=5, array_task_id=0)]
    await it.refresh(2000)
    (array,) = it.fleet.workloads().values()
    assert (array.kind, array.name, array.gpus) == ("SlurmJobArray", "job5", 2)
    it.client.now = [
        msgspec.structs.replace(it.client.now[0], job_state="COMPLETED", end_time=2005, gres_detail=[])
    ]
    await it.refresh(2015)
    it.client.now = []
    await it.refresh(2400)
    assert not it.fleet.workloads()
    (record,) = it.fleet.ended().values()
    assert (record.workload.kind, record.workload.status) == ("SlurmJobArray", Status.COMPLETED)


async def test_a_job_that_the_fleet_already_has_is_not_added_again() -> None:
    client = FakeClient()
    client.before = [ended(7), ended(8)]
    first = Fleet("hpc", clock=lambda: 5000.0)
    for fleet in (first, Fleet("hpc", clock=lambda: 6000.0)):
        if fleet is not first:
            fleet.restore_ended([first.ended()["slurm-7-100"]])
        source = SlurmSource(SlurmSettings(), fleet, client=client, clock=lambda: 5000.0)
        await source.refresh()
        fleet.start_accounting()
        await source.refresh()
        names = {period.workload_name for period in fleet.allocation_periods.drain()}
        assert names == ({"job7", "job8"} if fleet is first else {"job8"})
        assert set(fleet.ended()) == {"slurm-7-100", "slurm-8-100"}
