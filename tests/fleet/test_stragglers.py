import numpy as np
import pytest

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.stragglers import StragglerWatch
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.model.workload import FleetPod, OwnerRef, Status

JOB = OwnerRef("job", "Job", "train", "batch/v1")


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet("test", clock=lambda: 1000.0)
    for number, node in enumerate("ab"):
        fleet.put_node(FleetNode(name=node, gpu_count=4))
        gpus = tuple(FleetGpu(index=gpu, in_use_by=(f"pod-{number}",)) for gpu in range(4))
        fleet.put_devices(NodeDevices(node=node, gpus=gpus, total=4))
        fleet.put_pod(
            FleetPod(
                uid=f"pod-{number}",
                name=f"train-{number}",
                namespace="ml",
                node=node,
                gpus=4,
                bound=1000.0,
                phase=Status.RUNNING,
                owner=JOB,
            )
        )
    return fleet


def read(fleet: Fleet, power: list[float], utilization: float = 98.0) -> None:
    gpus = tuple(GpuIdentity(GpuRef(node, gpu)) for node in "ab" for gpu in range(4))
    values = {Quantity.POWER: np.array(power), Quantity.UTILIZATION: np.full(8, utilization)}
    fleet.put_readings(Readings(taken_at=1000.0, gpus=gpus, values=values))


def found(watch: StragglerWatch, *times: float) -> list[tuple[str, int, str, int]]:
    for now in times:
        for _ in watch.check_steps(now):
            pass
    return [(each.pod, each.rank, each.node, each.gpu) for each in watch.stragglers()]


def test_a_gpu_with_far_less_power_than_its_siblings_is_named_with_its_rank(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    read(fleet, [600, 610, 590, 600, 605, 595, 240, 600])
    assert found(watch, 1000.0, 1060.0) == [], "it may be a checkpoint"
    assert found(watch, 1120.0) == [("train-1", 1, "b", 2)]
    read(fleet, [600, 610, 590, 600, 605, 595, 580, 600])
    assert found(watch, 1180.0) == []


def test_an_idle_job_has_no_stragglers(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    read(fleet, [600, 610, 590, 600, 605, 595, 240, 600], utilization=3.0)
    assert found(watch, 1000.0, 1200.0) == []


def test_gpus_without_readings_are_not_suspect(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    read(fleet, [600, 610, 590, 600, 605, 595, float("nan"), 600])
    assert found(watch, 1000.0, 1200.0) == []
