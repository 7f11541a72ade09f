import math

import numpy as np
import pytest

from gpufleet.errors import InvalidRequest
from gpufleet.model.metric_source import MAX_POINTS, MetricHealth, check_span
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings

NAN = math.nan


def two_gpus() -> Readings:
    return Readings(
        taken_at=100.0,
        gpus=(GpuIdentity(GpuRef("a", 0), uuid="GPU-0"), GpuIdentity(GpuRef("b", 1), uuid="GPU-1")),
        values={Quantity.POWER: np.array([0.0, NAN]), Quantity.TEMPERATURE: np.array([NAN, 40.0])},
        times={Quantity.POWER: np.array([90.0, NAN]), Quantity.TEMPERATURE: np.array([NAN, 95.0])},
    )


def test_a_value_that_the_source_does_not_have_is_none_and_zero_stays_zero() -> None:
    readings = two_gpus()
    assert readings.value(0, Quantity.POWER) == 0.0
    assert readings.value(1, Quantity.POWER) is None
    assert readings.value(0, Quantity.ENERGY) is None
    assert readings.sampled_at(0) == 90.0
    assert readings.sampled_at(1) == 95.0


def test_gpus_are_found_by_name_and_by_node() -> None:
    readings = two_gpus()
    assert readings.rows[GpuRef("b", 1)] == 1
    assert list(readings.rows_of("b")) == [1]
    assert list(readings.rows_of("nowhere")) == []


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(0, 10, 0), (0, 10, -1), (10, 0, 1), (0, MAX_POINTS, 1), (0, NAN, 1), (0, 10, NAN), (0, math.inf, 1)],
)
def test_an_invalid_span_is_refused(start: float, end: float, step: float) -> None:
    with pytest.raises(InvalidRequest):
        check_span(start, end, step)


def test_the_longest_span_is_allowed() -> None:
    check_span(0, MAX_POINTS - 1, 1)


def test_an_age_is_never_negative_and_none_before_the_first_success() -> None:
    assert MetricHealth(None).age(10.0) is None
    assert MetricHealth(4.0).age(10.0) == 6.0
    assert MetricHealth(11.0).age(10.0) == 0.0
