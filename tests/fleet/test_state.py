import msgspec
import pytest

from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Filter, Listing
from gpufleet.fleet.workloads.lookup import allocated_gpus, find_workload, training_names
from gpufleet.fleet.workloads.ownership import KEPT_GONE_PODS
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.reading import Fault, FaultKind, GpuIdentity, GpuRef, Readings
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status

DEPLOYMENT = OwnerRef("d", "Deployment", "serve", "apps/v1")
REPLICASET = OwnerRef("r", "ReplicaSet", "serve-1", "apps/v1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    fleet = Fleet("test", clock=clock)
    fleet.put_node(FleetNode(name="a", gpu_count=8, gpu_model="NVIDIA H200"))
    fleet.start_accounting()
    return fleet


def pod(uid: str, **changes: object) -> FleetPod:
    facts: dict[str, object] = {"name": uid, "namespace": "ml", "node": "a", "gpus": 4, "bound": 1000.0}
    return FleetPod(uid=uid, **{"phase": Status.RUNNING, **facts, **changes})  # type: ignore[arg-type]


def put_deployment(fleet: Fleet) -> None:
    fleet.put_owner(
        FleetOwner(uid="d", kind="Deployment", name="serve", namespace="ml", api_version="apps/v1")
    )
    fleet.put_owner(FleetOwner(uid="r", kind="ReplicaSet", name="serve-1", namespace="ml", parent=DEPLOYMENT))


def test_a_pod_belongs_to_the_top_of_its_owner_chain(fleet: Fleet) -> None:
    put_deployment(fleet)
    fleet.put_pod(pod("p", owner=REPLICASET))
    assert list(fleet.workloads()) == ["d"]
    assert fleet.workloads()["d"].gpus == 4


def test_an_unknown_owner_is_taken_from_the_reference_of_its_pod(fleet: Fleet) -> None:
    fleet.put_pod(pod("p", owner=OwnerRef("x", "RayJob", "tune", "ray.io/v1")))
    workload = fleet.workloads()["x@ml"]
    assert (workload.kind, workload.name, workload.namespace) == ("RayJob", "tune", "ml")


def test_a_replicaset_deleted_before_its_pods_makes_no_workload_of_its_own(fleet: Fleet) -> None:
    put_deployment(fleet)
    fleet.put_pod(pod("p", owner=REPLICASET))
    fleet.drop_owner("r")
    assert list(fleet.workloads()) == ["d"]
    assert [branch.kind for branch in fleet.object_tree("d").children] == ["ReplicaSet"]


def test_the_controllers_between_a_workload_and_its_pods_are_found(fleet: Fleet) -> None:
    put_deployment(fleet)
    fleet.put_owner(
        FleetOwner(uid="old", kind="ReplicaSet", name="serve-0", namespace="ml", parent=DEPLOYMENT)
    )
    fleet.put_pod(pod("p", owner=REPLICASET))
    fleet.put_pod(pod("bare"))
    assert training_names(find_workload(fleet, "d").tree) == ["r@ml", "old", "r"]
    assert training_names(find_workload(fleet, "bare").tree) == []


def test_a_finished_pod_holds_nothing_and_a_waiting_one_neither(fleet: Fleet) -> None:
    fleet.put_pod(pod("done", phase=Status.COMPLETED))
    fleet.put_pod(pod("waits", phase=Status.PENDING, node="", bound=0.0))
    assert fleet.views()["a"].allocated == 0
    fleet.put_pod(pod("pulls", phase=Status.PENDING))
    assert fleet.views()["a"].allocated == 4


def test_shared_pods_on_one_gpu_allocate_it_once(fleet: Fleet) -> None:
    for uid in ("p", "q"):
        fleet.put_pod(pod(uid, gpus=1, share=0.5, held=(3,)))
    view = fleet.views()["a"]
    assert (view.allocated, view.holders) == (1, {3: ("p", "q")})


def test_two_mig_instances_of_a_pod_on_one_gpu_allocate_it_once(fleet: Fleet) -> None:
    fleet.put_pod(pod("p", gpus=3, share=1 / 7, held=(0, 0, 1)))
    view = fleet.views()["a"]
    assert (view.allocated, view.holders) == (2, {0: ("p",), 1: ("p",)})
    (workload,) = fleet.workloads().values()
    assert [each.gpu.index for each in allocated_gpus(fleet, workload)] == [0, 1]


def test_shared_pods_without_a_named_gpu_are_counted_by_their_shares(fleet: Fleet) -> None:
    for number in range(5):
        fleet.put_pod(pod(f"p{number}", gpus=1, share=0.25))
    assert fleet.views()["a"].allocated == 2


def test_gpus_without_a_named_holder_are_only_counted(fleet: Fleet) -> None:
    fleet.put_pod(pod("p"))
    view = fleet.views()["a"]
    assert (view.allocated, view.holders, view.allocated_indices) == (4, {}, frozenset())
    fleet.put_pod(pod("q"))
    assert fleet.views()["a"].allocated_indices == frozenset(range(8))


def test_leases_name_the_gpus_of_a_pod_without_annotation(fleet: Fleet) -> None:
    fleet.put_pod(pod("p", gpus=2))
    fleet.put_leases("a", {6: ("p",), 7: ("p",), 1: ("unknown",)})
    assert fleet.views()["a"].holders == {6: ("p",), 7: ("p",)}


@pytest.mark.parametrize(
    ("change", "state", "fault"),
    [
        ({"ready": False, "not_ready_reason": "kubelet stopped"}, NodeState.FAULTY, "kubelet stopped"),
        ({"fault": "taint gpu.scheduling/unhealthy"}, NodeState.FAULTY, "taint gpu.scheduling/unhealthy"),
        ({"cordoned": True}, NodeState.IDLE, ""),
    ],
)
def test_a_node_is_faulty_for_a_reason(
    fleet: Fleet, change: dict[str, object], state: str, fault: str
) -> None:
    fleet.put_node(FleetNode(name="a", gpu_count=8, **change))  # type: ignore[arg-type]
    view = fleet.views()["a"]
    assert (view.state, view.fault, view.usable) == (state, fault, 0)


def test_an_unhealthy_gpu_makes_the_node_faulty_and_says_why(fleet: Fleet) -> None:
    sick = FleetGpu(index=2, health=Health.UNHEALTHY, health_reason="XID 79: fell off the bus")
    fleet.put_devices(NodeDevices(node="a", gpus=(FleetGpu(index=0), sick), total=2))
    view = fleet.views()["a"]
    assert (view.state, view.fault) == (NodeState.FAULTY, "GPU 2 is unhealthy: XID 79: fell off the bus")


def test_a_gpu_of_unknown_health_is_no_capacity_but_no_fault(fleet: Fleet) -> None:
    fleet.put_devices(
        NodeDevices(node="a", gpus=(FleetGpu(index=0), FleetGpu(index=1, health=Health.UNKNOWN)), total=2)
    )
    view = fleet.views()["a"]
    assert (view.state, view.usable) == (NodeState.IDLE, 1)


def test_a_retried_job_counts_the_gpus_of_its_last_try(fleet: Fleet) -> None:
    job = OwnerRef("j", "Job", "train")
    fleet.put_owner(
        FleetOwner(uid="j", kind="Job", name="train", namespace="ml", status=Status.COMPLETED, ended=1300.0)
    )
    fleet.put_pod(pod("one", owner=job, phase=Status.FAILED, bound=1000.0, ended=1100.0))
    fleet.put_pod(pod("two", owner=job, phase=Status.COMPLETED, bound=1110.0, ended=1290.0))
    fleet.put_pod(pod("three", owner=job, phase=Status.COMPLETED, bound=1110.0, ended=1300.0))
    workload = fleet.workloads()["j"]
    assert (workload.gpus, workload.ended, workload.status) == (8, 1300.0, Status.COMPLETED)


def test_a_deleted_workload_is_archived_as_it_was(fleet: Fleet, clock: Clock) -> None:
    put_deployment(fleet)
    fleet.put_pod(pod("p", owner=REPLICASET, held=(0, 1, 2, 3)))
    clock.now = 2000.0
    fleet.drop_owner("d")
    fleet.drop_owner("r")
    fleet.drop_pod("p")
    assert not fleet.workloads()
    record = fleet.ended()["d"]
    assert (record.workload.status, record.workload.ended, record.workload.gpus) == (
        Status.UNKNOWN,
        2000.0,
        4,
    )
    assert record.models == {"NVIDIA_H200": 4}
    assert record.tree.children[0].children[0].name == "p"
    assert fleet.drain_ended() == [record]
    assert not fleet.ownership.pods
    assert not fleet.ownership.owners


def test_pages_neither_repeat_nor_drop_a_row(fleet: Fleet) -> None:
    for number in range(25):
        fleet.put_pod(pod(f"p{number:02}", gpus=1, bound=float(1000 + number % 3)))
    listing = Listing(fleet)
    rows = [
        row.uid for page in (1, 2, 3, 4) for row in listing.workloads(Filter(), "start_at", page, 10).rows
    ]
    assert sorted(rows) == [f"p{number:02}" for number in range(25)]
    assert rows[:2] == ["p02", "p05"]
    past = listing.workloads(Filter(), "", 99, 10)
    assert (past.rows, past.total) == ([], 25)


def test_a_name_filter_matches_a_part_ignoring_case(fleet: Fleet) -> None:
    fleet.put_pod(pod("p", name="BERT-large"))
    fleet.put_pod(pod("q", name="llama"))
    rows = Listing(fleet).workloads(Filter(name="rt-LA"), "", 1, 10).rows
    assert [row.uid for row in rows] == ["p"]


def test_a_workload_without_gpus_is_not_listed(fleet: Fleet) -> None:
    fleet.put_pod(pod("web", gpus=0))
    assert not fleet.workloads()


def readings(at: float, *faults: Fault, vendor: str = "NVIDIA") -> Readings:
    gpus = tuple(GpuIdentity(GpuRef("a", index), vendor=vendor) for index in range(8))
    return Readings(taken_at=at, gpus=gpus, faults={3: faults} if faults else {})


@pytest.mark.parametrize(
    ("fault", "vendor", "reason"),
    [
        (Fault(FaultKind.XID, 79, 1, 5.0), "NVIDIA", "XID 79: the GPU fell off the bus"),
        (Fault(FaultKind.XID, 43, 1, 5.0), "NVIDIA", ""),
        (Fault(FaultKind.XID, 63, 1, 5.0), "NVIDIA", ""),
        (Fault(FaultKind.XID, 0, 0, 5.0), "NVIDIA", ""),
        (Fault(FaultKind.ECC_UNCORRECTED, 0, 2, 5.0), "AMD", "2 uncorrectable memory errors"),
        (Fault(FaultKind.ECC_UNCORRECTED, 0, 2, 5.0), "NVIDIA", ""),
        (Fault(FaultKind.ROW_REMAP_FAILED, 0, 1, 5.0), "NVIDIA", "row remapping failed"),
    ],
)
def test_without_an_agent_the_faults_of_the_exporter_count(
    fleet: Fleet, fault: Fault, vendor: str, reason: str
) -> None:
    fleet.put_readings(readings(1000.0, fault, vendor=vendor))
    view = fleet.views()["a"]
    assert (view.gpus[3].health_reason, view.state is NodeState.FAULTY) == (reason, reason != "")


def test_a_reported_fault_keeps_its_first_time_and_clears_with_the_report(
    fleet: Fleet,
) -> None:
    fault = Fault(FaultKind.XID, 79, 1, 5.0)
    fleet.put_readings(readings(1000.0, fault))
    fleet.put_readings(readings(1015.0, fault))
    assert fleet.views()["a"].gpus[3].health_since == 1000.0
    fleet.put_readings(readings(1030.0))
    assert fleet.views()["a"].state is NodeState.IDLE


def test_the_report_of_an_agent_wins_over_the_exporter(fleet: Fleet) -> None:
    fleet.put_devices(NodeDevices(node="a", gpus=tuple(FleetGpu(index=index) for index in range(8)), total=8))
    fleet.put_readings(readings(1000.0, Fault(FaultKind.XID, 79, 1, 5.0)))
    assert fleet.views()["a"].state is NodeState.IDLE


def test_changes_are_published_with_their_reason(fleet: Fleet) -> None:
    fleet.refresh()
    published: list[str] = []
    stop = fleet.changes.subscribe(
        lambda change: published.append(f"{change.subject} {change.was} -> {change.now}: {change.reason}")
    )
    fleet.put_node(FleetNode(name="a", gpu_count=8, ready=False, not_ready_reason="kubelet stopped"))
    fleet.put_pod(pod("p", name="x"))
    fleet.refresh()
    stop()
    fleet.drop_pod("p")
    fleet.refresh()
    assert published == ["node healthy -> faulty: kubelet stopped", "workload  -> Running: "]


def test_a_cron_job_does_not_keep_all_its_past_jobs(fleet: Fleet) -> None:
    fleet.put_owner(FleetOwner(uid="cron", kind="CronJob", name="nightly"))
    for number in range(1_000):
        job, pod = f"job-{number:04}", f"pod-{number:04}"
        fleet.put_owner(
            FleetOwner(uid=job, kind="Job", name=job, parent=OwnerRef("cron", "CronJob", "nightly"))
        )
        fleet.put_pod(FleetPod(uid=pod, name=pod, node="a", gpus=1, owner=OwnerRef(job, "Job", job)))
        fleet.drop_pod(pod)
        fleet.drop_owner(job)
        fleet.refresh()
    fleet.put_owner(
        FleetOwner(uid="idle", kind="Job", name="idle", parent=OwnerRef("cron", "CronJob", "nightly"))
    )
    fleet.drop_owner("idle")
    remembered = [branch.name for branch in fleet.object_tree("cron").children]
    assert remembered == [f"job-{number:04}" for number in range(1_000 - KEPT_GONE_PODS, 1_000)]
    assert len(fleet.ownership.owners) == KEPT_GONE_PODS + 1


def test_a_pod_that_requests_a_billion_gpus_blocks_nothing(fleet: Fleet) -> None:
    fleet.put_pod(pod("greedy", gpus=10**12, held=(0, 1)))
    assert find_workload(fleet, "greedy").models == {"NVIDIA_H200": 10**12}
    fleet.drop_pod("greedy")
    assert find_workload(fleet, "greedy").models == {"NVIDIA_H200": 10**12}


def test_an_address_may_move_to_another_node(fleet: Fleet) -> None:
    old = FleetNode(name="old", gpu_count=8, aliases=("10.0.0.5",))
    fleet.put_node(old)
    fleet.put_node(FleetNode(name="new", gpu_count=8, aliases=("10.0.0.5",)))
    fleet.put_node(msgspec.structs.replace(old, ready=False))
    fleet.drop_node("old")
    assert fleet.node_names.resolve("10.0.0.5") == "new"
    fleet.put_node(FleetNode(name="new", gpu_count=8, aliases=("10.0.0.6",)))
    assert fleet.node_names.resolve("10.0.0.5") == "10.0.0.5"
    assert fleet.node_names.resolve("10.0.0.6") == "new"
