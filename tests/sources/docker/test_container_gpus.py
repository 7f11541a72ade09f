"""Which GPUs a container has, by all the ways in which it can be given some."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.node import FleetGpu
from gpufleet.sources.docker.container_gpus import (
    LABEL,
    ContainerGpus,
    GpuClaimOfContainer,
    claim_of,
    highest,
    holding,
)
from gpufleet.sources.docker.engine import Config, Container, DeviceFile, DeviceRequest, HostConfig

EIGHT = tuple(FleetGpu(index=index, uuid=f"GPU-{index}") for index in range(8))
ALL = GpuClaimOfContainer(everything=True)


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
        config=Config(env=[f"{key}={value}" for key, value in (env or {}).items()], labels=labels),
    )


def gpus(**said: Any) -> list[DeviceRequest]:
    return [DeviceRequest(capabilities=[["gpu"]], **said)]


@pytest.mark.parametrize(
    ("made", "claim"),
    [
        (container(), GpuClaimOfContainer()),
        (container(gpus(count=-1)), ALL),
        (container(gpus(count=2)), GpuClaimOfContainer(("0", "1"))),
        (container(gpus(device_ids=["GPU-3", "5"])), GpuClaimOfContainer(("GPU-3", "5"))),
        (container([DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]), ALL),
        (container([DeviceRequest(driver="cdi", device_ids=["amd.com/gpu=1"])]), GpuClaimOfContainer(("1",))),
        (container([DeviceRequest(driver="cdi", device_ids=["vendor.com/nic=1"])]), GpuClaimOfContainer()),
        (container(env={"NVIDIA_VISIBLE_DEVICES": "all"}), GpuClaimOfContainer()),
        (container(env={"NVIDIA_VISIBLE_DEVICES": "all"}, runtime="nvidia"), ALL),
        (
            container(env={"NVIDIA_VISIBLE_DEVICES": "0,GPU-7"}, runtime="nvidia"),
            GpuClaimOfContainer(("0", "GPU-7")),
        ),
        (container(env={"NVIDIA_VISIBLE_DEVICES": "void"}, runtime="nvidia"), GpuClaimOfContainer()),
        (container(env={"AMD_VISIBLE_DEVICES": "2"}, runtime="amd"), GpuClaimOfContainer(("2",))),
        (
            container(devices=("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")),
            GpuClaimOfContainer(("1",)),
        ),
        (container(devices=("/dev/kfd", "/dev/dri")), ALL),
        (container(devices=("/dev/kfd", "/dev/dri/renderD129")), GpuClaimOfContainer(("1",))),
        (
            container(devices=("/dev/kfd", "/dev/dri"), env={"ROCR_VISIBLE_DEVICES": "0,3"}),
            GpuClaimOfContainer(("0", "3")),
        ),
        (container(devices=("/dev/dri",)), GpuClaimOfContainer()),
        (container(labels={LABEL: "4, 5"}, requests=gpus(count=-1)), GpuClaimOfContainer(("4", "5"))),
        (container(labels={LABEL: "none"}, requests=gpus(count=-1)), GpuClaimOfContainer()),
    ],
)
def test_a_container_has_what_the_first_way_that_says_so_gives_it(
    made: Container, claim: GpuClaimOfContainer
) -> None:
    assert claim_of(made, ()) == claim


def test_podman_believes_the_variables_of_every_container() -> None:
    assert claim_of(container(env={"NVIDIA_VISIBLE_DEVICES": "1"}), ("amd", "nvidia")) == GpuClaimOfContainer(
        ("1",)
    )


def test_names_become_indices_as_far_as_they_are_known() -> None:
    assert holding(ALL, EIGHT) == ContainerGpus(8, tuple(range(8)))
    assert holding(ALL, ()) == ContainerGpus(1, ())
    assert holding(GpuClaimOfContainer(("GPU-3", "0", "1:0", "GPU-x")), EIGHT) == ContainerGpus(4, (0, 1, 3))
    assert highest([ALL, GpuClaimOfContainer(("5", "GPU-a"))]) == 6
    assert highest([]) == 0
    assert holding(GpuClaimOfContainer(("²", "99999999")), EIGHT) == ContainerGpus(2, ())
    assert highest([GpuClaimOfContainer(("²", "99999999"))]) == 2


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_whatever_people_write_there_nothing_breaks(value: str, id: str, label: str) -> None:
    for made in (
        container(env={"NVIDIA_VISIBLE_DEVICES": value}, runtime="nvidia"),
        container(gpus(device_ids=[id])),
        container(labels={LABEL: label}),
    ):
        claim = claim_of(made, ())
        had = holding(claim, EIGHT)
        assert had.gpus >= len(had.indices)
        assert highest([claim]) >= 0
