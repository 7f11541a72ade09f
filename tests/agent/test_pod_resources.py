"""PodResources of the kubelet, from a real gRPC server."""

import asyncio
import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, SettingsFrame
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.pod_resources import Devices, kubelet, response
from tests.agent.test_pod_logs import pod

from gpufleet.agent.gpu_holders import by_gpu
from gpufleet.agent.pod_resources import decode, list_plugin_devices
from gpufleet.errors import KubernetesUnavailable
from gpufleet.model.device import Device, MigInstance, Vendor

DEVICES = (
    Device(0, "GPU-a", Vendor.NVIDIA),
    Device(1, "GPU-b", Vendor.NVIDIA, mig=(MigInstance(0, "MIG-1", "1g.10gb"),)),
    Device(2, "c0ffee", Vendor.AMD, pci_bus_id="0000:c1:00.0"),
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


async def test_devices_are_listed_by_pod(tmp_path: Path) -> None:
    devices: Devices = {
        ("jobs", "train-0"): ["GPU-a", "MIG-1"],
        ("jobs", "train-1"): ["GPU-b::3"],
        ("x", "y"): [],
    }
    with kubelet(tmp_path / "s", lambda _context: response(devices)):
        found = await list_plugin_devices(tmp_path / "s")
    assert found == {("jobs", "train-0"): {"GPU-a", "MIG-1"}, ("jobs", "train-1"): {"GPU-b::3"}}


async def test_a_response_longer_than_the_http2_window_is_complete(tmp_path: Path) -> None:
    devices: Devices = {("jobs", f"train-{i}"): [f"GPU-{i}-{j}" for j in range(8)] for i in range(5000)}
    assert response(devices).ByteSize() > 1_000_000
    with kubelet(tmp_path / "s", lambda _context: response(devices)):
        found = await list_plugin_devices(tmp_path / "s", deadline=60)
    assert found == {name: set(ids) for name, ids in devices.items()}


async def test_an_error_has_the_kubelets_message(tmp_path: Path) -> None:
    def refuse(context: Any) -> None:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit, 100%")

    with (
        kubelet(tmp_path / "s", refuse),
        pytest.raises(KubernetesUnavailable, match=r"gRPC status 8: rejected by rate limit, 100%"),
    ):
        await list_plugin_devices(tmp_path / "s")


async def test_a_kubelet_that_hangs_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    done = threading.Event()

    def hang(_context: Any) -> Any:
        done.wait(30)
        return response({})

    with kubelet(tmp_path / "s", hang):
        try:
            with pytest.raises(KubernetesUnavailable, match=r"within 0\.3 s|gRPC status 4"):
                await list_plugin_devices(tmp_path / "s", deadline=0.3)
        finally:
            done.set()


@pytest.mark.parametrize(
    "frame",
    [
        GoAwayFrame(0, last_stream_id=2**31 - 1),
        GoAwayFrame(0, last_stream_id=0, error_code=11),
        DataFrame(1, b"x" * 20_000),
    ],
)
async def test_a_connection_that_ends_before_the_response_is_a_failed_call(
    tmp_path: Path, frame: Frame
) -> None:
    left = asyncio.Event()

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64 * 1024)
        for byte in SettingsFrame(0).serialize() + frame.serialize():
            writer.write(bytes([byte]))
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_unix_server(leave, tmp_path / "s"):
        with pytest.raises(KubernetesUnavailable, match="Connection lost"):
            await list_plugin_devices(tmp_path / "s")
        await left.wait()


async def test_a_missing_service_is_reported(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(_close, tmp_path / "closing")
    async with server:
        with pytest.raises(KubernetesUnavailable, match="Connection lost"):
            await list_plugin_devices(tmp_path / "closing")
    server = await asyncio.start_unix_server(_speak_nonsense, tmp_path / "nonsense")
    async with server:
        with pytest.raises(KubernetesUnavailable, match="Connection lost"):
            await list_plugin_devices(tmp_path / "nonsense")
    with pytest.raises(KubernetesUnavailable, match=r"nothing: No such file"):
        await list_plugin_devices(tmp_path / "nothing")
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "left"))
    with pytest.raises(KubernetesUnavailable, match="refused"):
        await list_plugin_devices(tmp_path / "left")


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(64 * 1024)
    writer.close()


async def _speak_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(bytes(9))  # data that belongs to no stream
    await writer.drain()
    writer.close()


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.tuples(NAMES, NAMES), st.lists(NAMES, max_size=4), max_size=5))
def test_messages_of_the_protobuf_library_are_decoded(devices: Devices) -> None:
    expected = {name: set(ids) for name, ids in devices.items() if ids}
    assert decode(response(devices).SerializeToString()) == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_a_malformed_response_raises_value_error(noise: bytes, cut: int) -> None:
    whole = response({("jobs", "a"): ["GPU-a"], ("jobs", "b"): ["GPU-b"]}).SerializeToString()
    for broken in (noise, whole[:cut], whole[:cut] + noise):
        with contextlib.suppress(ValueError):
            assert all(isinstance(ids, set) for ids in decode(broken).values())


def test_gpus_of_resource_claims_are_decoded_and_resolved() -> None:
    answer = response({("jobs", "a"): []})
    claim = answer.pod_resources[0].containers[1].dynamic_resources.add(claim_name="two")
    for name in ("gpu-0", "gpu-1"):
        claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node-a", device_name=name)
    found = decode(answer.SerializeToString())
    assert found == {("jobs", "a"): {"gpu.nvidia.com/node-a/gpu-0", "gpu.nvidia.com/node-a/gpu-1"}}
    known = {"gpu.nvidia.com/node-a/gpu-1": 2}
    assert by_gpu(found, [pod("a", "u1")], DEVICES, known) == {2: ("u1",)}


def test_devices_of_hami_and_gke_are_resolved() -> None:
    devices = {("jobs", "a"): {"GPU-b-7"}, ("jobs", "b"): {"nvidia0/gi1"}}
    assert by_gpu(devices, [pod("a", "u1"), pod("b", "u2")], DEVICES) == {0: ("u2",), 1: ("u1",)}


def test_replicas_and_mig_instances_are_resolved_and_ended_pods_are_ignored() -> None:
    devices = {
        ("jobs", "a"): {"GPU-a", "MIG-1"},
        ("jobs", "b"): {"GPU-b::3", "0000:c1:00.0"},
        ("jobs", "over"): {"GPU-a"},
        ("jobs", "c"): {"FPGA-1"},
        ("other", "a"): {"c0ffee"},
    }
    pods = [pod("a", "u1"), pod("b", "u2"), pod("c", "u3")]
    assert by_gpu(devices, pods, DEVICES) == {0: ("u1",), 1: ("u1", "u2"), 2: ("u2",)}
