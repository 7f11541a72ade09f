"""Decayed use and budgets."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.queueing.shares.budget import Budget, BudgetState, period_at
from gpufleet.queueing.shares.decay import Span, decay, decayed_use

HOUR = 3600.0


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0, 1000), st.floats(10, 1000), st.integers(1, 8000))
def test_a_span_decays_as_its_parts_do(
    start: float, length: float, later: float, half_life: float, milli: int
) -> None:
    now, middle = start + length + later, start + length / 2
    whole = Span("ns", "", milli, start, start + length)
    parts = Span("ns", "", milli, start, middle), Span("ns", "", milli, middle, start + length)
    assert sum(part.decayed(0.0, now, half_life) for part in parts) == pytest.approx(
        whole.decayed(0.0, now, half_life), abs=1e-6
    )
    assert whole.decayed(0.0, now, half_life) <= whole.seconds(0.0, now) + 1e-6


@given(st.floats(0, 1000), st.floats(1, 1000), st.floats(1, 1000))
def test_a_reading_and_the_spans_after_it_make_the_whole(at: float, length: float, half_life: float) -> None:
    now = at + length
    whole = Span("ns", "", 1000, 0.0)
    read = Span("ns", "", 1000, 0.0, at).decayed(0.0, at, half_life)
    assert decayed_use(read, at, [whole], now, half_life) == pytest.approx(
        whole.decayed(0.0, now, half_life), rel=1e-6, abs=1e-6
    )


def test_use_counts_half_after_a_half_life() -> None:
    assert decay(HOUR, HOUR) == 0.5


def test_a_budget_warns_at_80_percent_and_ends_at_100() -> None:
    budget = Budget(100.0)
    assert [budget.state(used) for used in (0, 79.9, 80, 99.9, 100, 120)] == [
        BudgetState.AVAILABLE,
        BudgetState.AVAILABLE,
        BudgetState.NEARLY_USED,
        BudgetState.NEARLY_USED,
        BudgetState.USED_UP,
        BudgetState.USED_UP,
    ]


def test_units_end_before_they_exceed_a_hard_budget_and_never_for_a_soft_one() -> None:
    assert Budget(100.0, hard=True).must_end(99.5, rate=60.0, seconds=30)
    assert not Budget(100.0, hard=True).must_end(99.4, rate=60.0, seconds=30)
    assert not Budget(100.0).must_end(120.0, rate=60.0, seconds=30)


def test_periods_begin_at_midnight_on_monday_and_on_the_first() -> None:
    now = datetime(2026, 12, 31, 15, 30, tzinfo=UTC)
    assert period_at("Day", now) == (datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    assert period_at("Week", now) == (datetime(2026, 12, 28, tzinfo=UTC), datetime(2027, 1, 4, tzinfo=UTC))
    assert period_at("Month", now) == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
