import itertools
import random

import numpy as np
import pytest

from gpufleet.estimates.calibration import FEWEST, Calibration, Raw
from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.run_times import KEPT, MOST_KEYS, Job, RunTimes
from gpufleet.estimates.starts import StartEstimates, least_free

HOUR = 3600.0


def fleet(
    running: list[RunningUnit], waiting: list[WaitingUnit], nodes: int = 2, **more: object
) -> FleetState:
    free = [8000] * nodes
    for unit in running:
        for node, milli in unit.places:
            free[node] -= milli
    return FleetState([8000] * nodes, free, ["H100"] * nodes, running, waiting, **more)  # type: ignore[arg-type]


def sampled(times: RunTimes, job: Job, elapsed: float) -> np.ndarray:
    found: np.ndarray = elapsed + times.sample([job], [elapsed], 2_000, np.random.default_rng(1))[0]
    return found


def test_a_workload_runs_as_long_as_it_did_before() -> None:
    times = RunTimes()
    for _ in range(50):
        times.observe(Job("short", "a"), 600.0)
        times.observe(Job("long", "a"), 36_000.0)
    assert np.median(sampled(times, Job("short", "a"), 0.0)) == pytest.approx(600, rel=0.1)
    assert np.median(sampled(times, Job("long", "a"), 0.0)) == pytest.approx(36_000, rel=0.1)


def test_an_unknown_workload_runs_as_others_of_its_owner() -> None:
    times = RunTimes()
    for _ in range(50):
        times.observe(Job("x", "a"), 600.0)
        times.observe(Job("x", "b"), 36_000.0)
    assert np.median(sampled(times, Job("new", "b"), 0.0)) == pytest.approx(36_000, rel=0.1)


def test_a_run_is_compared_with_runs_that_took_longer_than_it_has_taken() -> None:
    times = RunTimes()
    for at in range(100):
        times.observe(Job("x", "a"), 600.0 if at % 10 else 7_200.0)
    assert np.median(sampled(times, Job("x", "a"), 0.0)) < 700
    assert np.quantile(sampled(times, Job("x", "a"), 900.0), 0.3) > 5_000


def test_a_run_longer_than_all_others_is_expected_to_run_as_long_again() -> None:
    times = RunTimes()
    times.observe(Job("x", "a"), 600.0)
    assert np.median(sampled(times, Job("x", "a"), 10_000.0)) == pytest.approx(20_000, rel=0.1)


def test_no_run_takes_longer_than_it_declares_and_services_do_not_end() -> None:
    times = RunTimes()
    for _ in range(50):
        times.observe(Job("x", "a"), 36_000.0)
    assert sampled(times, Job("x", "a", declared=1_000.0), 0.0).max() <= 1_000
    assert np.isinf(sampled(times, Job("x", "a", service=True), 0.0)).all()


def test_run_times_are_bounded_in_memory() -> None:
    times = RunTimes()
    for at in range(MOST_KEYS):
        times.observe(Job(f"w{at}", f"o{at}"), 1.0)
    for _ in range(2 * KEPT):
        times.observe(Job("x", "a"), 1.0)
    assert len(times._seen) <= MOST_KEYS
    assert max(len(seen) for key, seen in times._seen.items() if key) == KEPT


def test_a_unit_starts_when_the_pods_before_it_have_ended() -> None:
    estimates = StartEstimates()
    for _ in range(100):
        estimates.run_times.observe(Job("x", "a", 8.0), HOUR)
    running = [RunningUnit(Job("x", "a", 8.0), 0.5 * HOUR, ((0, 8000),))]
    waiting = [WaitingUnit(f"w{at}", Job("x", "a", 8.0), 8000) for at in range(3)]
    estimates.refresh(fleet(running, waiting, nodes=1), 0.0)
    found = [estimates.of(f"w{at}", 0.0) for at in range(3)]
    for at, estimate in enumerate(found):
        assert estimate is not None
        assert estimate.position == at + 1
        assert estimate.expected == pytest.approx((0.5 + at) * HOUR, rel=0.15)
        assert estimate.earliest <= estimate.expected <= estimate.latest  # type: ignore[operator]
    assert found[0] is not None
    assert found[0].waits_for == "8 free GPUs"
    assert found[2] is not None
    assert found[2].waits_for == "8 free GPUs; 2 ahead of it in the queue"
    assert estimates.of("other", 0.0) is None


def test_a_gang_waits_for_all_its_gpus() -> None:
    estimates = StartEstimates()
    for _ in range(100):
        estimates.run_times.observe(Job("x", "a", 8.0), HOUR)
        estimates.run_times.observe(Job("y", "a", 8.0), 4 * HOUR)
    running = [RunningUnit(Job(name, "a", 8.0), 0.0, ((node, 8000),)) for node, name in enumerate("xy")]
    gang = WaitingUnit("gang", Job("z", "a", 16.0), 8000, members=2)
    estimates.refresh(fleet(running, [gang]), 0.0)
    found = estimates.of("gang", 0.0)
    assert found is not None
    assert found.expected == pytest.approx(4 * HOUR, rel=0.15)


