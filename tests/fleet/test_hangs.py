from collections.abc import Iterable

import pytest

from gpufleet.fleet.hangs import stalls
from gpufleet.model.training_point import RankProgress

NOW = 10_000.0


def kinds(ranks: Iterable[RankProgress], started: float = 0.0) -> list[tuple[str, int | None]]:
    return [(stall.kind, stall.rank) for stall in stalls(list(ranks), started, 8, NOW)]


def job(**late: RankProgress) -> list[RankProgress]:
    """Return eight ranks that work in step, except for some."""
    usual = {f"r{rank}": RankProgress(rank, 1000, NOW - 5, 10, 0.5) for rank in range(8)}
    return list((usual | late).values())


def test_ranks_in_step_are_not_suspect() -> None:
    assert kinds(job()) == []


def test_a_rank_whose_last_batch_has_not_arrived_is_not_suspect() -> None:
    assert kinds(job(r3=RankProgress(3, 950, NOW - 105, 10, 0.5))) == []


def test_a_rank_far_behind_is_suspect() -> None:
    assert kinds(job(r3=RankProgress(3, 900, NOW - 5, 10, 0.5))) == [("steps", 3)]


def test_a_rank_that_stopped_reporting_is_suspect() -> None:
    assert kinds(job(r3=RankProgress(3, 600, NOW - 800, 10, 0.5))) == [("reports", 3)]


def test_a_job_whose_ranks_all_stopped_hangs_and_the_rank_with_the_fewest_steps_is_suspect() -> None:
    ranks = [RankProgress(rank, 1000 - (rank == 5), NOW - 700, 10, 0.5) for rank in range(8)]
    (stall,) = stalls(ranks, 0.0, 8, NOW)
    assert (stall.kind, stall.rank) == ("hang", 5)
    assert stall.message == (
        "no rank has reported a step for 12 minutes, the last was step 1000; rank 5 stopped at step 999"
    )


def test_a_job_that_reports_rarely_is_given_more_time() -> None:
    assert kinds([RankProgress(None, 50, NOW - 1700, 600, 0.01)]) == []
    assert kinds([RankProgress(None, 50, NOW - 3100, 600, 0.01)]) == [("hang", None)]


@pytest.mark.parametrize(
    "old",
    [RankProgress(2, 10, 50, 10, 0.5), RankProgress(9, 10, NOW - 5000, 10, 0.5)],
    ids=["attempt", "size"],
)
def test_reports_of_an_earlier_attempt_or_a_larger_job_do_not_count(old: RankProgress) -> None:
    ranks = [each for each in job() if each.rank != old.rank]
    assert kinds([*ranks, old], started=100.0) == []
