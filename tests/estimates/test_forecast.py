import math

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


def test_nine_of_ten_hours_are_inside_the_interval() -> None:
    inside = []
    for seed in range(12):
        values = season(24 * 35, 12.0, seed)
        points = forecast(values[: 24 * 28], 0, 24 * 7)
        inside += [p.low <= values[24 * 28 + at] <= p.high for at, p in enumerate(points)]
    assert 0.86 <= np.mean(inside) <= 0.97


def test_a_short_history_gives_no_forecast() -> None:
    assert forecast([1.0] * (LEAST_HOURS - 1), 0, 24) == []
    assert len(forecast([1.0] * LEAST_HOURS, 0, 24)) == 24


def test_it_is_known_when_capacity_and_budget_run_out() -> None:
    points = [Point(100 + at, 10.0 + at, 0.0, 15.0 + at) for at in range(10)]
    assert exceeds(points, 16.5) == (107, 102)
    assert exceeds(points, 1000.0) == (None, None)
    assert spent(points, 30.0) == (102, 101)
