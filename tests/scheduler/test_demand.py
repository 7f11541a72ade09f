"""The scheduler learns the demand from the claims of new pods."""

from tests.scheduler.stage import Stage

from gpufleet.placement import Kind
from gpufleet.placement.usability import Usability


def weights(stage: Stage) -> dict[Kind, float]:
    stage.scheduler.learn()
    score = stage.scheduler.ledger.cluster.states.score
    assert isinstance(score, Usability)
    return dict(score.demand.kinds)


async def test_each_pod_of_a_claim_counts_once(stage: Stage) -> None:
    await stage.node("a")
    before = weights(stage).get(Kind(3, 1000), 0.0)
    await stage.claim("three", 3)
    pods = [await stage.pod(f"p{at}", "three") for at in range(5)]
    assert await stage.schedule(pods[0]) == "a"
    assert await stage.schedule(pods[1]) == ""
    assert abs(weights(stage)[Kind(3, 1000)] - before - 5) < 0.01


async def test_pods_created_before_their_claim_count_when_it_is_created(stage: Stage) -> None:
    await stage.pod("p", "late")
    await stage.claim("late", 5)
    assert abs(weights(stage)[Kind(5, 1000)] - 1) < 0.01


async def test_placement_uses_the_learned_demand(stage: Stage) -> None:
    """If most pods request pairs, a single GPU is taken where it breaks no pair."""
    for name, gpus in (("odd", 3), ("pair", 2)):
        await stage.node(name, gpus=gpus)
    await stage.claim("two", 2)
    for _ in range(200):
        stage.scheduler.watch_events.record_demand(stage.scheduler.ledger.claims["default", "two"], 1)
    stage.scheduler.learn()
    await stage.claim("one")
    assert await stage.schedule(await stage.pod("p", "one")) == "odd"
