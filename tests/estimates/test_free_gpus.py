"""Free GPUs of nodes in a forward simulation: shares fit only on one GPU, and nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.free_gpus import NONE_HIDDEN, FreeGpus
from gpufleet.estimates.node_gpus import WHOLE, NodeGpus
from gpufleet.estimates.run_times import Job

AMOUNTS = st.sampled_from((100, 250, 330, 500, 810, 1000, 2000, 4000, 1500))


def unit(milli: int, members: int = 1) -> WaitingUnit:
    return WaitingUnit("u", Job(gpus=milli / WHOLE), milli, members)


def test_a_share_does_not_fit_on_the_rests_of_several_gpus() -> None:
    running = [RunningUnit(Job(gpus=0.8), 60.0, ((0, 800),)) for _ in range(8)]
    free = FreeGpus([8 * 200], ["H100"], running)
    assert free.find(unit(500), NONE_HIDDEN) is None
    assert free.find(unit(1000), NONE_HIDDEN) is None
    assert free.find(unit(200), NONE_HIDDEN) == 0
    assert FleetState([8000], [1600], ["H100"], running, []).room(unit(810)) == 8


def test_a_share_takes_the_fullest_gpu_that_it_fits_on() -> None:
    node = NodeGpus(2)
    for share in (500, 250, 600):
        node.take(share)
    assert (node.whole, sorted(node.shared)) == (0, [250, 400])
    node.release(600)
    assert (node.whole, node.shared) == (1, [250])


@given(st.integers(1, 8), st.lists(AMOUNTS, max_size=24), st.randoms(use_true_random=False))
def test_what_was_taken_comes_back(gpus: int, amounts: list[int], chance: object) -> None:
    free, taken = FreeGpus([gpus * WHOLE, 0], ["H100", "H100"]), []
    for amount in amounts:
        if free.on(0).fits(amount):
            assert free.find(unit(amount), NONE_HIDDEN) == 0
            free.take(0, amount)
            taken.append(amount)
        else:
            assert free.find(unit(amount), NONE_HIDDEN) is None
        assert free.free(0) == gpus * WHOLE - sum(taken)
        assert all(0 <= part < WHOLE for part in free.on(0).shared)
    chance.shuffle(taken)  # type: ignore[attr-defined]
    for amount in taken:
        free.release(((0, amount),))
    assert free.on(0).whole == gpus
    assert free.fits(unit(WHOLE, gpus), NONE_HIDDEN)
    assert not free.fits(unit(WHOLE, gpus + 1), NONE_HIDDEN)


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=20))
def test_members_fit_where_they_can_be_placed(amounts: list[tuple[int, bool]]) -> None:
    free = FreeGpus([8 * WHOLE] * 3, ["H100"] * 3)
    for number, shared in amounts:
        asked = unit(100 * number if shared else WHOLE * number, members=2)
        fits = free.fits(asked, NONE_HIDDEN)
        assert (free.place(asked, NONE_HIDDEN) is not None) == fits
