"""What estimates of start times see of the scheduler's state."""

import msgspec
import pytest
from tests.scheduler.simulation import START, Simulation, Unit

from gpufleet.kubernetes.crds.gpu_claim import ClaimSelector
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.objects import Node, ObjectMeta
from gpufleet.scheduler.start_state import start_state


@pytest.mark.parametrize(
    ("labels", "models", "could_start"),
    [
        ({}, set(), True),
        ({"pool": "new"}, {"NVIDIA_H100_80GB_HBM3"}, True),
        ({"zone": "a"}, set(), True),
        ({"pool": "none"}, {"pool=none"}, False),
    ],
)
def test_nodes_that_a_claim_selects_by_label_count_by_their_model(
    labels: dict[str, str], models: set[str], could_start: bool
) -> None:
    simulation = Simulation({"a": 4, "b": 4})
    ledger, events = simulation.scheduler.ledger, simulation.scheduler.watch_events
    for name, model, pool in (("a", "H100 80GB HBM3", "new"), ("b", "A100-SXM4-80GB", "old")):
        events.on_nodes([simulation._new(Node(ObjectMeta(name=name, labels={"pool": pool, "zone": "a"})))])
        devices = tuple(DeviceStatus(at, health="Healthy", model=model) for at in range(4))
        report = GpuNodeStatus(
            metadata=ObjectMeta(name=name), spec=NodeGpusSpec(name), status=NodeGpus(devices, 4)
        )
        events.on_reports([simulation._new(report)])
    for _ in range(3):  # the third has to wait
        simulation.arrive(Unit(0, 4, 60))
    claim = ledger.claims["ns", "u00002"]
    spec = msgspec.structs.replace(claim.spec, selector=ClaimSelector(match_labels=labels))
    events.on_claims([simulation._new(msgspec.structs.replace(claim, spec=spec))])
    fleet = start_state(ledger, START).fleet
    (unit,) = fleet.waiting
    assert unit.models == models
    assert fleet.could_hold(unit) == could_start


def test_a_gang_that_runs_is_one_unit_with_a_place_for_each_pod() -> None:
    simulation = Simulation({"a": 4, "b": 4})
    simulation.arrive(Unit(0, 4, 3600, size=2, declared=3600))
    simulation.plan()
    simulation.now = 600.0
    simulation.arrive(Unit(0, 4, 60, size=2))
    fleet = start_state(simulation.scheduler.ledger, simulation.clock()).fleet
    ((running,), (waiting,)) = fleet.running, fleet.waiting
    assert sorted(running.places) == [(0, 4000), (1, 4000)]
    assert (running.elapsed, running.job.declared) == (600.0, 3600.0)
    assert running.job.gpus == waiting.job.gpus == 8.0, (
        "run times of one are compared with those of the other"
    )
