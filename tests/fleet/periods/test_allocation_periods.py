import msgspec
import pytest

from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.reading import GpuIdentity, GpuRef, Readings
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fleet_with(clock: Clock) -> Fleet:
    fleet = Fleet("test", clock=clock)
    fleet.put_node(FleetNode(name="a", gpu_count=8))
    fleet.start_accounting()
    return fleet


def pod(phase: Status = Status.RUNNING, **changes: object) -> FleetPod:
    facts: dict[str, object] = {"name": "p", "namespace": "ml", "node": "a", "gpus": 2, "bound": 1000.0}
    return FleetPod(uid="p", phase=phase, **{**facts, **changes})  # type: ignore[arg-type]


def spans(periods: list[AllocationPeriod]) -> list[tuple[float, float]]:
    return sorted((period.start, period.end) for period in periods)


def test_a_period_opens_when_the_pod_is_bound_and_closes_when_it_ends() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    clock.now = 1007.0
    fleet.put_pod(pod())
    assert spans(fleet.allocation_periods.drain()) == [(1000.0, 0.0)]
    clock.now = 1500.0
    fleet.put_pod(pod(Status.COMPLETED, ended=1490.0))
    assert spans(fleet.allocation_periods.drain()) == [(1000.0, 1490.0)]
    assert fleet.allocation_periods.open() == []


def test_a_pod_that_is_first_seen_after_its_end_is_billed() -> None:
    fleet = fleet_with(Clock())
    fleet.put_pod(pod(Status.COMPLETED, bound=990.0, ended=993.0))
    assert spans(fleet.allocation_periods.drain()) == [(990.0, 993.0)]
    fleet.put_pod(pod(Status.COMPLETED, bound=990.0, ended=993.0, labels={"seen": "again"}))
    assert fleet.allocation_periods.drain() == []


def test_a_deleted_pod_holds_until_it_is_gone() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_pod(pod())
    clock.now = 1200.0
    fleet.drop_pod("p")
    assert spans(fleet.allocation_periods.drain()) == [(1000.0, 1200.0)]


def test_a_label_that_changes_splits_the_period_without_a_gap() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_pod(pod(labels={"team": "a"}))
    clock.now = 1600.0
    fleet.put_pod(pod(labels={"team": "b"}))
    clock.now = 2000.0
    fleet.drop_pod("p")
    periods = {
        period.labels["team"]: (period.start, period.end) for period in fleet.allocation_periods.drain()
    }
    assert periods == {"a": (1000.0, 1600.0), "b": (1600.0, 2000.0)}


def test_an_owner_seen_moments_later_corrects_the_period_instead_of_splitting_it() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_pod(pod(owner=OwnerRef("r", "ReplicaSet", "serve-1")))
    fleet.refresh()
    clock.now = 1002.0
    fleet.put_owner(
        FleetOwner(uid="r", kind="ReplicaSet", name="serve-1", parent=OwnerRef("d", "Deployment", "serve"))
    )
    periods = fleet.allocation_periods.drain()
    assert [(period.workload_name, period.start, period.end) for period in periods] == [
        ("serve", 1000.0, 0.0)
    ]


def test_nothing_is_recorded_before_all_sources_are_synced() -> None:
    clock = Clock()
    fleet = Fleet("test", clock=clock)
    fleet.put_node(FleetNode(name="a", gpu_count=8))
    fleet.put_pod(pod())
    assert fleet.allocation_periods.drain() == []
    fleet.start_accounting()
    assert spans(fleet.allocation_periods.drain()) == [(1000.0, 0.0)]


def test_a_model_that_only_readings_report_is_billed_and_stays() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_pod(pod(held=(0, 1)))
    assert [period.model for period in fleet.allocation_periods.drain()] == ["unknown"]
    clock.now = 1010.0
    gpus = tuple(GpuIdentity(GpuRef("a", gpu), f"GPU-{gpu}", "NVIDIA L40S", "NVIDIA") for gpu in range(8))
    fleet.put_readings(Readings(clock.now, gpus, {}, {}))
    assert [(p.model, p.start, p.end) for p in fleet.allocation_periods.drain()] == [
        ("NVIDIA_L40S", 1000.0, 0.0)
    ]
    clock.now = 2000.0
    fleet.put_readings(Readings(clock.now, (), {}, {}))
    fleet.refresh()
    assert fleet.allocation_periods.drain() == [], "a missing exporter does not change the period"


