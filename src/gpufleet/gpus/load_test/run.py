"""Run the load test on GPUs, and judge it together with what the driver counted meanwhile."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpufleet.errors import InvalidRequest
from gpufleet.gpus.drivers.reader import DeviceReader
from gpufleet.gpus.load_test.cuda import Cuda, CudaDevice, CudaError
from gpufleet.gpus.load_test.expected import memory_gbps, pcie_gbps
from gpufleet.gpus.load_test.steps import (
    Result,
    check_memory,
    check_multiplication,
    check_pcie,
    check_peer,
)
from gpufleet.model.device import Device, DeviceReading, Link

_COUNTERS = {
    "ecc_uncorrected": "uncorrectable memory errors",
    "remapped_rows_uncorrected": "rows remapped after uncorrectable errors",
}


@dataclass(frozen=True)
class Plan:
    """What is tested, and how long."""

    gpus: Sequence[str] = ()
    """UUIDs or indexes; all if empty."""
    seconds: float = 15.0
    """How long matrices are multiplied on each GPU."""
    in_use: bool = False
    """Whether GPUs with processes are tested too."""


def run_load_test(
    reader: DeviceReader, cuda: Cuda, plan: Plan, least_tflops: Callable[[str], float | None]
) -> Iterator[tuple[Device, Result]]:
    """Test one GPU after the other; yield each result when it is known."""
    visible = {device.uuid: device for device in cuda.devices()}
    tested = _selected(reader.inventory(), plan.gpus)
    busy = {process.index: process.pid for process in reader.processes()}
    for gpu in tested:
        reason = _not_testable(gpu, visible, busy if not plan.in_use else {})
        if reason:
            yield gpu, Result("load test", False, detail=reason)
            continue
        before = _reading(reader, gpu)
        for result in _test(visible[gpu.uuid], gpu, plan.seconds, least_tflops(gpu.model or "")):
            yield gpu, result
        yield gpu, _counted(before, _reading(reader, gpu))
    testable = [gpu for gpu in tested if gpu.uuid in visible and not gpu.fault]
    for gpu, other in zip(testable, testable[1:] + testable[:1], strict=True):
        here, there = visible[gpu.uuid], visible[other.uuid]
        if gpu is not other and here.reaches(there):
            for result in _guarded("NVLink", partial(check_peer, here, there, _nvlink_gbps(gpu.links))):
                yield gpu, result


def _selected(inventory: Sequence[Device], names: Sequence[str]) -> list[Device]:
    by_name = {name: gpu for gpu in inventory for name in (gpu.uuid, str(gpu.index))}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in inventory)
        raise InvalidRequest(f"no GPU {unknown[0]!r} on this machine; there are {known}")
    return [by_name[name] for name in names] if names else list(inventory)


def _not_testable(gpu: Device, visible: dict[str, CudaDevice], busy: dict[int, int]) -> str:
    if gpu.fault:
        return gpu.fault
    if gpu.mig_enabled:
        return "not tested: the GPU is divided into MIG instances"
    if gpu.uuid not in visible:
        return "not tested: CUDA does not list the GPU (CUDA_VISIBLE_DEVICES, or it is lost)"
    if gpu.index in busy:
        return f"not tested: process {busy[gpu.index]} uses the GPU; end it, or give --in-use"
    return ""


def _test(device: CudaDevice, gpu: Device, seconds: float, least_tflops: float | None) -> Iterator[Result]:
    least_pcie = pcie_gbps(gpu.pcie_generation, gpu.pcie_width)
    steps = {
        "PCIe": partial(check_pcie, device, least_pcie),
        "memory": partial(check_memory, device, memory_gbps(gpu.model or "")),
        "matrix multiplication": partial(check_multiplication, device, seconds, least_tflops),
    }
    for name, step in steps.items():
        yield from _guarded(name, partial(_in_context, device, step))


def _in_context(device: CudaDevice, step: Callable[[], Iterator[Result]]) -> Iterator[Result]:
    # Each step has a context of its own: an error of one leaves it unusable, not the next.
    with device.context():
        yield from step()


def _guarded(name: str, step: Callable[[], Iterator[Result]]) -> Iterator[Result]:
    try:
        yield from step()
    except CudaError as error:
        yield Result(name, False, detail=str(error))


def _reading(reader: DeviceReader, gpu: Device) -> DeviceReading | None:
    return next((reading for reading in reader.readings() if reading.uuid == gpu.uuid), None)


def _counted(before: DeviceReading | None, after: DeviceReading | None) -> Result:
    """Return whether the driver counted errors during the test."""
    step = "errors counted by the driver"
    if before is None or after is None or after.fault:
        return Result(step, False, detail=(after and after.fault) or "the driver no longer reads the GPU")
    found = []
    for field, text in _COUNTERS.items():
        was, now = getattr(before, field), getattr(after, field)
        if was is not None and now is not None and now > was:
            found.append(f"{now - was} {text}")
    if after.remap_failed:
        found.append("a row could not be remapped")
    return Result(step, not found, float(len(found)), "kinds", detail="; ".join(found))


def _nvlink_gbps(links: Sequence[Link]) -> float | None:
    """Return what a copy over all links must reach in one direction; None if their speed is unknown."""
    speeds = [link.bandwidth_gbps for link in links if link.bandwidth_gbps is not None]
    return 0.8 * sum(speeds) / 2 if speeds and len(speeds) == len(links) else None
