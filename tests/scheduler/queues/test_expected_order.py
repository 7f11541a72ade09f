"""The order between GpuQueues that estimates expect, from their statuses."""

from typing import Any

import pytest
from msgspec import convert

from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.scheduler.queues.expected_order import expected_order

HOUR = 3600.0
WAITING = {"a": [("a", 1000)], "b": [("b", 1000)]}


def queue(name: str, **status: Any) -> GpuQueue:
    return convert({"metadata": {"name": name}, "status": {"namespaces": [name], **status}}, GpuQueue)


@pytest.mark.parametrize(("half_life", "first"), [(3600, "a"), (7 * 86400, "b")])
def test_use_decays_with_the_half_life_of_the_scheduler(half_life: int, first: str) -> None:
    shares = {"a": 0.9, "b": 0.1}
    order, _ = expected_order(
        queue(name, used=4, share=share, halfLifeSeconds=half_life) for name, share in shares.items()
    )
    assert order is not None
    order.advance({"b": {"": 8000}}, 6 * HOUR)
    ranks = order.ranks({}, WAITING)
    assert min(ranks, key=lambda key: ranks[key]) == first
