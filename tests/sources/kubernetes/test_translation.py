from typing import Any

import msgspec
import pytest

from gpufleet.kubernetes import GPU_CLAIMS, GPU_NODE_STATUSES, NODES, PODS
from gpufleet.kubernetes.gpu_requests import Sharing
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Owner as KubeOwner
from gpufleet.kubernetes.objects import Pod
from gpufleet.model.node import Health
from gpufleet.model.workload import Status
from gpufleet.sources.kubernetes.claimed_gpus import PodLeases
from gpufleet.sources.kubernetes.nodes import devices_from, node_from
from gpufleet.sources.kubernetes.owners import owner_from
from gpufleet.sources.kubernetes.pods import pod_from


def decode(resource: Any, raw: dict[str, Any]) -> Any:
    return resource.decoder.decode(msgspec.json.encode(raw))


def container(gpus: int = 0, resource: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {resource: str(gpus)}} if gpus else {}, **more}


def pod(
    containers: list[dict[str, Any]], init: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    meta = {"name": "p", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"nodeName": "a", "containers": containers, "initContainers": init or []}
    return {
        "metadata": {**meta, **more.pop("metadata", {})},
        "spec": spec,
        "status": {"phase": "Running"},
        **more,
    }


@pytest.mark.parametrize(
    ("containers", "init", "gpus"),
    [
        ([container(2), container(1)], [], 3),
        ([container(1)], [container(4)], 4),
        ([container(2)], [container(1)], 2),
        ([container(2)], [container(1, restartPolicy="Always")], 3),
        ([container(1)], [container(1, restartPolicy="Always"), container(4)], 5),
        ([container(1)], [container(4), container(1, restartPolicy="Always")], 4),
        ([container(1), container(1, "amd.com/gpu")], [], 2),
        ([container(0)], [], 0),
    ],
)
def test_gpus_are_counted_by_the_rule_for_init_containers(
    containers: list[dict[str, Any]], init: list[dict[str, Any]], gpus: int
) -> None:
    assert pod_from(decode(PODS, pod(containers, init)), None).gpus == gpus


@pytest.mark.parametrize(
    ("resource", "count", "gpus", "weight"),
    [
        ("nvidia.com/mig-1g.10gb", 1, 1, 1 / 7),
        ("nvidia.com/mig-3g.40gb", 2, 1, 6 / 7),
        ("nvidia.com/mig-4g.40gb", 2, 2, 8 / 7),
        ("gpu.intel.com/xe", 2, 2, 2.0),
        ("gpu.intel.com/memory.max", 2, 0, 0.0),
    ],
)
def test_mig_instances_count_by_their_slices(resource: str, count: int, gpus: int, weight: float) -> None:
    found = pod_from(decode(PODS, pod([container(count, resource)])), None)
    assert found.gpus == gpus
    assert found.gpus * found.share == pytest.approx(weight)


def test_a_pod_on_a_time_sliced_node_holds_a_slice() -> None:
    assert pod_from(decode(PODS, pod([container(1)])), None, Sharing(4)).share == 0.25


def test_the_annotation_determines_the_gpus_if_it_is_for_the_pods_node() -> None:
    meta = {"annotations": {"gpu.scheduling/claim": "c", "gpu.scheduling/allocated": "a:3,1"}}
    claim = decode(GPU_CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": {"count": 2}}})
    found = pod_from(decode(PODS, pod([container(0)], metadata=meta)), claim)
    assert (found.gpus, found.held, found.claim) == (2, (1, 3), "c")
    meta["annotations"]["gpu.scheduling/allocated"] = "elsewhere:0,1"
    assert pod_from(decode(PODS, pod([container(0)], metadata=meta)), claim).held == ()


def test_a_pod_whose_claim_was_deleted_keeps_its_gpus() -> None:
    notes = {"gpu.scheduling/claim": "c", "gpu.scheduling/allocated": "a:2,3"}
    found = pod_from(decode(PODS, pod([container(0)], metadata={"annotations": notes})), None)
    assert (found.gpus, found.share, found.held, found.holds) == (2, 1.0, (2, 3), True)


MIG_CLAIM = {
    "metadata": {"name": "c"},
    "spec": {"devices": {"count": 3, "exclusivity": "MIG", "migProfile": "2g.20gb"}},
}
PROFILES = {(0, "3"): "2g.20gb", (0, "4"): "2g.20gb", (1, "1"): "2g.20gb", (1, "2"): "1g.10gb"}


def with_claim(allocated: str) -> Pod:
    notes = {"gpu.scheduling/claim": "c", "gpu.scheduling/allocated": allocated}
    found: Pod = decode(PODS, pod([container(0)], metadata={"annotations": notes}))
    return found


@pytest.mark.parametrize("claim", [MIG_CLAIM, None])
def test_mig_instances_of_a_claim_count_on_their_gpus_even_when_it_was_deleted(
    claim: dict[str, Any] | None,
) -> None:
    leases = {0: LeaseHolder(instances=("3", "4")), 1: LeaseHolder(instances=("1",))}
    made = decode(GPU_CLAIMS, claim) if claim else None
    found = pod_from(with_claim("a:0,1"), made, leases=PodLeases(leases, PROFILES))
    assert (found.gpus, found.share, found.held) == (3, 2 / 7, (0, 0, 1))


def test_mig_instances_of_any_profile_count_by_the_profiles_of_the_leases() -> None:
    devices = {"count": 2, "exclusivity": "MIG"}
    claim = decode(GPU_CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": devices}})
    raw = decode(PODS, pod([container()], metadata={"annotations": {"gpu.scheduling/claim": "c"}}))
    waiting = pod_from(raw, claim)
    assert (waiting.gpus, waiting.share) == (2, 1 / 7)
    leases = PodLeases(
        {0: LeaseHolder(instances=("1",)), 1: LeaseHolder(instances=("2",))},
        {(0, "1"): "1g.10gb", (1, "2"): "3g.40gb"},
    )
    found = pod_from(raw, claim, leases=leases)
    assert (found.gpus, found.gpus * found.share) == (2, 4 / 7)


def test_mig_instances_of_one_gpu_need_no_lease() -> None:
    found = pod_from(with_claim("a:1"), decode(GPU_CLAIMS, MIG_CLAIM))
    assert (found.gpus, found.share, found.held) == (3, 2 / 7, (1, 1, 1))


def test_a_pod_whose_shared_claim_was_deleted_keeps_its_share() -> None:
    leases = {2: LeaseHolder(milli=300), 3: LeaseHolder(milli=300)}
    found = pod_from(with_claim("a:2,3"), None, leases=PodLeases(leases))
    assert (found.gpus, found.share, found.held) == (2, 0.3, (2, 3))


def test_leases_do_not_give_a_pod_more_than_its_annotation() -> None:
    leases = {2: LeaseHolder(milli=300), 7: LeaseHolder(milli=300)}
    found = pod_from(with_claim("a:2"), None, leases=PodLeases(leases))
    assert (found.gpus, found.share, found.held) == (1, 0.3, (2,))


def test_a_shared_claim_holds_its_share_of_each_gpu() -> None:
    devices = {"count": 1, "exclusivity": "Shared", "share": 0.3}
    claim = decode(GPU_CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": devices}})
    assert pod_from(decode(PODS, pod([container(0)])), claim).share == 0.3


def test_a_pending_pod_says_which_model_it_requests_and_why_it_waits() -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waits = pod([container(1)], status={"phase": "Pending", "conditions": [refused]})
    del waits["spec"]["nodeName"]
    found = pod_from(decode(PODS, waits), None)
    assert (found.model_requested, found.waiting_reason) == ("", "0/3 nodes")
    waits["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod_from(decode(PODS, waits), None).model_requested == "NVIDIA_H100_80GB_HBM3"
    claim = {
        "metadata": {"name": "c"},
        "spec": {"devices": {"count": 4}, "selector": {"matchLabels": {"gpu-type": "a100"}}},
        "status": {"phase": "Pending", "message": "0/7 nodes fit: 7 have other labels"},
    }
    found = pod_from(decode(PODS, waits), decode(GPU_CLAIMS, claim))
    assert (found.model_requested, found.gpus) == ("NVIDIA_A100", 4)
    assert found.waiting_reason == "0/7 nodes fit: 7 have other labels"


def test_a_bound_pod_waits_for_its_containers() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "x", "state": waiting}]}
    found = pod_from(decode(PODS, pod([container(1)], status=status)), None)
    assert found.waiting_reason == "ImagePullBackOff: no such image"
    assert pod_from(decode(PODS, pod([container(1)])), None).waiting_reason == ""


def test_a_pod_is_bound_when_scheduled_and_ends_with_its_last_container() -> None:
    status = {
        "phase": "Succeeded",
        "startTime": "2026-01-01T00:00:20Z",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}
        ],
        "containerStatuses": [
            {"name": n, "state": {"terminated": {"finishedAt": f"2026-01-01T00:{minute}:00Z"}}}
            for n, minute in (("x", "05"), ("y", "07"))
        ],
    }
    found = pod_from(decode(PODS, pod([container(1)], status=status)), None)
    assert (found.bound - found.created, found.started - found.created, found.ended - found.created) == (
        10,
        20,
        420,
    )
    assert not found.holds


