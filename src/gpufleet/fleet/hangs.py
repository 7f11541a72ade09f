"""Find ranks that stopped or fell behind, and jobs that hang, by the training steps that they report. Pure.

Reports arrive in batches and steps may take minutes, so everything is compared with how often the job itself reports.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gpufleet.model.training_point import RankProgress

SILENT = 600.0
"""Seconds without a report after which a rank or job is suspect."""
SILENT_REPORTS = 5.0
"""The same in times of the usual time between reports, if that is longer."""
BEHIND = 120.0
"""Seconds of work by which a rank may be behind the median of its job."""
BEHIND_STEPS = 10
"""Steps by which it may be behind in any case."""


class Stall(NamedTuple):
    """A suspect rank, or a job that hangs; `rank` is None if only the whole job reports."""

    kind: str
    """steps, reports or hang."""
    rank: int | None
    value: float
    median: float
    message: str


def stalls(reported: Sequence[RankProgress], started: float, ranks: int, now: float) -> list[Stall]:
    """Return what is suspect in a job of so many ranks that runs since `started`.

    Reports of an earlier attempt, and of ranks that a smaller job no longer has, do not count.
    """
    current = [each for each in reported if each.at >= started and (each.rank is None or each.rank < ranks)]
    if not current:
        return []
    every = max((each.every for each in current), default=0.0)
    silent = max(SILENT, SILENT_REPORTS * every)
    if now - max(each.at for each in current) > silent:
        return [_hang(current, now)]
    by_rank = [each for each in current if each.rank is not None]
    if len(by_rank) < 2:
        return []
    return _behind(by_rank, silent)


def _hang(current: Sequence[RankProgress], now: float) -> Stall:
    """Name the rank that did the fewest steps: the others wait for it. The first to fall silent if they are equal."""
    first = min(current, key=lambda each: (each.step, each.at))
    newest = max(each.at for each in current)
    quiet = now - newest
    step = max(each.step for each in current)
    equal = len({(each.step, each.at) for each in current}) == 1
    rank = None if equal and len(current) > 1 else first.rank
    suspect = (
        f"; rank {rank} stopped at step {first.step:.0f}" if rank is not None and len(current) > 1 else ""
    )
    message = f"no rank has reported a step for {_minutes(quiet)}, the last was step {step:.0f}{suspect}"
    return Stall("hang", rank, first.step, float(median(each.step for each in current)), message)


def _behind(by_rank: Sequence[RankProgress], silent: float) -> list[Stall]:
    at = float(median(each.at for each in by_rank))
    step = float(median(each.step for each in by_rank))
    rate = float(median(each.rate for each in by_rank))
    found = []
    for each in by_rank:
        quiet = at - each.at
        if quiet > silent:
            message = (
                f"rank {each.rank} has not reported for {_minutes(quiet)}; it was at step {each.step:.0f}, "
                f"the job is at {step:.0f}"
            )
            found.append(Stall("reports", each.rank, each.step, step, message))
            continue
        # The steps that the rank has had no time to report do not count.
        behind = step - each.step - max(0.0, quiet) * rate
        if behind > max(BEHIND_STEPS, BEHIND * rate):
            message = f"rank {each.rank} is at step {each.step:.0f}, the median of its job is {step:.0f}"
            found.append(Stall("steps", each.rank, each.step, step, message))
    return found


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes"
