"""What training jobs report of themselves: series with a `workload_uid` label.

Read as stored, with the samples' own times: a range query would repeat each number at every
step until the next one came. Metrics of GPUs that carry the label too are left out. Jobs may also
push their numbers to us; `merged` makes one list of both.
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
from gpufleet.exporters.prometheus.responses import Told, as_number, decode_points
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.metric_source import MAX_POINTS
from gpufleet.model.reading import TrainingPoint


class PushedTraining(Protocol):
    """What keeps the numbers that jobs push; the store's part `training` does."""

    async def read(self, workload_uid: str, start: float, end: float) -> Sequence[TrainingPoint]:
        """Points in order of time."""
        ...


MOST_UIDS = 500
"""Uids that are asked for at most; a workload of more controllers is told by its first ones."""
_AROUND = 100
"""Bytes of a query around its uids."""
_LABELS = ("__name__", "rank", "global_rank", "metric", "pod_uid", "pod", "instance")


async def read_training(
    moment: QuerySnapshot, uids: Collection[str], start: float, end: float, not_training: Collection[str]
) -> list[TrainingPoint]:
    """Every number that stands under one of `uids` from `start` to `end`, in order of time."""
    if not start <= end or not math.isfinite(start) or not math.isfinite(end):
        raise InvalidRequest(f"start ({start:.15g}) must not be after end ({end:.15g})")
    named = list(filter(None, uids))[:MOST_UIDS]
    if not named:
        return []
    width = int((end - start) * 1000) + 1  # newer releases leave out a sample right on the left edge
    bodies = await asyncio.gather(
        *(
            moment.client.instant(f"{{workload_uid=~{one_of(some)}}}[{width}ms]", end)
            for some in batched(named)
        )
    )
    return await moment.work(partial(_points, bodies, start, end, not_training, moment.shortfalls.append))


def batched(uids: Collection[str]) -> Iterator[list[str]]:
    """The uids in batches of which each fits a query."""
    batch: list[str] = []
    size = 0
    for uid in uids:
        length = len(one_of([uid]).encode())
        if batch and size + length > MAX_QUERY - _AROUND:
            yield batch
            batch, size = [], 0
        batch.append(uid)
        size += length
    if batch:
        yield batch


def _points(
    bodies: Collection[bytes], start: float, end: float, not_training: Collection[str], told: Told
) -> list[TrainingPoint]:
    points: list[TrainingPoint] = []
    for labels, samples in chain.from_iterable(decode_points(body, _LABELS, told) for body in bodies):
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
    """Both in order of time; a number that came both ways counts once, as it was pushed."""
    known = {(point.metric, point.time, point.rank) for point in pushed}
    more = [point for point in scraped if (point.metric, point.time, point.rank) not in known]
    return sorted([*pushed, *more], key=_order)


def _order(point: TrainingPoint) -> tuple[float, str, int]:
    return (point.time, point.metric, -1 if point.rank is None else point.rank)
