"""Pods that share GPUs count as their share, whatever shares them."""

from typing import Any

import pytest
from tests.accounting.reference import gpu_hours, reference_allocations
from tests.sources.kubernetes.test_translation import decode, pod

from gpufleet.accounting.rollup import RollupPlan, roll_up
from gpufleet.accounting.samples import no_samples
from gpufleet.kubernetes import NODES, PODS
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus
from gpufleet.kubernetes.gpu_requests import Sharing, sharing_of
from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.sources.kubernetes.nodes import node_from
from gpufleet.sources.kubernetes.pods import pod_from

HOUR = 1_790_000_000 // 3600 * 3600
REGISTER = "hami.io/node-nvidia-register"
LEGACY = "GPU-a,10,32768,100,NVIDIA-Tesla V100,0,true:GPU-b,10,32768,100,NVIDIA-Tesla V100,0,true:"
JSON = (
    '[{"id":"GPU-a","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA","health":true},'
    '{"id":"GPU-b","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA","health":true}]'
)
A100 = Sharing(memory_mib=81920)


def weight(
    limits: dict[str, str], annotations: dict[str, str] | None = None, sharing: Sharing = A100, **meta: Any
) -> tuple[int, float]:
    """Return the GPUs of a pod and its share of each."""
    raw = pod(
        [{"name": "c", "resources": {"limits": limits}}], metadata={"annotations": annotations or {}, **meta}
    )
    found = pod_from(decode(PODS, raw), None, sharing)
    return found.gpus, found.share


@pytest.mark.parametrize(
    ("limits", "gpus", "share"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25"}, 1, 0.25),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "25"}, 2, 0.25),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20480"}, 1, 0.25),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20480", "nvidia.com/gpucores": "50"}, 1, 0.5),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "25"}, 1, 1.0),
        ({"nvidia.com/gpu": "1"}, 1, 1.0),
        ({"nvidia.com/gpumem": "40960"}, 1, 0.5),
    ],
)
def test_vgpus_of_hami_count_by_the_larger_of_memory_and_cores(
    limits: dict[str, str], gpus: int, share: float
) -> None:
    assert weight(limits) == (gpus, share)


