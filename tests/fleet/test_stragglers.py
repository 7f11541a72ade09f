import numpy as np
import pytest

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.stragglers import StragglerWatch
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.model.training_point import RankProgress
from gpufleet.model.workload import FleetPod, OwnerRef, Status

JOB = OwnerRef("job", "Job", "train", "batch/v1")


@pytest.fixture
def fleet() -> Fleet:
    return fleet_of("train-0", "train-1")


def fleet_of(*pods: str) -> Fleet:
    """Return two nodes with a pod of the job on each."""
    fleet = Fleet("test", clock=lambda: 1000.0)
    for number, node in enumerate("ab"):
        fleet.put_node(FleetNode(name=node, gpu_count=4))
        gpus = tuple(FleetGpu(index=gpu, in_use_by=(f"pod-{number}",)) for gpu in range(4))
        fleet.put_devices(NodeDevices(node=node, gpus=gpus, total=4))
        fleet.put_pod(
            FleetPod(
                uid=f"pod-{number}",
                name=pods[number],
                namespace="ml",
                node=node,
                gpus=4,
                bound=1000.0,
                phase=Status.RUNNING,
                owner=JOB,
            )
        )
    return fleet


def read(
    fleet: Fleet, power: list[float], utilization: float = 98.0, clocks: list[float] | None = None
) -> None:
    gpus = tuple(GpuIdentity(GpuRef(node, gpu)) for node in "ab" for gpu in range(4))
    values = {Quantity.POWER: np.array(power), Quantity.UTILIZATION: np.full(8, utilization)}
    if clocks:
        values[Quantity.SM_CLOCK] = np.array(clocks)
    fleet.put_readings(Readings(taken_at=1000.0, gpus=gpus, values=values))


def found(
    watch: StragglerWatch, *times: float, progress: list[RankProgress] | None = None
) -> list[tuple[str, int | None, str, int | None]]:
    for now in times:
        for _ in watch.check_steps(now, {"job@ml": progress or []}):
            pass
    return [(each.pod, each.rank, each.node, each.gpu) for each in watch.stragglers()]


def test_a_gpu_with_far_less_power_than_its_siblings_is_named_with_its_rank(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    read(fleet, [600, 610, 590, 600, 605, 595, 240, 600])
    assert found(watch, 1000.0, 1060.0) == [], "it may be a checkpoint"
    assert found(watch, 1120.0) == [("train-1", 6, "b", 2)]
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


def test_a_gpu_with_a_lower_clock_than_its_siblings_is_suspect(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    read(fleet, [600.0] * 8, clocks=[1.98e9] * 5 + [1.2e9] + [1.95e9] * 2)
    assert found(watch, 1000.0, 1120.0) == [("train-1", 5, "b", 1)]
    (straggler,) = watch.stragglers()
    assert straggler.message == "sm clock 1200 MHz, the median of its job is 1980 MHz"


def test_a_rank_that_stops_reporting_is_named_with_its_pod_node_and_gpu(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    ranks = [RankProgress(rank, 500, 2990, 30, 0.5) for rank in range(8)]
    ranks[6] = RankProgress(6, 180, 2350, 30, 0.5)
    assert found(watch, 2980.0, progress=ranks) == [], "this server has not watched for long enough"
    assert found(watch, 3585.0, progress=ranks) == [("train-1", 6, "b", 2)]
    (straggler,) = watch.stragglers()
    assert (straggler.quantity, straggler.value, straggler.median) == ("reports", 180, 500)


def test_with_one_process_per_pod_a_rank_is_a_pod(fleet: Fleet) -> None:
    watch = StragglerWatch(fleet)
    ranks = [RankProgress(0, 500, 2990, 30, 0.5), RankProgress(1, 300, 2990, 30, 0.5)]
    assert found(watch, 1000.0, 3000.0, progress=ranks) == [("train-1", 1, "b", 0)]


def test_worker_10_comes_after_worker_2() -> None:
    fleet = fleet_of("train-10", "train-2")
    watch = StragglerWatch(fleet)
    read(fleet, [600, 610, 590, 600, 605, 595, 240, 600])
    assert found(watch, 1000.0, 1120.0) == [("train-2", 2, "b", 2)]