def at(time: str) -> str:
    return f"2026-01-01T{time}Z"


def since(kind: str, time: str, status: str = "False") -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": at(time)}


def ended(name: str, time: str) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": 1, "finishedAt": at(time)}}}


WAITING = {"name": "c", "state": {"waiting": {"reason": "PodInitializing"}}}
RUNNING = {"name": "c", "state": {"running": {"startedAt": at("00:00:00")}}}


@pytest.mark.parametrize(
    ("status", "hours"),
    [
        (
            {
                "conditions": [since("Ready", "00:00:00"), since("PodScheduled", "00:00:00", "True")],
                "initContainerStatuses": [ended("download", "03:00:00")],
                "containerStatuses": [WAITING],
            },
            3,
        ),
        (
            {
                "conditions": [since("Ready", "05:00:00"), since("PodScheduled", "00:00:00", "True")],
                "initContainerStatuses": [ended("download", "01:00:00")],
                "containerStatuses": [ended("d", "02:00:00"), RUNNING],
            },
            5,
        ),
        ({"conditions": [since("Ready", "00:00:00"), since("DisruptionTarget", "04:00:00", "True")]}, 4),
    ],
    ids=["an init container failed", "the node was lost", "it was disrupted"],
)
def test_a_pod_without_finished_containers_ends_with_the_last_sign_of_an_end(
    status: dict[str, Any], hours: int
) -> None:
    found = pod_from(decode(PODS, pod([container(1)], status={"phase": "Failed", **status})), None)
    assert found.ended - found.created == hours * 3600