def test_memory_of_hami_on_a_node_of_unknown_memory_counts_as_a_whole_gpu() -> None:
    assert weight({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20480"}, sharing=Sharing()) == (1, 1.0)


@pytest.mark.parametrize(("register", "memory"), [(LEGACY, 32768), (JSON, 81920), ("broken", 0), ("[1]", 0)])
def test_a_node_with_hami_has_the_gpus_that_it_registers(register: str, memory: int) -> None:
    raw = {
        "metadata": {"name": "a", "annotations": {REGISTER: register}},
        "status": {"capacity": {"nvidia.com/gpu": "20"}, "allocatable": {"nvidia.com/gpu": "20"}},
    }
    node = decode(NODES, raw)
    assert sharing_of(node.metadata).memory_mib == memory
    assert node_from(node).gpu_count == (2 if memory else 20)


@pytest.mark.parametrize(
    ("annotations", "gpus", "share"),
    [
        ({"gpu-fraction": "0.25"}, 1, 0.25),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, 2, 0.25),
        ({"gpu-memory": "20480"}, 1, 0.25),
        ({"gpu-fraction": "much"}, 0, 1.0),
        ({"gpu-fraction": "7"}, 1, 1.0),
    ],
)
def test_fractions_of_kai_count_as_their_share(annotations: dict[str, str], gpus: int, share: float) -> None:
    assert weight({}, annotations) == (gpus, share)


NV = "nvidia.com/container.c."


@pytest.mark.parametrize(
    ("annotations", "gpus", "share"),
    [
        ({f"{NV}gpu-memory.request": "20Gi"}, 1, 0.25),
        ({f"{NV}gpu-memory.request": "20Gi", f"{NV}gpu-memory.limit": "80Gi"}, 1, 0.25),
        ({f"{NV}gpu-memory.limit": "40Gi"}, 1, 0.5),
        ({f"{NV}gpu-memory.request": "20Gi", "gpu-fraction-num-devices": "2"}, 2, 0.25),
        ({f"{NV}gpu-memory.request": "1Mi"}, 1, 0.001),
        ({f"{NV}gpu-memory.request": "1000000k"}, 1, 0.012),
        ({f"{NV}gpu-memory.request": "200Gi"}, 1, 1.0),
        ({f"{NV}gpu-memory.request": "20Gi", "nvidia.com/container.d.gpu-memory.limit": "20Gi"}, 1, 0.5),
        ({f"{NV}gpu-memory.request": "20Gi", "gpu-fraction": "0.001"}, 1, 0.25),
        ({f"{NV}gpus.devices": "GPU-a,GPU-b"}, 2, 1.0),
        ({f"{NV}gpus.devices": "GPU-a", "gpu-fraction": "0.5"}, 1, 0.5),
        ({f"{NV}gpu-memory.request": "20Gi", "gpu-fraction-num-devices": "1e30"}, 64, 0.25),
        ({f"{NV}gpu-memory.request": "much"}, 0, 1.0),
        ({f"{NV}gpu-memory.request": "0"}, 0, 1.0),
        ({f"{NV}gpu-memory.request": "20Gi" + " " * 5000}, 0, 1.0),
        ({f"{NV}gpu-compute.mode": "time-slicing"}, 0, 1.0),
    ],
)
def test_nvfractions_of_kai_and_runai_count_as_their_part_of_the_memory(
    annotations: dict[str, str], gpus: int, share: float
) -> None:
    assert weight({}, annotations) == (gpus, share)


def test_nvfractions_on_a_node_of_unknown_memory_count_as_whole_gpus() -> None:
    notes = {f"{NV}gpu-memory.request": "20Gi", "gpu-fraction-num-devices": "2"}
    assert weight({}, notes, sharing=Sharing()) == (2, 1.0)


@pytest.mark.parametrize("notes", [{"gpu-fraction": "0.01"}, {f"{NV}gpu-memory.request": "1Mi"}])
def test_annotations_of_kai_do_not_make_whole_gpus_cheaper(notes: dict[str, str]) -> None:
    """KAI refuses such a pod, other schedulers ignore the annotations."""
    assert weight({"nvidia.com/gpu": "8"}, notes) == (8, 1.0)


def test_kai_names_the_gpus_of_a_pod_with_nvfractions() -> None:
    notes = {
        f"{NV}gpu-memory.request": "20Gi",
        f"{NV}gpus.devices": "GPU-3, GPU-1",
        "gpu-fraction-num-devices": "2",
    }
    devices = [DeviceStatus(at, uuid=f"GPU-{at}") for at in range(4)]
    raw = pod([{"name": "c"}], metadata={"annotations": notes})
    found = pod_from(decode(PODS, raw), None, A100, devices=devices)
    assert (found.gpus, found.share, found.held) == (2, 0.25, (1, 3))


@pytest.mark.parametrize("namespace", ["kai-resource-reservation", "runai-reservation"])
def test_reservation_pods_of_kai_do_not_count_beside_the_pods_they_reserve_for(namespace: str) -> None:
    assert weight({"nvidia.com/gpu": "1"}, namespace=namespace) == (0, 1.0)


def test_replicas_of_time_slicing_and_mps_count_as_their_share() -> None:
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}
    node = decode(NODES, {"metadata": {"name": "a", "labels": labels}})
    for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared"):
        assert weight({resource: "1"}, sharing=sharing_of(node.metadata)) == (1, 0.25)


@pytest.mark.parametrize(
    "pods",
    [
        [({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25"}, {}, A100)] * 4,
        [({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20480"}, {}, A100)] * 4,
        [({}, {"gpu-fraction": "0.25"}, A100)] * 4,
        [({}, {"gpu-memory": "20480"}, A100)] * 4,
        [({}, {f"{NV}gpu-memory.request": "20Gi"}, A100)] * 4,
        [({"nvidia.com/gpu": "1"}, {}, Sharing(replicas=4))] * 4,
        [({"nvidia.com/gpu.shared": "1"}, {}, Sharing(replicas=5))] * 5,
    ],
)
def test_pods_that_share_a_gpu_make_exactly_one_gpu_hour(
    pods: list[tuple[dict[str, str], dict[str, str], Sharing]],
) -> None:
    periods = []
    for at, (limits, annotations, sharing) in enumerate(pods):
        gpus, share = weight(limits, annotations, sharing)
        periods.append(
            AllocationPeriod(
                pod_uid=f"p{at}", pod=f"p{at}", namespace="ml", node="a", workload_uid=f"p{at}",
                workload_kind="Pod", workload_name=f"p{at}", source="k8s", gpus=gpus, share=share,
                model="m", held=(0,), labels={}, annotations={}, start=HOUR, end=HOUR + 3600,
            )
        )  # fmt: skip
    capacity = [CapacityPeriod(node="a", gpus=2, model="m", start=HOUR, end=HOUR + 3600)]
    hour = roll_up(HOUR, periods, capacity, no_samples(), RollupPlan())
    assert hour.cluster.usage.allocated == GPU_HOUR
    assert gpu_hours(reference_allocations(HOUR, periods, capacity)) == 1
