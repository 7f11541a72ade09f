"""One line for each metric of a job, although many of its processes tell it.

Every rank may report its loss, each at a moment of its own, and the log is read besides: drawn as
one line they would be a zigzag. So one of them speaks at a time: what the job pushed comes before what
was scraped, the job as a whole before its ranks, rank 0 before rank 1. Another speaks where those
before it are silent: it ran earlier or later, or they stopped for `SILENCE` seconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from statistics import median

from gpufleet.model.training_point import TrainingPoint

SILENCE = 300.0
"""Seconds without a number after which somebody else is heard."""

_WAIT = 60.0
"""Seconds for which the next number is waited for at least: numbers come in batches."""

_Speaker = tuple[bool, int, str]


def one_line(points: Sequence[TrainingPoint]) -> list[TrainingPoint]:
    """Of each metric the points of one speaker at a time, in the order of `points`."""
    speakers: dict[str, dict[_Speaker, list[float]]] = {}
    for point in points:
        speakers.setdefault(point.metric, {}).setdefault(_speaker(point), []).append(point.time)
    heard = {metric: _heard(said) for metric, said in speakers.items() if len(said) > 1}
    return [
        point
        for point in points
        if point.metric not in heard or point.time in heard[point.metric].get(_speaker(point), ())
    ]


def _speaker(point: TrainingPoint) -> _Speaker:
    return bool(point.source), -1 if point.rank is None else point.rank, point.source


def _heard(said: dict[_Speaker, list[float]]) -> dict[_Speaker, frozenset[float]]:
    """The moments at which each is heard, of those at which it spoke."""
    heard: dict[_Speaker, frozenset[float]] = {}
    stretches: list[tuple[float, float]] = []
    for speaker in sorted(said):
        times = sorted(said[speaker])
        free = [time for time in times if not _within(time, stretches)]
        if free:
            heard[speaker] = frozenset(free)
            stretches = _joined([*stretches, *_stretches(free)])
    return heard


def _stretches(times: Sequence[float]) -> Iterable[tuple[float, float]]:
    """From when to when somebody speaks who is heard at these moments; the next number is waited for."""
    gaps = [after - before for before, after in pairwise(times)]
    margin = max(_WAIT, min(SILENCE, 1.5 * median(gaps))) if gaps else _WAIT
    start = times[0]
    for before, after in pairwise(times):
        if after - before > SILENCE:
            yield start - margin, before + margin
            start = after
    yield start - margin, times[-1] + margin


def _joined(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """In order, and none within another."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _within(time: float, stretches: Sequence[tuple[float, float]]) -> bool:
    at = bisect_right(stretches, (time, inf))
    return at > 0 and time <= stretches[at - 1][1]
