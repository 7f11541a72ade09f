import math
from collections.abc import Callable

import numpy as np
import pytest

from gpufleet.estimates.forecast import LEAST_HOURS, Point, exceeds, forecast, hourly, spent


def season(hours: int, noise: float, seed: int, growth: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    at = np.arange(hours)
    weekly = 100 + 40 * np.sin(at / 24 * 2 * math.pi) - 30 * (at // 24 % 7 >= 5)
    found: np.ndarray = np.maximum(weekly + growth * at + noise * rng.standard_normal(hours), 0.0)
    return found


def test_spans_become_hourly_means() -> None:
    spans = [(1800.0, 3600.0 * 2.5, 4.0), (3600.0 * 1.25, 3600.0 * 1.75, 2.0), (0.0, 600.0, 6.0)]
    assert hourly(spans, 0, 4).tolist() == pytest.approx([3.0, 5.0, 2.0, 0.0])
    assert hourly([(0.0, 1e9, 1.0)], 5, 2).tolist() == [1.0, 1.0]


def test_a_weekly_pattern_is_continued() -> None:
    values = season(24 * 35, 0.0, 1)
    points = forecast(values[: 24 * 28], 0, 24 * 7)
    errors = [abs(point.expected - values[24 * 28 + at]) for at, point in enumerate(points)]
    assert max(errors) < 6


def queueing(hours: int, seed: int, warm_up: int) -> np.ndarray:
    """Return the GPUs of jobs that arrive by chance, more by day, and run from minutes to days."""
    rng = np.random.default_rng(seed)
    jobs = []
    for hour in range(-warm_up, hours):
        for _ in range(rng.poisson(1 + 0.5 * math.sin(hour / 24 * 2 * math.pi))):
            start = 3600.0 * (hour + rng.random())
            length = 3600.0 * rng.lognormal(2.0, 1.4)
            jobs.append((start, start + length, float(rng.choice((1, 1, 2, 4, 8, 8, 16)))))
    return hourly(jobs, 0, hours)


HISTORIES: dict[str, Callable[[int, int], np.ndarray]] = {
    "noisy weeks": lambda hours, seed: season(hours, 12.0, seed),
    "growing weeks": lambda hours, seed: season(hours, 12.0, seed, growth=0.03),
    "jobs that arrive by chance": lambda hours, seed: queueing(hours, seed, 24 * 14),
    "a cluster that was empty": lambda hours, seed: queueing(hours, seed, 0),
}


@pytest.mark.parametrize("days", [10, 28])
@pytest.mark.parametrize("kind", HISTORIES)
def test_about_nine_of_ten_hours_are_inside_the_interval(kind: str, days: int) -> None:
    inside = []
    for seed in range(8):
        values = HISTORIES[kind](24 * (days + 7), seed)
        points = forecast(values[: 24 * days], 0, 24 * 7)
        inside += [p.low <= values[24 * days + at] <= p.high for at, p in enumerate(points)]
    assert np.mean(inside) >= 0.8
    # A short history says little about the days of the week: its intervals are wide.
    assert np.mean(inside) <= 0.975 or days < 14


def test_the_interval_extends_to_both_sides_if_all_earlier_forecasts_were_too_low() -> None:
    rng = np.random.default_rng(1)
    filling = np.minimum(np.arange(24 * 7) * 2.0, 240.0) + rng.standard_normal(24 * 7)
    points = forecast(filling, 0, 24 * 14)
    assert all(point.low < point.expected < point.high for point in points)


def test_a_constant_demand_has_no_interval() -> None:
    assert {(p.low, p.expected, p.high) for p in forecast([8.0] * 240, 0, 48)} == {(8.0, 8.0, 8.0)}


def test_a_short_history_gives_no_forecast() -> None:
    assert forecast([1.0] * (LEAST_HOURS - 1), 0, 24) == []
    assert len(forecast([1.0] * LEAST_HOURS, 0, 24)) == 24


def test_it_is_known_when_capacity_and_budget_run_out() -> None:
    points = [Point(100 + at, 10.0 + at, 0.0, 15.0 + at) for at in range(10)]
    assert exceeds(points, 16.5) == (107, 102)
    assert exceeds(points, 1000.0) == (None, None)
    assert spent(points, 30.0) == (102, 101)
