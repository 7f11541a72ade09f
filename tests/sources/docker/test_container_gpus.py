"""The GPUs of a container, for all ways to select them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.node import FleetGpu
from gpufleet.sources.docker.container_gpus import (
    LABEL,
    ContainerGpus,
    GpuSelection,
    gpu_selection,
    min_gpu_count,
    resolve,
)
from gpufleet.sources.docker.engine import Container, ContainerConfig, DeviceFile, DeviceRequest, HostConfig

EIGHT = tuple(FleetGpu(index=index, uuid=f"GPU-{index}") for index in range(8))
ALL = GpuSelection(all=True)


def container(
    requests: list[DeviceRequest] | None = None,
    env: dict[str, str] | None = None,
    devices: tuple[str, ...] = (),
    runtime: str = "runc",
    labels: dict[str, str] | None = None,
) -> Container:
    return Container(
        id="c",
        host_config=HostConfig(requests, [DeviceFile(path) for path in devices], runtime),
        config=ContainerConfig(env=[f"{key}={value}" for key, value in (env or {}).items()], labels=labels),
    )


def gpus(**fields: Any) -> list[DeviceRequest]:
    return [DeviceRequest(capabilities=[["gpu"]], **fields)]


@pytest.mark.parametrize(
    ("made", "claim"),
    [
        (container(), GpuSelection()),
        (container(gpus(count=-1)), ALL),
        (container(gpus(count=2)), GpuSelection(("0", "1"))),
        (container(gpus(device_ids=["GPU-3", "5"])), GpuSelection(("GPU-3", "5"))),
        (container([DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]), ALL),
        (container([DeviceRequest(driver="cdi", device_ids=["amd.com/gpu=1"])]), GpuSelection(("1",))),
        (container([DeviceRequest(driver="cdi", device_ids=["vendor.com/nic=1"])]), GpuSelection()),
        (container(env={"NVIDIA_VISIBLE_DEVICES": "all"}), GpuSelection()),
        (container(env={"NVIDIA_VISIBLE_DEVICES": "all"}, runtime="nvidia"), ALL),
        (
            container(env={"NVIDIA_VISIBLE_DEVICES": "0,GPU-7"}, runtime="nvidia"),
            GpuSelection(("0", "GPU-7")),
        ),
        (container(env={"NVIDIA_VISIBLE_DEVICES": "void"}, runtime="nvidia"), GpuSelection()),
        (container(env={"AMD_VISIBLE_DEVICES": "2"}, runtime="amd"), GpuSelection(("2",))),
        (
            container(devices=("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")),
            GpuSelection(("1",)),
        ),
        (container(devices=("/dev/kfd", "/dev/dri")), ALL),
        (container(devices=("/dev/kfd", "/dev/dri/renderD129")), GpuSelection(("1",))),
        (
            container(devices=("/dev/kfd", "/dev/dri"), env={"ROCR_VISIBLE_DEVICES": "0,3"}),
            GpuSelection(("0", "3")),
        ),
        (container(devices=("/dev/dri",)), GpuSelection()),
        (container(labels={LABEL: "4, 5"}, requests=gpus(count=-1)), GpuSelection(("4", "5"))),
        (container(labels={LABEL: "none"}, requests=gpus(count=-1)), GpuSelection()),
    ],
)
def test_the_first_way_that_is_present_determines_the_gpus(made: Container, claim: GpuSelection) -> None:
    assert gpu_selection(made, ()) == claim


def test_podman_honours_the_variables_of_every_container() -> None:
    assert gpu_selection(container(env={"NVIDIA_VISIBLE_DEVICES": "1"}), ("amd", "nvidia")) == GpuSelection(
        ("1",)
    )


def test_known_names_are_resolved_to_indices() -> None:
    assert resolve(ALL, EIGHT) == ContainerGpus(8, tuple(range(8)))
    assert resolve(ALL, ()) == ContainerGpus(1, ())
    assert resolve(GpuSelection(("GPU-3", "0", "1:0", "GPU-x")), EIGHT) == ContainerGpus(4, (0, 1, 3))
    assert min_gpu_count([ALL, GpuSelection(("5", "GPU-a"))]) == 6
    assert min_gpu_count([]) == 0
    assert resolve(GpuSelection(("²", "99999999")), EIGHT) == ContainerGpus(2, ())
    assert min_gpu_count([GpuSelection(("²", "99999999"))]) == 2


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_arbitrary_input_is_accepted(value: str, id: str, label: str) -> None:
    for made in (
        container(env={"NVIDIA_VISIBLE_DEVICES": value}, runtime="nvidia"),
        container(gpus(device_ids=[id])),
        container(labels={LABEL: label}),
    ):
        claim = gpu_selection(made, ())
        had = resolve(claim, EIGHT)
        assert had.gpus >= len(had.indices)
        assert min_gpu_count([claim]) >= 0
