"""Follows a Slurm cluster and tells the fleet.

Every turn asks for all jobs and all nodes; only what differs from the turn before is passed on.
A turn that fails passes nothing on: the picture gets older, not wrong.

The controller forgets a job some minutes after its end (MinJobAge). A job that went while nobody
looked is looked up in the accounting database; without one, all that can be said is that it was
last seen running. The database also tells of the jobs that came and went before this server
started.

A uid is made of the job's id and the time of its submission, since ids start again when a
controller loses its state. A job that is requeued is submitted anew and stays the same job.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from gpufleet.errors import GpufleetError
from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetNode
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.polling import Polling
from gpufleet.sources.slurm.commands import Commands
from gpufleet.sources.slurm.jobs import Job, job_from, past_job_from
from gpufleet.sources.slurm.nodes import node_from
from gpufleet.sources.slurm.objects import JobObjects, ended_objects, group_of, objects_of
from gpufleet.sources.slurm.rest import Rest
from gpufleet.sources.slurm.wire import JobRecord, NodeRecord, PastRecord, number

_AT_ONCE = 200
"""Records that are read before others get their turn: a cluster may have tens of thousands of jobs."""

_OVERLAP = 120.0
"""Seconds by which questions to the accounting database overlap: it hears of an end a little later."""

_log = get_logger("sources.slurm")


class Answers(Protocol):
    """Whoever asks Slurm: its commands, or slurmrestd. All of it raises SlurmUnavailable."""

    async def jobs(self) -> tuple[JobRecord, ...]:
        """Every job that the controller knows."""

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """Every node."""

    async def past(self, since: float) -> tuple[PastRecord, ...]:
        """Jobs that the accounting database has since then."""

    async def close(self) -> None:
        """Let go of connections."""


class SlurmSource:
    """Keeps a fleet as Slurm shows it; `run` it in a task of its own."""

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        fleet: Fleet,
        *,
        answers: Answers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._answers = answers or (Rest(settings) if settings.url else Commands(settings))
        self.polling = Polling(f"slurm of {fleet.cluster}", clock)
        self._nodes: dict[str, FleetNode] = {}
        self._records: dict[int, tuple[JobRecord, Job | None]] = {}
        self._jobs: dict[int, tuple[Job, JobObjects]] = {}
        self._groups: dict[tuple[str, int], str] = {}
        self._looked = 0.0
        self._history_told = settings.history <= 0

    async def run(self) -> None:
        """Follow Slurm until cancelled."""
        try:
            await self.polling.forever(self.look, self._settings.refresh)
        finally:
            await self._answers.close()

    def told(self) -> str:
        """What is followed, in a few words."""
        return f"{len(self._nodes)} nodes, {len(self._jobs)} GPU jobs"

    async def look(self) -> None:
        """Take one turn."""
        at = self._clock()
        nodes = await self._answers.nodes()
        found = await self._read(await self._answers.jobs())
        vanished = [job for key, (job, _) in self._jobs.items() if key not in found and not job.status.ended]
        past = await self._past(vanished)
        self._take_nodes(node for record in nodes if (node := node_from(record)) is not None)
        self._take_jobs(found, past)
        if self._looked and not self._history_told:
            # Not in the first turn: periods are written once all sources have been heard.
            self._history_told = True
            await self._tell_history(at - self._settings.history)
        self._looked = at

    async def close(self) -> None:
        """Let go of connections."""
        await self._answers.close()

    async def _read(self, records: tuple[JobRecord, ...]) -> dict[int, Job]:
        """The jobs of these records; most are as they were, and others wait for the rest."""
        fresh: dict[int, tuple[JobRecord, Job | None]] = {}
        for place, record in enumerate(records):
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)
            key = number(record.job_id) or 0
            known = self._records.get(key)
            if known is None or known[0] != record:
                known = (record, job_from(record, self._had(key, record)))
            fresh[key] = known
        self._records = fresh
        return {key: job for key, (_, job) in fresh.items() if job is not None}

    def _had(self, key: int, record: JobRecord) -> int:
        known = self._jobs.get(key)
        return known[0].gpus if known and known[0].submitted == number(record.submit_time) else 0

    def _take_nodes(self, nodes: Iterable[FleetNode]) -> None:
        fresh = {node.name: node for node in nodes if node.gpu_count}
        for name in self._nodes.keys() - fresh.keys():
            self._fleet.drop_node(name)
        for name, node in fresh.items():
            if self._nodes.get(name) != node:
                self._fleet.put_node(node)
        self._nodes = fresh

    def _take_jobs(self, found: dict[int, Job], past: dict[int, Job]) -> None:
        for key in [key for key in self._jobs if key not in found]:
            self._forget(key, past.get(key))
        for key, job in found.items():
            known = self._jobs.get(key)
            if known is not None and not _same_job(known[0], job):
                self._forget(key, past.get(key))
                known = None
            if known is None or known[0] != job:
                self._put(job, known[1] if known else None)
        self._drop_empty_groups()

    def _put(self, job: Job, known: JobObjects | None) -> None:
        uid = known.owner.uid if known else _uid(job)
        if known is not None and job.status.ended:
            objects = ended_objects(known, job)
        else:
            objects = objects_of(job, uid, self._group_uid(job))
        if objects.group is not None and objects.group.uid not in self._fleet.ownership.owners:
            self._fleet.put_owner(objects.group)
        if known is None or known.owner != objects.owner:
            self._fleet.put_owner(objects.owner)
        before = {pod.uid: pod for pod in known.pods} if known else {}
        for pod in objects.pods:
            if before.pop(pod.uid, None) != pod:
                self._fleet.put_pod(pod)
        for pod_uid in before:
            self._fleet.drop_pod(pod_uid, self._clock())
        self._jobs[job.id] = (job, objects)

    def _forget(self, key: int, ending: Job | None) -> None:
        """A job is gone from the controller; `ending` is what the accounting database says of it."""
        job, objects = self._jobs[key]
        if not job.status.ended and ending is not None and ending.status.ended:
            self._put(ending, objects)
        job, objects = self._jobs.pop(key)
        self._drop(objects, job.ended or self._looked)

    def _drop(self, objects: JobObjects, at: float) -> None:
        for pod in objects.pods:
            self._fleet.drop_pod(pod.uid, at)
        self._fleet.drop_owner(objects.owner.uid)

    def _group_uid(self, job: Job) -> str:
        key = group_of(job)
        if key is None:
            return ""
        return self._groups.setdefault(key, f"slurm-{key[0]}-{key[1]}-{job.submitted:.0f}")

    def _drop_empty_groups(self) -> None:
        used = {group_of(job) for job, _ in self._jobs.values()}
        for key in [key for key in self._groups if key not in used]:
            self._fleet.drop_owner(self._groups.pop(key))

    async def _past(self, vanished: list[Job]) -> dict[int, Job]:
        """What became of jobs that went while nobody looked; nothing where nobody knows."""
        if not vanished:
            return {}
        submitted = {job.id: job.submitted for job in vanished}
        since = min(self._looked or self._clock(), self._clock()) - _OVERLAP
        try:
            records = await self._answers.past(since)
        except GpufleetError as error:
            _log.warning("accounting not readable", cluster=self._fleet.cluster, error=str(error))
            return {}
        jobs = [job for record in records if (job := past_job_from(record)) is not None]
        return {job.id: job for job in jobs if submitted.get(job.id) == job.submitted}

    async def _tell_history(self, since: float) -> None:
        """Tell of the jobs that ended before the first turn, but for those that are known from an earlier life."""
        try:
            records = await self._answers.past(since)
        except GpufleetError as error:
            _log.warning("accounting not readable", cluster=self._fleet.cluster, error=str(error))
            return
        jobs = [job for record in records if (job := past_job_from(record)) is not None]
        known = self._fleet.ended()
        for job in sorted(jobs, key=lambda job: job.ended):
            if _uid(job) in known:
                continue
            if job.status.ended and job.shares and job.id not in self._jobs:
                self._put(job, None)
                self._drop(self._jobs.pop(job.id)[1], job.ended)
        self._drop_empty_groups()


def _uid(job: Job) -> str:
    return f"slurm-{job.id}-{job.submitted:.0f}"


def _same_job(before: Job, now: Job) -> bool:
    """Whether an id still means the same job: submitted once, or requeued since."""
    return before.submitted == now.submitted or now.restarts > before.restarts
