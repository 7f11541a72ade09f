"""What becomes of jobs that end while nobody looks: the accounting database knows, or nobody does."""

from typing import Any

import msgspec
import pytest

from gpufleet.errors import SlurmUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm import SlurmSource
from gpufleet.sources.slurm.wire import JobRecord, NodeRecord, PastRecord


class Told:
    """Answers with what a test says."""

    def __init__(self) -> None:
        self.now: list[JobRecord] = []
        self.before: list[PastRecord] = []
        self.since: list[float] = []
        self.broken = False

    async def jobs(self) -> tuple[JobRecord, ...]:
        return tuple(self.now)

    async def nodes(self) -> tuple[NodeRecord, ...]:
        return (NodeRecord(name="n1", gres="gpu:a100:8", state=["MIXED"]),)

    async def past(self, since: float) -> tuple[PastRecord, ...]:
        self.since.append(since)
        if self.broken:
            raise SlurmUnavailable("slurmdbd is away")
        return tuple(self.before)

    async def close(self) -> None:
        pass


def running(id: int, **said: Any) -> JobRecord:
    fields = {
        "job_state": "RUNNING",
        "nodes": "n1",
        "gres_detail": ["gpu:a100:2(IDX:4-5)"],
        "submit_time": 100,
    }
    return JobRecord(**{"job_id": id, "name": f"job{id}", "start_time": 1000, **fields, **said})


def ended(id: int, state: str = "COMPLETED", start: int = 1000, end: int = 1500) -> PastRecord:
    return PastRecord(
        job_id=id,
        name=f"job{id}",
        state={"current": [state]},
        nodes="n1",
        tres={"allocated": [{"type": "gres", "name": "gpu", "count": 2}]},
        time={"submission": 100, "start": start, "end": end},
    )


class Following:
    def __init__(self, history: float = 0.0) -> None:
        self.time = 2000.0
        self.told = Told()
        self.fleet = Fleet("hpc", clock=lambda: self.time)
        settings = SlurmSettings(enabled=True, history=history)
        self.source = SlurmSource(settings, self.fleet, answers=self.told, clock=lambda: self.time)
        self.fleet.start_accounting()

    async def look(self, at: float) -> None:
        self.time = at
        await self.source.look()

    def periods(self) -> list[tuple[str, tuple[int, ...], float, float]]:
        return [(p.workload_name, p.held, p.start, p.end) for p in self.fleet.allocation_periods.drain()]


async def test_a_job_that_went_unseen_ends_as_the_accounting_database_says() -> None:
    it = Following()
    it.told.now = [running(7)]
    await it.look(2000)
    it.told.now, it.told.before = [], [ended(7, "TIMEOUT", end=2100), ended(8)]
    await it.look(9000)
    (record,) = it.fleet.ended().values()
    assert (record.workload.name, record.workload.status, record.workload.ended) == (
        "job7",
        Status.FAILED,
        2100,
    )
    assert it.periods() == [("job7", (4, 5), 1000, 2100)]
    assert it.told.since == [pytest.approx(2000 - 120)]


@pytest.mark.parametrize("broken", [False, True])
async def test_without_accounting_it_was_last_seen_at_the_last_look(broken: bool) -> None:
    it = Following()
    it.told.broken = broken
    it.told.now = [running(7)]
    await it.look(2000)
    it.told.now = []
    await it.look(9000)
    (record,) = it.fleet.ended().values()
    assert record.workload.status is Status.UNKNOWN
    assert it.periods() == [("job7", (4, 5), 1000, 2000)]


async def test_jobs_of_before_the_start_are_taken_over_once_and_counted() -> None:
    it = Following(history=3600)
    it.told.before = [ended(3), ended(4, "RUNNING", end=0)]
    await it.look(2000)
    assert it.told.since == []
    await it.look(2015)
    await it.look(2030)
    assert it.told.since == [2015 - 3600]
    assert [record.workload.name for record in it.fleet.ended().values()] == ["job3"]
    assert it.periods() == [("job3", (), 1000, 1500)]


async def test_an_id_that_is_used_again_is_another_job() -> None:
    it = Following()
    it.told.now = [running(1)]
    await it.look(2000)
    it.told.now = [running(1, submit_time=1900, start_time=1990, gres_detail=["gpu:a100:1(IDX:0)"])]
    await it.look(2010)
    assert len(it.fleet.ended()) == 1
    (job,) = it.fleet.workloads().values()
    assert job.gpus == 1
    assert it.fleet.views()["n1"].holders == {0: (job.pods[0].uid,)}


async def test_a_finished_array_is_forgotten_with_its_last_task() -> None:
    it = Following()
    it.told.now = [running(5, array_job_id=5, array_task_id=0)]
    await it.look(2000)
    (array,) = it.fleet.workloads().values()
    assert (array.kind, array.name, array.gpus) == ("SlurmJobArray", "job5", 2)
    it.told.now = [
        msgspec.structs.replace(it.told.now[0], job_state="COMPLETED", end_time=2005, gres_detail=[])
    ]
    await it.look(2015)
    it.told.now = []
    await it.look(2400)
    assert not it.fleet.workloads()
    (record,) = it.fleet.ended().values()
    assert (record.workload.kind, record.workload.status) == ("SlurmJobArray", Status.COMPLETED)


async def test_a_job_of_an_earlier_life_is_not_told_of_again() -> None:
    told = Told()
    told.before = [ended(7), ended(8)]
    first = Fleet("hpc", clock=lambda: 5000.0)
    for fleet in (first, Fleet("hpc", clock=lambda: 6000.0)):
        if fleet is not first:
            fleet.restore_ended([first.ended()["slurm-7-100"]])
        source = SlurmSource(SlurmSettings(), fleet, answers=told, clock=lambda: 5000.0)
        await source.look()
        fleet.start_accounting()
        await source.look()
        names = {period.workload_name for period in fleet.allocation_periods.drain()}
        assert names == ({"job7", "job8"} if fleet is first else {"job8"})
        assert set(fleet.ended()) == {"slurm-7-100", "slurm-8-100"}