def test_a_hypothetical_unit_comes_last_and_may_be_impossible() -> None:
    estimates = StartEstimates()
    for _ in range(100):
        estimates.run_times.observe(Job("x", "a", 8.0), HOUR)
    running = [RunningUnit(Job("x", "a", 8.0), 0.0, ((0, 8000),))]
    waiting = [WaitingUnit("w", Job("x", "a", 8.0), 8000)]
    estimates.refresh(fleet(running, waiting, nodes=1), 0.0)
    found = estimates.hypothetical(WaitingUnit("", Job(gpus=4.0), 4000), 0.0)
    assert found.position == 2
    assert found.expected == pytest.approx(2 * HOUR, rel=0.15)
    forms = frozenset({"H100", "H100_80GB", "H100_NVL"})
    of_forms = estimates.hypothetical(WaitingUnit("", Job(gpus=4.0), 4000, models=forms), 0.0)
    assert of_forms.waits_for.startswith("4 free H100 GPUs;"), "the forms that the fleet has"
    other = estimates.hypothetical(WaitingUnit("", Job(gpus=4.0), 4000, models=frozenset({"A100"})), 0.0)
    assert other.expected is None
    assert other.waits_for.startswith(
        "a node with 4 A100 GPUs; there is none, not counting GPUs that are faulty"
    )


def test_a_gang_that_is_too_large_says_for_how_many_of_its_pods_there_is_room() -> None:
    estimates = StartEstimates()
    gang = WaitingUnit("gang", Job("z", "a", 24.0), 8000, members=3)
    estimates.refresh(fleet([], [gang], nodes=2), 0.0)
    found = estimates.of("gang", 0.0)
    assert found is not None
    assert found.expected is None
    assert found.waits_for.startswith(
        "more nodes with 8 GPUs; there is room for 2 of its 3 pods, not counting"
    )


def test_adjacent_gpus_are_expected_when_they_must_be_among_the_free_ones() -> None:
    estimates = StartEstimates()
    for _ in range(100):
        estimates.run_times.observe(Job("x", "a", 4.0), HOUR)
    running = [RunningUnit(Job("x", "a", 4.0), 0.0, ((0, 4000),))]
    estimates.refresh(fleet(running, [], nodes=1), 0.0)
    anywhere = estimates.hypothetical(WaitingUnit("", Job(gpus=4.0), 4000), 0.0)
    together = estimates.hypothetical(WaitingUnit("", Job(gpus=4.0), 4000, grouping="contiguous"), 0.0)
    assert (anywhere.expected, anywhere.waits_for) == (0.0, "4 free GPUs")
    assert together.expected == pytest.approx(HOUR, rel=0.15), "every second GPU may be in use until then"
    assert together.waits_for == "4 free GPUs with adjacent indexes"


@pytest.mark.parametrize("size", [4, 8])
def test_so_many_free_gpus_always_have_a_contiguous_group(size: int) -> None:
    for gpus in range(1, size + 1):
        least = least_free(gpus, size, "contiguous")
        longest = {
            number: min(
                max(map(len, "".join("01"[gpu in free] for gpu in range(size)).split("0")))
                for free in map(set, itertools.combinations(range(size), number))
            )
            for number in (least - 1, least)
        }
        assert all(found >= gpus for number, found in longest.items() if number >= least)
        assert all(found < gpus for number, found in longest.items() if number < least)


def test_a_unit_behind_a_gate_has_a_reason_but_no_time() -> None:
    estimates = StartEstimates()
    estimates.refresh(fleet([], [WaitingUnit("w", Job(), 1000, waits_for="scheduling gate x")]), 0.0)
    found = estimates.of("w", 0.0)
    assert found is not None
    assert (found.waits_for, found.expected) == ("scheduling gate x", None)


@pytest.mark.parametrize("bias", [0.5, 1.0, 3.0])
def test_intervals_cover_nine_of_ten_starts_even_if_the_simulation_is_biased(bias: float) -> None:
    rng, calibration = random.Random(1), Calibration()
    inside = []
    for at in range(1_500):
        now = at * 1000.0
        raw = Raw(rng.lognormvariate(7, 1), 1.0)
        wait = bias * raw.median * rng.lognormvariate(0, 0.8)
        low, _, high = calibration.quantiles(now)
        if at > 10 * FEWEST:
            inside.append(raw.at(low) <= wait <= raw.at(high))
        calibration.estimated(str(at), raw, now)
        calibration.started(str(at), now + wait)
    assert 0.86 <= np.mean(inside) <= 0.94


def test_units_that_wait_longer_than_their_interval_widen_it_before_they_start() -> None:
    calibration = Calibration()
    for at in range(100):
        calibration.estimated(str(at), Raw(1000.0, 1.0), 0.0)
        calibration.started(str(at), 1000.0 + at)
    narrow = calibration.quantiles(0.0)[2]
    for at in range(30):
        calibration.estimated(f"late-{at}", Raw(1000.0, 1.0), 0.0)
    calibration.estimated("one", Raw(1000.0, 1.0), 0.0)
    calibration.started("one", 1000.0)
    assert calibration.quantiles(50_000.0)[2] > narrow + 1
