"""How much of the cluster is searched for a reservation."""

import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.scheduler.simulation import START, Simulation, Unit

from gpufleet.placement.lone_node import LoneNode


class _TickingSimulation(Simulation):
    """A clock that advances with every look at it, as a real one does."""

    def clock(self) -> datetime:
        self.now += 0.001
        return START + timedelta(seconds=self.now)


def test_the_node_that_is_free_first_is_found_without_a_closer_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = _TickingSimulation({f"node-{at:02d}": 1 for at in range(20)})
    for _ in range(20):
        simulation.arrive(Unit(arrives=0, gpus=1, runtime=1000))
    looked_at: list[str] = []

    class Counted(LoneNode):
        def __init__(self, inventory: Any, name: str) -> None:
            looked_at.append(name)
            super().__init__(inventory, name)

    monkeypatch.setattr(sys.modules["gpufleet.placement.earliest"], "LoneNode", Counted)
    simulation.arrive(Unit(arrives=0, gpus=1, runtime=10))
    assert len(simulation.scheduler.ledger.reservations) == 1
    assert len(looked_at) == 1
