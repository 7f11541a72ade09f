"""The steps of the load test on one GPU; each measures and compares with what its model should reach."""

import ctypes
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from gpufleet.gpus.load_test.cuda import COMPUTE_MAJOR, MULTIPROCESSORS, CudaDevice
from gpufleet.gpus.load_test.kernels import MEMORY, SUMMED, THREADS, TILES, multiply_kernel
from gpufleet.gpus.load_test.matrices import OPERATIONS, fragments_and_sums

CHUNK = 4 * 2**30
"""Bytes of one allocation."""

LEFT_FREE = 512 * 2**20
"""Bytes that are not tested: the driver needs some memory for itself."""

COPIED = 256 * 2**20
"""Bytes of one copy over PCIe or NVLink."""

COPIES = 8
MEMORY_PASSES = 4
BLOCKS_PER_MULTIPROCESSOR = 4
WARP = 32


@dataclass(frozen=True)
class Result:
    """What a step found; `passed` is None if there is nothing to compare with."""

    step: str
    passed: bool | None
    value: float | None = None
    unit: str = ""
    least: float | None = None
    detail: str = ""


def compared(step: str, value: float, unit: str, least: float | None) -> Result:
    """Return the result of a measurement that should reach `least`."""
    return Result(step, None if least is None else value >= least, value, unit, least)


def check_memory(device: CudaDevice, least_gbps: float | None) -> Iterator[Result]:
    """Write patterns to all free memory and read them back."""
    fill, verify = (device.kernel(MEMORY, name) for name in ("fill", "verify"))
    blocks = device.attribute(MULTIPROCESSORS) * 2 * BLOCKS_PER_MULTIPROCESSOR
    with ExitStack() as stack:
        errors = stack.enter_context(device.memory(16))
        device.write(errors, bytes(16))
        left, chunks = device.free_bytes() - LEFT_FREE, list[tuple[ctypes.c_uint64, int]]()
        while left >= 2**20:
            size = min(left, CHUNK) // 2**20 * 2**20
            chunks.append((stack.enter_context(device.memory(size)), size))
            left -= size
        total = sum(size for _, size in chunks)
        written, read = list[float](), list[float]()
        for number in range(MEMORY_PASSES):
            seeds = [ctypes.c_uint32(number * 0x1234567 + at * 0x89ABCDE) for at in range(len(chunks))]
            with device.timed() as seconds:
                for (memory, size), seed in zip(chunks, seeds, strict=True):
                    device.launch(fill, blocks, THREADS, (memory, ctypes.c_uint64(size // 16), seed))
            written.append(total / seconds[0] / 1e9)
            with device.timed() as seconds:
                for (memory, size), seed in zip(chunks, seeds, strict=True):
                    arguments = (memory, ctypes.c_uint64(size // 16), seed, errors)
                    device.launch(verify, blocks, THREADS, arguments)
            read.append(total / seconds[0] / 1e9)
        count, last = struct.unpack("<2Q", device.read(errors, 16))
    detail = f"{total / 2**30:.1f} GiB written and read {MEMORY_PASSES} times"
    if count:
        detail += f"; {count} words of 16 bytes were wrong, one of them at {last:#x}"
    yield Result("memory", not count, float(count), "errors", detail=detail)
    yield compared("memory written", max(written), "GB/s", least_gbps)
    yield compared("memory read", max(read), "GB/s", least_gbps)


def check_multiplication(
    device: CudaDevice,
    seconds: float,
    least_tflops: float | None,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """Multiply matrices with known results on all tensor cores for some seconds."""
    if device.attribute(COMPUTE_MAJOR) < 8:
        yield Result("matrix multiplication", None, detail="not tested: needs an Ampere GPU or a newer one")
        return
    kernel = device.kernel(multiply_kernel(), "multiply")
    blocks = device.attribute(MULTIPROCESSORS) * BLOCKS_PER_MULTIPROCESSOR
    factors, sums = fragments_and_sums(seed=7)
    rates = list[float]()
    with device.memory(len(factors)) as left, device.memory(len(sums)) as right, device.memory(16) as errors:
        device.write(left, factors)
        device.write(right, sums)
        device.write(errors, bytes(16))
        rounds, end = 64, now() + seconds
        while now() < end:
            with device.timed() as taken:
                device.launch(kernel, blocks, THREADS, (left, right, ctypes.c_uint32(rounds), errors))
            operations = blocks * (THREADS // WARP) * rounds * SUMMED * TILES * OPERATIONS
            rates.append(operations / taken[0] / 1e12)
            # About a fifth of a second per launch: short enough to stop in time, long enough to be busy.
            rounds = max(1, min(rounds * 4, round(rounds * 0.2 / taken[0])))
        count, last = struct.unpack("<2Q", device.read(errors, 16))
    detail = f"{len(rates)} launches in {seconds:.0f} s"
    if count:
        detail += f"; {count} sums were wrong, one of them on multiprocessor {last}"
    yield Result("matrix multiplication", not count, float(count), "errors", detail=detail)
    yield compared("matrix multiplication rate", sorted(rates)[len(rates) // 2], "TFLOP/s", least_tflops)


def check_pcie(device: CudaDevice, least_gbps: float | None) -> Iterator[Result]:
    """Copy to the GPU and back."""
    with device.memory(COPIED) as memory, device.host_memory(COPIED) as host:
        yield _copies(device, "PCIe to the GPU", partial(device.copy_in, memory, host, COPIED), least_gbps)
        yield _copies(device, "PCIe from the GPU", partial(device.copy_out, host, memory, COPIED), least_gbps)


def check_peer(device: CudaDevice, other: CudaDevice, least_gbps: float | None) -> Iterator[Result]:
    """Copy from this GPU to another one, over NVLink where they are connected by it."""
    with (
        other.context() as there,
        other.memory(COPIED) as target,
        device.context() as here,
        device.memory(COPIED) as source,
    ):
        copy = partial(device.copy_to_peer, target, there, source, here, COPIED)
        yield _copies(device, f"copy to GPU {other.ordinal}", copy, least_gbps)


def _copies(device: CudaDevice, step: str, copy: Callable[[], None], least_gbps: float | None) -> Result:
    copy()
    with device.timed() as seconds:
        for _ in range(COPIES):
            copy()
    return compared(step, COPIES * COPIED / seconds[0] / 1e9, "GB/s", least_gbps)
