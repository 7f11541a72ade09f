"""What the kubelet's device manager has written down."""

import json
from pathlib import Path

import pytest
from tests.agent.test_pod_logs import pod

from gpufleet.agent.holders import by_gpu
from gpufleet.agent.kubelet import plugged
from gpufleet.errors import KubernetesUnavailable
from gpufleet.model.device import Device, MigInstance, Vendor

DEVICES = (
    Device(0, "GPU-a", Vendor.NVIDIA),
    Device(1, "GPU-b", Vendor.NVIDIA, mig=(MigInstance(0, "MIG-1", "1g.10gb"),)),
)


def checkpoint(path: Path, *entries: tuple[str, object]) -> Path:
    written = [
        {
            "PodUID": uid,
            "ContainerName": "main",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": ids,
            "AllocResp": "CkEK",
        }
        for uid, ids in entries
    ]
    body = {"Data": {"PodDeviceEntries": written, "RegisteredDevices": {}}, "Checksum": 3912489023}
    path.write_text(json.dumps(body))
    return path


def test_devices_are_told_by_pod_with_and_without_numa_nodes(tmp_path: Path) -> None:
    path = checkpoint(
        tmp_path / "c", ("u1", {"0": ["GPU-a"], "-1": ["MIG-1"]}), ("u2", ["GPU-b::3"]), ("u1", None)
    )
    assert plugged(path) == {"u1": {"GPU-a", "MIG-1"}, "u2": {"GPU-b::3"}}


def test_gpus_shared_by_replicas_and_instances_are_found_and_pods_that_are_over_are_not(
    tmp_path: Path,
) -> None:
    told = {"u1": {"GPU-a", "MIG-1"}, "u2": {"GPU-b::3"}, "over": {"GPU-a"}, "u3": {"FPGA-1"}}
    pods = [pod(uid="u1"), pod("b", "u2"), pod("c", "u3")]
    assert by_gpu(told, pods, DEVICES) == {0: ("u1",), 1: ("u1", "u2")}


def test_a_machine_without_a_kubelet_has_nothing_to_tell(tmp_path: Path) -> None:
    assert plugged(tmp_path / "nothing") == {}
    checkpoint(tmp_path / "c")
    assert plugged(tmp_path / "c") == {}


def test_a_file_that_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("{")
    with pytest.raises(KubernetesUnavailable, match="checkpoint"):
        plugged(tmp_path / "c")
