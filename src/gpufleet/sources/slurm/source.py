"""Poll a Slurm cluster and update the fleet.

Every refresh reads all jobs and nodes and passes on only the differences. A refresh that fails changes
nothing: the fleet becomes older, not wrong.

The controller drops a job some minutes after its end (MinJobAge). A job that disappeared between two
refreshes is looked up in the accounting database; without one, its end is the last time it was observed.
The database also has the jobs that ended before this server started.

A uid consists of the id of the job and its submission time, because ids restart when a controller loses its
state. A requeued job has a new submission time but stays the same job.
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
from gpufleet.sources.slurm.commands import SlurmCommands
from gpufleet.sources.slurm.gres import shards_per_gpu
from gpufleet.sources.slurm.jobs import SlurmJob, job_from, job_from_accounting
from gpufleet.sources.slurm.nodes import node_from
from gpufleet.sources.slurm.objects import JobObjects, ended_objects, group_of, objects_of
from gpufleet.sources.slurm.rest import SlurmRest
from gpufleet.sources.slurm.wire import AccountingRecord, JobRecord, NodeRecord, number, text

_RECORDS_PER_STEP = 200
"""Records to convert before yielding to the event loop: a cluster may have tens of thousands of jobs."""

_OVERLAP = 120.0
"""Seconds by which accounting queries overlap, because ends are recorded with a delay."""

_log = get_logger("sources.slurm")


class SlurmClient(Protocol):
    """Query Slurm, through its commands or slurmrestd. All methods raise SlurmUnavailable."""

    async def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs of the controller."""

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """Return all nodes."""

    async def accounting_jobs(self, since: float) -> tuple[AccountingRecord, ...]:
        """Return the jobs in the accounting database since then."""

    async def close(self) -> None:
        """Close all connections."""


