"""Read the numbers that training jobs report to Prometheus: series with a `workload_uid` label.

They are read as stored, with the times of the samples: a range query would repeat each number at every
step until the next one. GPU metrics with that label are excluded. Jobs may also push numbers to the
server; `merged` combines both.
"""

import asyncio
import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from gpufleet.errors import InvalidRequest
from gpufleet.exporters.prometheus.client import MAX_QUERY
from gpufleet.exporters.prometheus.promql import one_of
from gpufleet.exporters.prometheus.responses import OnPartial, as_number, decode_points
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.metric_source import MAX_POINTS
from gpufleet.model.reading import TrainingPoint

MAX_UIDS = 500
"""Uids per read; of a workload with more controllers only the first ones are read."""
_QUERY_OVERHEAD = 100
"""Bytes of a query besides its uids."""
_LABELS = ("__name__", "rank", "global_rank", "metric", "pod_uid", "pod", "instance")


class PushedTraining(Protocol):
    """The numbers that jobs pushed to the server. The store implements it, tests fake it."""

    async def read(
        self, workload_uid: str, start: float, end: float, rank: int | None = None
    ) -> Sequence[TrainingPoint]:
        """Return the points of a workload, or of one rank, ordered by time."""
        ...


async def read_training(
    snapshot: QuerySnapshot, uids: Collection[str], start: float, end: float, not_training: Collection[str]
) -> list[TrainingPoint]:
    """Return every number of one of `uids` from `start` to `end`, ordered by time."""
    if not start <= end or not math.isfinite(start) or not math.isfinite(end):
        raise InvalidRequest(f"start ({start:.15g}) must not be after end ({end:.15g})")
    named = list(filter(None, uids))[:MAX_UIDS]
    if not named:
        return []
    width = int((end - start) * 1000) + 1  # newer releases exclude a sample at the left boundary
    bodies = await asyncio.gather(
        *(
            snapshot.client.instant(f"{{workload_uid=~{one_of(some)}}}[{width}ms]", end)
            for some in batched(named)
        )
    )
    return await snapshot.work(partial(_points, bodies, start, end, not_training, snapshot.warnings.append))


def batched(uids: Collection[str]) -> Iterator[list[str]]:
    """Split the uids into batches that fit into a query."""
    batch: list[str] = []
    size = 0
    for uid in uids:
        length = len(one_of([uid]).encode())
        if batch and size + length > MAX_QUERY - _QUERY_OVERHEAD:
            yield batch
            batch, size = [], 0
        batch.append(uid)
        size += length
    if batch:
        yield batch


def _points(
    bodies: Collection[bytes], start: float, end: float, not_training: Collection[str], on_partial: OnPartial
) -> list[TrainingPoint]:
    points: list[TrainingPoint] = []
    for labels, samples in chain.from_iterable(decode_points(body, _LABELS, on_partial) for body in bodies):
        if labels.metric_name in not_training:
            continue
        name = labels.metric or labels.metric_name
        rank = labels.rank or labels.global_rank
        inside = [(point.time, as_number(point.value)) for point in samples if start <= point.time <= end]
        kept = [(time, value) for time, value in inside if math.isfinite(value)]
        every = math.ceil(len(kept) / MAX_POINTS) or 1
        number = int(rank) if rank.isdecimal() else None
        source = labels.pod_uid or labels.pod or labels.instance
        points.extend(TrainingPoint(name, value, time, number, source) for time, value in kept[::every])
    return sorted(points, key=_order)


def merged(pushed: Sequence[TrainingPoint], scraped: Sequence[TrainingPoint]) -> list[TrainingPoint]:
    """Return both ordered by time; a number that was both pushed and scraped counts once, as pushed."""
    known = {(point.metric, point.time, point.rank) for point in pushed}
    more = [point for point in scraped if (point.metric, point.time, point.rank) not in known]
    return sorted([*pushed, *more], key=_order)


def _order(point: TrainingPoint) -> tuple[float, str, int]:
    return (point.time, point.metric, -1 if point.rank is None else point.rank)
