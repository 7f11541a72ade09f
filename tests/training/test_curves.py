from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.training_point import TrainingPoint
from gpufleet.training.curves import SILENCE, one_line

T0 = 1_800_000_000.0


def told(rank: int | None, *times: float, metric: str = "loss", source: str = "") -> list[TrainingPoint]:
    return [TrainingPoint(metric, float(rank or 0), T0 + time, rank, source) for time in times]


def in_order(*points: list[TrainingPoint]) -> list[TrainingPoint]:
    return sorted((point for some in points for point in some), key=lambda point: point.time)


def test_of_many_ranks_the_lowest_is_heard_also_while_its_newest_numbers_are_on_their_way() -> None:
    steps = [10.0 * step for step in range(60)]
    ranks = [told(rank, *(step + 0.3 * rank for step in steps)) for rank in range(1, 8)]
    first = told(0, *(step + 1.0 for step in steps[:-3]))
    assert one_line(in_order(first, *ranks)) == first


def test_a_metric_that_only_another_rank_tells_is_heard() -> None:
    loss, last = told(0, 0, 10, 20), told(7, 1, 11, 21, metric="lm loss")
    points = in_order(loss, last)
    assert one_line(points) == points


def test_the_job_as_a_whole_comes_before_its_ranks_and_what_it_pushed_before_its_log() -> None:
    steps = range(0, 600, 10)
    whole, rank, log = told(None, *steps), told(0, *steps), told(None, *steps, source="pod")
    assert one_line(in_order(whole, rank, log)) == whole
    assert one_line(in_order(rank, log)) == rank
    assert one_line(log) == log


def test_of_two_pods_that_write_the_same_one_is_heard() -> None:
    one, two = told(None, *range(0, 600, 10), source="a"), told(None, *range(3, 600, 10), source="b")
    assert one_line(in_order(one, two)) == one


def test_who_runs_before_or_after_is_heard() -> None:
    before, after = told(3, *range(0, 500, 10)), told(0, *range(600, 900, 10))
    points = in_order(before, after)
    assert one_line(points) == points


def test_another_rank_is_heard_where_the_first_is_silent() -> None:
    first = told(0, *range(0, 300, 10), *range(3000, 3300, 10))
    second = told(1, *range(5, 3300, 10))
    found = one_line(in_order(first, second))
    assert [point for point in found if point.rank == 0] == first
    heard = [point.time - T0 for point in found if point.rank == 1]
    assert (heard[0], heard[-1]) == (355.0, 2935.0)
    assert len(heard) == (2935 - 355) // 10 + 1


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
def test_nobody_is_made_up_and_where_one_speaks_somebody_is_heard(
    said: list[tuple[int | None, int, str, bool]],
) -> None:
    points = in_order(
        *(
            told(rank, time, source=source, metric="loss" if loss else "lr")
            for rank, time, source, loss in said
        )
    )
    found = one_line(points)
    assert found == [point for point in points if point in found]
    for point in points:
        assert any(
            other.metric == point.metric and abs(other.time - point.time) <= SILENCE for other in found
        )
    for metric in ("loss", "lr"):
        of_one = [point for point in points if (point.metric, point.rank, point.source) == (metric, 0, "")]
        assert one_line(of_one) == of_one