@pytest.mark.parametrize("label", ["", "NVIDIA-A100"])
def test_gpus_of_several_models_in_one_node_are_billed_by_their_own_model(label: str) -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_node(FleetNode(name="a", gpu_count=8, gpu_model=label))
    fleet.put_pod(pod(held=(5, 3)))
    fleet.put_pod(msgspec.structs.replace(pod(held=(0, 1)), uid="q"))
    fleet.put_pod(msgspec.structs.replace(pod(), uid="r"))  # which GPUs it holds is not known
    clock.now = 1010.0
    names = ["NVIDIA A100"] * 4 + ["NVIDIA H100"] * 4
    gpus = tuple(GpuIdentity(GpuRef("a", index), f"GPU-{index}", name) for index, name in enumerate(names))
    fleet.put_readings(Readings(clock.now, gpus, {}, {}))
    found = {period.pod_uid: (period.model, period.models) for period in fleet.allocation_periods.open()}
    usual = "NVIDIA_A100" if label else "unknown"
    assert found == {
        "p": (usual, ("NVIDIA_H100", "NVIDIA_A100")),
        "q": ("NVIDIA_A100", ()),
        "r": (usual, ()),
    }
    fleet.allocation_periods.drain()
    clock.now = 2000.0
    fleet.put_readings(Readings(clock.now, (), {}, {}))
    fleet.refresh()
    assert fleet.allocation_periods.drain() == [], "a missing exporter does not change the period"


def test_a_pod_that_a_source_missed_for_a_while_is_billed_once() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_pod(pod(labels={"team": "a"}))
    clock.now = 1600.0
    fleet.put_pod(pod(labels={"team": "b"}))
    clock.now = 2000.0
    fleet.drop_pod("p")
    recorded = {(period.pod_uid, period.start): period for period in fleet.allocation_periods.drain()}
    clock.now = 5000.0
    fleet.put_pod(pod(labels={"team": "b"}, bound=1000.0))
    clock.now = 6000.0
    fleet.drop_pod("p")
    recorded |= {(period.pod_uid, period.start): period for period in fleet.allocation_periods.drain()}
    assert spans(list(recorded.values())) == [(1000.0, 1600.0), (1600.0, 2000.0), (2000.0, 6000.0)]


def test_an_end_before_the_last_change_ends_the_period_before_the_change() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    job = FleetOwner(uid="j", kind="SlurmJob", name="train")
    fleet.put_owner(job)
    fleet.put_pod(pod(owner=OwnerRef("j", "SlurmJob", "train")))
    clock.now = 3000.0
    # both are seen together, 500 seconds after the job failed
    fleet.put_owner(msgspec.structs.replace(job, annotations={"slurm/reason": "NonZeroExitCode"}))
    fleet.put_pod(pod(Status.FAILED, ended=2500.0, owner=OwnerRef("j", "SlurmJob", "train")))
    assert sum(period.end - period.start for period in fleet.allocation_periods.drain()) == 1500.0


def test_capacity_of_a_node_whose_gpus_come_and_go_counts_once() -> None:
    clock = Clock()
    fleet = Fleet("test", clock=clock)
    fleet.start_accounting()
    recorded: dict[float, CapacityPeriod] = {}
    for now, gpus in ((1010.0, 4), (1100.0, 8), (1150.0, 0), (1200.0, 8)):
        clock.now = now
        fleet.put_node(FleetNode(name="new", gpu_count=gpus, created=1000.0))
        fleet.refresh()
        recorded |= {period.start: period for period in fleet.capacity_periods.drain()}
    assert [(period.start, period.end, period.gpus) for _, period in sorted(recorded.items())] == [
        (1000.0, 1100.0, 4),
        (1100.0, 1150.0, 8),
        (1200.0, 0.0, 8),
    ]


def test_the_period_of_an_evicted_pod_ends_interrupted() -> None:
    clock = Clock()
    fleet = fleet_with(clock)
    fleet.put_pod(pod())
    clock.now = 1200.0
    fleet.put_pod(pod(interrupted=True))
    fleet.allocation_periods.drain()
    assert [period.interrupted for period in fleet.allocation_periods.open()] == [False]
    clock.now = 1230.0
    fleet.drop_pod("p")
    [period] = fleet.allocation_periods.drain()
    assert (period.start, period.end, period.interrupted) == (1000.0, 1230.0, True)