class SlurmSource:
    """Keep the fleet in sync with Slurm; `run` it as a task."""

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        fleet: Fleet,
        *,
        client: SlurmClient | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._client = client or (SlurmRest(settings) if settings.url else SlurmCommands(settings))
        self.polling = Polling(self.name, fleet.cluster, clock)
        self._nodes: dict[str, FleetNode] = {}
        self._shards_per_gpu: dict[str, int] = {}
        self._records: dict[int, tuple[JobRecord, SlurmJob | None]] = {}
        self._jobs: dict[int, tuple[SlurmJob, JobObjects]] = {}
        self._groups: dict[tuple[str, int], str] = {}
        self._refreshed = 0.0
        self._history_done = settings.history <= 0

    async def run(self) -> None:
        """Refresh until cancelled."""
        try:
            await self.polling.run(self.refresh, self._settings.refresh)
        finally:
            await self._client.close()

    def summary(self) -> str:
        """Describe in a few words what the source sees."""
        return f"{len(self._nodes)} nodes, {len(self._jobs)} GPU jobs"

    async def refresh(self) -> None:
        """Read jobs and nodes once and update the fleet."""
        at = self._clock()
        nodes = await self._client.nodes()
        found = await self._convert(await self._client.jobs())
        vanished = [job for key, (job, _) in self._jobs.items() if key not in found and not job.status.ended]
        accounted = await self._look_up(vanished)
        self._shards_per_gpu = {
            text(record.name): shards for record in nodes if (shards := shards_per_gpu(text(record.gres)))
        }
        self._update_nodes(node for record in nodes if (node := node_from(record)) is not None)
        self._update_jobs(found, accounted)
        if self._refreshed and not self._history_done:
            # Not in the first refresh: periods are recorded only after all sources have synced.
            self._history_done = True
            await self._add_history(at - self._settings.history)
        self._refreshed = at

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _convert(self, records: tuple[JobRecord, ...]) -> dict[int, SlurmJob]:
        """Convert records to jobs; reuse those that have not changed."""
        converted: dict[int, tuple[JobRecord, SlurmJob | None]] = {}
        for index, record in enumerate(records):
            if index % _RECORDS_PER_STEP == 0:
                await asyncio.sleep(0)
            key = number(record.job_id) or 0
            known = self._records.get(key)
            if known is None or known[0] != record:
                known = (record, job_from(record, self._known_gpus(key, record)))
            converted[key] = known
        self._records = converted
        return {key: job for key, (_, job) in converted.items() if job is not None}

    def _known_gpus(self, key: int, record: JobRecord) -> int:
        known = self._jobs.get(key)
        return known[0].gpus if known and known[0].submitted == number(record.submit_time) else 0

    def _update_nodes(self, nodes: Iterable[FleetNode]) -> None:
        after = {node.name: node for node in nodes if node.gpu_count}
        for name in self._nodes.keys() - after.keys():
            self._fleet.drop_node(name)
        for name, node in after.items():
            if self._nodes.get(name) != node:
                self._fleet.put_node(node)
        self._nodes = after

    def _update_jobs(self, found: dict[int, SlurmJob], accounted: dict[int, SlurmJob]) -> None:
        for key in [key for key in self._jobs if key not in found]:
            self._remove(key, accounted.get(key))
        for key, job in found.items():
            known = self._jobs.get(key)
            if known is not None and not _same_job(known[0], job):
                self._remove(key, accounted.get(key))
                known = None
            if known is None or known[0] != job:
                self._put(job, known[1] if known else None)
        self._drop_empty_groups()

    def _put(self, job: SlurmJob, known: JobObjects | None) -> None:
        uid = known.owner.uid if known else _uid(job)
        if known is not None and job.status.ended:
            objects = ended_objects(known, job)
        else:
            objects = objects_of(job, uid, self._group_uid(job), self._shards_per_gpu)
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

    def _remove(self, key: int, accounted: SlurmJob | None) -> None:
        """Remove a job that the controller dropped; `accounted` is its version in the accounting database."""
        job, objects = self._jobs[key]
        if not job.status.ended and accounted is not None and accounted.status.ended:
            self._put(accounted, objects)
        job, objects = self._jobs.pop(key)
        self._drop(objects, job.ended or self._refreshed)

    def _drop(self, objects: JobObjects, at: float) -> None:
        for pod in objects.pods:
            self._fleet.drop_pod(pod.uid, at)
        self._fleet.drop_owner(objects.owner.uid)

    def _group_uid(self, job: SlurmJob) -> str:
        key = group_of(job)
        if key is None:
            return ""
        return self._groups.setdefault(key, f"slurm-{key[0]}-{key[1]}-{job.submitted:.0f}")

    def _drop_empty_groups(self) -> None:
        used = {group_of(job) for job, _ in self._jobs.values()}
        for key in [key for key in self._groups if key not in used]:
            self._fleet.drop_owner(self._groups.pop(key))

    async def _look_up(self, vanished: list[SlurmJob]) -> dict[int, SlurmJob]:
        """Look up jobs that disappeared between two refreshes in the accounting database."""
        if not vanished:
            return {}
        submitted = {job.id: job.submitted for job in vanished}
        since = min(self._refreshed or self._clock(), self._clock()) - _OVERLAP
        jobs = await self._accounting_jobs(since)
        return {job.id: job for job in jobs if submitted.get(job.id) == job.submitted}

    async def _add_history(self, since: float) -> None:
        """Add jobs that ended before the first refresh, except those that the fleet already has."""
        jobs = await self._accounting_jobs(since)
        known = self._fleet.ended()
        for job in sorted(jobs, key=lambda job: job.ended):
            if _uid(job) in known:
                continue
            if job.status.ended and job.allocations and job.id not in self._jobs:
                self._put(job, None)
                self._drop(self._jobs.pop(job.id)[1], job.ended)
        self._drop_empty_groups()

    async def _accounting_jobs(self, since: float) -> list[SlurmJob]:
        """Return the jobs in the accounting database since then; none if it is not available."""
        try:
            records = await self._client.accounting_jobs(since)
        except GpufleetError as error:
            _log.warning("slurm_accounting_unavailable", cluster=self._fleet.cluster, error=str(error))
            return []
        return [job for record in records if (job := job_from_accounting(record)) is not None]


def _uid(job: SlurmJob) -> str:
    return f"slurm-{job.id}-{job.submitted:.0f}"


def _same_job(before: SlurmJob, now: SlurmJob) -> bool:
    """Return whether an id still means the same job, possibly requeued."""
    return before.submitted == now.submitted or now.restarts > before.restarts
