from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.training_point import TrainingPoint
from gpufleet.training.reporter_selection import MAX_GAP, select_reporters

T0 = 1_800_000_000.0


def points_of(rank: int | None, *times: float, metric: str = "loss", source: str = "") -> list[TrainingPoint]:
    return [TrainingPoint(metric, float(rank or 0), T0 + time, rank, source) for time in times]


def in_order(*points: list[TrainingPoint]) -> list[TrainingPoint]:
    return sorted((point for some in points for point in some), key=lambda point: point.time)


def test_the_lowest_rank_is_selected_even_while_its_newest_points_are_missing() -> None:
    steps = [10.0 * step for step in range(60)]
    ranks = [points_of(rank, *(step + 0.3 * rank for step in steps)) for rank in range(1, 8)]
    first = points_of(0, *(step + 1.0 for step in steps[:-3]))
    assert select_reporters(in_order(first, *ranks)) == first


def test_a_metric_that_only_another_rank_reports_is_selected() -> None:
    loss, last = points_of(0, 0, 10, 20), points_of(7, 1, 11, 21, metric="lm loss")
    points = in_order(loss, last)
    assert select_reporters(points) == points


def test_points_of_the_whole_job_precede_ranks_and_pushed_points_precede_the_log() -> None:
    steps = range(0, 600, 10)
    whole, rank, log = points_of(None, *steps), points_of(0, *steps), points_of(None, *steps, source="pod")
    assert select_reporters(in_order(whole, rank, log)) == whole
    assert select_reporters(in_order(rank, log)) == rank
    assert select_reporters(log) == log


def test_of_two_pods_with_the_same_metric_one_is_selected() -> None:
    one, two = (
        points_of(None, *range(0, 600, 10), source="a"),
        points_of(None, *range(3, 600, 10), source="b"),
    )
    assert select_reporters(in_order(one, two)) == one


def test_a_reporter_that_runs_before_or_after_the_first_is_selected() -> None:
    before, after = points_of(3, *range(0, 500, 10)), points_of(0, *range(600, 900, 10))
    points = in_order(before, after)
    assert select_reporters(points) == points


def test_another_rank_fills_a_gap_of_the_first() -> None:
    first = points_of(0, *range(0, 300, 10), *range(3000, 3300, 10))
    second = points_of(1, *range(5, 3300, 10))
    found = select_reporters(in_order(first, second))
    assert [point for point in found if point.rank == 0] == first
    selected = [point.time - T0 for point in found if point.rank == 1]
    assert (selected[0], selected[-1]) == (355.0, 2935.0)
    assert len(selected) == (2935 - 355) // 10 + 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, 0, 1, 5]), st.integers(0, 3000), st.sampled_from(["", "a"]), st.booleans()
        ),
        max_size=60,
        unique_by=lambda each: each[:3],
    )
)
def test_points_are_never_invented_and_every_reported_time_is_covered(
    reports: list[tuple[int | None, int, str, bool]],
) -> None:
    points = in_order(
        *(
            points_of(rank, time, source=source, metric="loss" if loss else "lr")
            for rank, time, source, loss in reports
        )
    )
    found = select_reporters(points)
    assert found == [point for point in points if point in found]
    for point in points:
        assert any(
            other.metric == point.metric and abs(other.time - point.time) <= MAX_GAP for other in found
        )
    for metric in ("loss", "lr"):
        of_one = [point for point in points if (point.metric, point.rank, point.source) == (metric, 0, "")]
        assert select_reporters(of_one) == of_one
