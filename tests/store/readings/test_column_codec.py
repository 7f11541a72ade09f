import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpufleet.store.readings.column_codec import Matrix, pack, unpack

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)


def round_trip(values: Matrix) -> Matrix:
    return unpack(pack(values), *values.shape)


@given(hnp.arrays(np.float64, SHAPES, elements=st.floats(allow_nan=True, allow_infinity=True)))
@settings(max_examples=200, deadline=None)
def test_any_numbers_come_back_exactly(values: Matrix) -> None:
    np.testing.assert_array_equal(round_trip(values), values)


@given(
    hnp.arrays(
        np.float64, SHAPES, elements=st.integers(-(10**9), 10**9).map(lambda n: n / 1000) | st.just(np.nan)
    )
)
@settings(max_examples=100, deadline=None)
def test_decimal_fractions_with_gaps_come_back_exactly(values: Matrix) -> None:
    np.testing.assert_array_equal(round_trip(values), values)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0)])
def test_nothing_comes_back_as_nothing(shape: tuple[int, int]) -> None:
    assert round_trip(np.empty(shape)).shape == shape


def test_slow_decimal_readings_take_about_a_byte_each() -> None:
    rng = np.random.default_rng(1)
    watts = np.round(300 + np.cumsum(rng.normal(0, 0.5, (8, 60)), axis=1), 1)
    assert len(pack(watts)) < watts.size * 1.2