def node(**more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "labels": more.pop("labels", {})},
        "spec": more.pop("spec", {}),
        "status": {
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            **more,
        },
    }


def test_a_nodes_gpus_come_from_its_capacity_and_its_model_from_a_label() -> None:
    found = node_from(decode(NODES, node(labels={"nvidia.com/gpu.product": "NVIDIA-H200"})))
    assert (found.gpu_count, found.vendor, found.gpu_model) == (8, "nvidia", "NVIDIA_H200")
    assert found.aliases == ("10.0.0.7",)


@pytest.mark.parametrize(
    ("capacity", "labels", "count"),
    [
        ({"nvidia.com/gpu": "32"}, {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4"}, 8),
        ({"nvidia.com/mig-1g.10gb": "14"}, {"nvidia.com/gpu.count": "2"}, 2),
        ({"amd.com/gpu": "8"}, {}, 8),
        ({"gpu.intel.com/i915": "2"}, {}, 2),
        ({"cpu": "64"}, {"nvidia.com/gpu.count": "0"}, 0),
    ],
)
def test_slices_that_a_node_advertises_are_not_gpus(
    capacity: dict[str, str], labels: dict[str, str], count: int
) -> None:
    assert (
        node_from(decode(NODES, node(capacity=capacity, allocatable=capacity, labels=labels))).gpu_count
        == count
    )


def test_only_a_fault_taint_makes_a_node_faulty() -> None:
    dedicated = node(spec={"taints": [{"key": "dedicated", "effect": "NoSchedule"}], "unschedulable": True})
    found = node_from(decode(NODES, dedicated), ("gpu.scheduling/unhealthy",))
    assert (found.fault, found.cordoned, found.ready) == ("", True, True)
    sick = node(spec={"taints": [{"key": "gpu.scheduling/unhealthy", "effect": "NoSchedule"}]})
    assert (
        node_from(decode(NODES, sick), ("gpu.scheduling/unhealthy",)).fault
        == "taint gpu.scheduling/unhealthy"
    )


def test_gpus_that_are_not_allocatable_are_a_fault() -> None:
    found = node_from(decode(NODES, node(allocatable={"nvidia.com/gpu": "7"})))
    assert found.fault == "1 of 8 GPUs not allocatable"


def test_a_node_that_is_not_ready_has_a_reason() -> None:
    found = node_from(
        decode(NODES, node(conditions=[{"type": "Ready", "status": "Unknown", "message": "no heartbeat"}]))
    )
    assert (found.ready, found.not_ready_reason) == (False, "node is not Ready: no heartbeat")


def test_devices_are_sorted_and_have_health_and_reason() -> None:
    raw = {
        "metadata": {"name": "a"},
        "spec": {"nodeName": "a"},
        "status": {
            "total": 3,
            "devices": [
                {
                    "id": 1,
                    "health": "Unhealthy",
                    "healthReason": "XID 79",
                    "healthSince": "2026-01-01T00:00:00Z",
                },
                {
                    "id": 0,
                    "health": "Healthy",
                    "island": "nvlink-group-0",
                    "bandwidthGBps": 600,
                    "memoryMiB": 1024,
                },
            ],
        },
    }
    found = devices_from(decode(GPU_NODE_STATUSES, raw))
    assert [(gpu.index, gpu.health) for gpu in found.gpus] == [(0, Health.HEALTHY), (1, Health.UNHEALTHY)]
    assert (found.total, found.gpus[0].memory_bytes, found.gpus[1].health_reason) == (3, 1 << 30, "XID 79")


def condition(kind: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}


@pytest.mark.parametrize(
    ("kind", "spec", "status", "expected"),
    [
        ("Job", {}, condition("Complete"), Status.COMPLETED),
        ("Job", {}, condition("Failed"), Status.FAILED),
        ("Job", {}, {"active": 1}, None),
        ("Job", {"suspend": True}, {}, Status.PENDING),
        ("PyTorchJob", {}, condition("Running"), Status.RUNNING),
        (
            "PyTorchJob",
            {},
            {"conditions": [*condition("Running")["conditions"], *condition("Succeeded")["conditions"]]},
            Status.COMPLETED,
        ),
        ("RayJob", {}, {"jobStatus": "RUNNING"}, Status.RUNNING),
        ("RayJob", {}, {"jobStatus": "FAILED"}, Status.FAILED),
        ("Workflow", {}, {"phase": "Succeeded"}, Status.COMPLETED),
        ("Deployment", {"replicas": 2}, {"readyReplicas": 1}, Status.RUNNING),
        ("Deployment", {"replicas": 2}, {}, Status.PENDING),
        ("DaemonSet", {}, {"desiredNumberScheduled": 3, "numberReady": 3}, Status.RUNNING),
        ("CronJob", {"suspend": True}, {}, None),
        ("Strange", {}, {}, None),
    ],
)
def test_the_status_of_an_owner_depends_on_its_kind(
    kind: str, spec: dict[str, Any], status: dict[str, Any], expected: Status | None
) -> None:
    raw = {"metadata": {"name": "o", "uid": "u"}, "spec": spec, "status": status}
    owner = owner_from(msgspec.json.decode(msgspec.json.encode(raw), type=KubeOwner), kind, "v1")
    assert owner.status is expected
    assert (owner.ended > 0) == (expected in (Status.COMPLETED, Status.FAILED) and "conditions" in status)


@pytest.mark.parametrize(("value", "interrupted"), [("True", True), ("False", False)])
def test_a_pod_that_the_control_plane_ends_is_interrupted(value: str, interrupted: bool) -> None:
    condition = {"type": "DisruptionTarget", "status": value, "reason": "EvictionByEvictionAPI"}
    raw = pod([container(1)], status={"phase": "Running", "conditions": [condition]})
    assert pod_from(decode(PODS, raw), None).interrupted == interrupted
