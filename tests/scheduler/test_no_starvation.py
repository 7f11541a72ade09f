"""No unit waits forever, and no half gang runs forever.

A simulation runs pods for given times on the model of the API server, one second at a time.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.scheduler.world import Process, World

from gpufleet.kubernetes.objects import Pod, PodStatus

SLACK = 4
"""Seconds that the release of leases, planning and binding take."""


@dataclass
class Simulation:
    """Pods that end by themselves, in a world with one scheduler."""

    nodes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    runtimes: dict[str, float] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(self.nodes)
        for count in (1, 2, 4):
            self.world.add_claim(str(count), count=count)
        self.process = Process(self.world, **self.settings)

    def pod(self, name: str, claim: str, runtime: float, **spec: Any) -> None:
        made = self.world.add_pod(name, claim)
        # The clock of the model runs by seconds; names keep the order within a second.
        meta = structs.replace(made.metadata, creation_timestamp=self.process.scheduler._timing.now())
        self.world.write("pods", Pod(meta, structs.replace(made.spec, **spec)))
        self.runtimes[name], self.created[name] = runtime, self.world.now

    def gang(self, name: str, size: int, count: int, runtime: float) -> None:
        self.world.add_claim(f"of-{name}", gang=name, count=count)
        self.world.add_group(name, size, 20)
        for at in range(size):
            self.pod(f"{name}-{at}", f"of-{name}", runtime)

    def second(self) -> None:
        """Let one second pass."""
        world, process = self.world, self.process
        for pod in world.all("pods"):
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None:
                world.remove("pods", "ns", name)
            elif pod.spec.node_name and not pod.finished:
                self.ends.setdefault(name, world.now + self.runtimes[name])
                if self.ends[name] <= world.now:
                    world.write("pods", structs.replace(pod, status=PodStatus(phase="Succeeded")))
        for part in ("lease_gc", "plan"):
            process.watch()
            process.reconcile_with(part)
            self._answer()
        process.watch()
        for pod in sorted(world.all("pods"), key=lambda pod: str(pod.metadata.creation_timestamp)):
            current = world.pod(pod.metadata.name)
            if current is not None and process.schedule(current):
                self._answer()
        process.watch()
        world.now += 1.0

    def _answer(self) -> None:
        while self.world.calls:
            self.world.resolve(self.world.calls[0], "done")

    def waits(self, name: str) -> bool:
        pod = self.world.pod(name)
        return pod is not None and not pod.spec.node_name

    def close(self) -> None:
        self.process.kill()
        self.world.loop.close()


def test_a_gang_starts_when_what_ran_before_it_has_ended() -> None:
    """However many pods arrive after it, each of which would fit earlier."""
    simulation = Simulation({"a": 4, "b": 4, "c": 4})
    chance = Random(7)
    for at in range(12):
        simulation.pod(f"old-{at:02d}", "1", chance.randint(5, 20))
    simulation.second()
    simulation.second()
    simulation.gang("g", 3, 4, 5)
    arrived = simulation.world.now
    drained = max(simulation.ends.values())
    young = 0
    while any(simulation.waits(f"g-{at}") for at in range(3)):
        for _ in range(3):
            simulation.pod(f"young-{young:03d}", "1", 30)
            young += 1
        simulation.second()
        assert simulation.world.now <= drained + SLACK, f"the gang waits since {arrived}"
    assert young > 10
    simulation.close()


@pytest.mark.parametrize("seed", range(4))
def test_no_unit_waits_longer_than_everything_ahead_of_it_takes(seed: int) -> None:
    simulation, chance = Simulation({"a": 4, "b": 4}), Random(seed)
    allowed: dict[str, float] = {}
    for at in range(14):
        ahead = sum(simulation.runtimes[name] for name in simulation.runtimes if simulation.waits(name))
        running = max((end - simulation.world.now for end in simulation.ends.values()), default=0.0)
        name, runtime = f"u{at:02d}", chance.randint(3, 15)
        if chance.random() < 0.3:
            simulation.gang(name, 2, chance.choice((2, 4)), runtime)
            names = [f"{name}-0", f"{name}-1"]
        else:
            simulation.pod(name, chance.choice(("1", "2", "4")), runtime)
            names = [name]
        for each in names:
            allowed[each] = simulation.world.now + max(running, 0.0) + ahead + SLACK * (at + 1)
        for _ in range(chance.randint(0, 3)):
            simulation.second()
    while any(map(simulation.waits, allowed)):
        simulation.second()
        late = [name for name in allowed if simulation.waits(name) and simulation.world.now > allowed[name]]
        assert not late, f"{late} still wait at {simulation.world.now}"
    simulation.close()


@dataclass(frozen=True)
class Loss:
    """A member that is lost some seconds after its gang was created."""

    second: int
    gang: str
    member: int
    how: str


losses = st.builds(
    Loss,
    st.integers(0, 12),
    st.sampled_from(("g", "h")),
    st.integers(0, 2),
    st.sampled_from(("Failed", "deleted", "deleted by force")),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(losses, min_size=1, max_size=4), st.sampled_from((0.0, 3.0, 6.0)))
def test_no_half_gang_outlives_its_grace_period(lost: list[Loss], grace: float) -> None:
    """Whenever members fail or vanish: before their gang is bound, while it is, or while it runs."""
    simulation = Simulation({"a": 4, "b": 4}, {"gang_grace": grace})
    world, half_since = simulation.world, dict[str, float]()
    for name, count in (("g", 2), ("h", 1)):
        simulation.gang(name, 3, count, 100)
    for second in range(30):
        for each in lost:
            pod = world.pod(f"{each.gang}-{each.member}")
            if each.second != second or pod is None:
                continue
            if each.how == "Failed" and pod.spec.node_name:
                world.write("pods", structs.replace(pod, status=PodStatus(phase="Failed")))
            elif each.how == "deleted":
                world.delete(pod)
            else:
                world.remove("pods", "ns", pod.metadata.name)
        simulation.second()
        for gang in ("g", "h"):
            pods = (world.pod(f"{gang}-{at}") for at in range(3))
            running = sum(pod is not None and bool(pod.spec.node_name) and not pod.finished for pod in pods)
            if running in (0, 3):
                half_since.pop(gang, None)
            else:
                since = half_since.setdefault(gang, world.now)
                assert world.now - since <= grace + SLACK, f"{running} members of {gang} run since {since}"
    simulation.close()
