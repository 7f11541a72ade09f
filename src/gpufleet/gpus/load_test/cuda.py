"""The part of CUDA's driver API that the load test needs, through ctypes.

`libcuda.so.1` comes with NVIDIA's driver, so no toolkit has to be installed.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from gpufleet.errors import DevicesUnavailable

COMPUTE_MAJOR, COMPUTE_MINOR, MULTIPROCESSORS = 75, 76, 16
"""Attributes of a device, by their numbers in the driver API."""


class CudaError(Exception):
    """A call of the driver failed."""


def load_driver() -> Any:
    """Return NVIDIA's driver library; raise DevicesUnavailable if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DevicesUnavailable(
            "GPUs can't be tested: libcuda.so.1 of NVIDIA's driver is not there. "
            "In a container, its runtime must bring it (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        ) from error


class Cuda:
    """Calls of the driver that raise CudaError."""

    def __init__(self, library: Any) -> None:
        self._library = library
        try:
            self._call("cuInit", 0)
        except CudaError as error:
            raise DevicesUnavailable(f"GPUs can't be tested: {error}") from error

    def devices(self) -> list["CudaDevice"]:
        """Return the GPUs that this process may use."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [CudaDevice(self, ordinal) for ordinal in range(count.value)]

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'error').decode()} ({code})")


class CudaDevice:
    """One GPU; its memory, copies and kernels are usable inside `with device.context()`."""

    def __init__(self, cuda: Cuda, ordinal: int) -> None:
        self._cuda = cuda
        self._call = cuda._call
        self._handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._handle), ordinal)
        self.ordinal = ordinal

    @property
    def uuid(self) -> str:
        """The UUID as nvidia-smi prints it."""
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(raw), self._handle)
        return f"GPU-{UUID(bytes=bytes(raw))}"

    def attribute(self, number: int) -> int:
        """Return an attribute of the GPU."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._handle)
        return value.value

    def reaches(self, other: "CudaDevice") -> bool:
        """Return whether this GPU can access the memory of the other one."""
        value = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(value), self._handle, other._handle)
        return bool(value.value)

    @contextmanager
    def context(self) -> Iterator[ctypes.c_void_p]:
        """Make the GPU current in this thread."""
        context = ctypes.c_void_p()
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, self._handle)
        try:
            yield context
        finally:
            self._cuda._library.cuCtxDestroy_v2(context)

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def kernel(self, ptx: str, name: str) -> ctypes.c_void_p:
        """Compile PTX and return one of its kernels."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ptx.encode())
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    @contextmanager
    def memory(self, size: int) -> Iterator[ctypes.c_uint64]:
        """Allocate memory of the GPU."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            yield address
        finally:
            self._cuda._library.cuMemFree_v2(address)

    @contextmanager
    def host_memory(self, size: int) -> Iterator[ctypes.c_void_p]:
        """Allocate pinned memory of the machine."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        try:
            yield address
        finally:
            self._cuda._library.cuMemFreeHost(address)

    def write(self, address: ctypes.c_uint64, data: bytes) -> None:
        """Copy bytes to the GPU."""
        self._call("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))

    def read(self, address: ctypes.c_uint64, size: int) -> bytes:
        """Copy bytes from the GPU; waits for the kernels before."""
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size))
        return data.raw

    def copy_in(self, to: ctypes.c_uint64, source: ctypes.c_void_p, size: int) -> None:
        """Start a copy from pinned memory to the GPU."""
        self._call("cuMemcpyHtoDAsync_v2", to, source, ctypes.c_size_t(size), None)

    def copy_out(self, to: ctypes.c_void_p, source: ctypes.c_uint64, size: int) -> None:
        """Start a copy from the GPU to pinned memory."""
        self._call("cuMemcpyDtoHAsync_v2", to, source, ctypes.c_size_t(size), None)

    def copy_to_peer(
        self,
        to: ctypes.c_uint64,
        there: ctypes.c_void_p,
        source: ctypes.c_uint64,
        here: ctypes.c_void_p,
        size: int,
    ) -> None:
        """Start a copy to the memory of another GPU."""
        self._call("cuMemcpyPeerAsync", to, there, source, here, ctypes.c_size_t(size), None)

    def launch(
        self,
        kernel: ctypes.c_void_p,
        blocks: int,
        threads: int,
        arguments: Sequence["ctypes._SimpleCData[Any]"],
    ) -> None:
        """Start a kernel."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(each), ctypes.c_void_p) for each in arguments)
        )
        self._call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Measure on the GPU how long the work started in the block takes: one number of seconds."""
        start, end = ctypes.c_void_p(), ctypes.c_void_p()
        seconds: list[float] = []
        for event in (start, end):
            self._call("cuEventCreate", ctypes.byref(event), 0)
        try:
            self._call("cuEventRecord", start, None)
            yield seconds
            self._call("cuEventRecord", end, None)
            self._call("cuEventSynchronize", end)
            milliseconds = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
            seconds.append(milliseconds.value / 1000)
        finally:
            for event in (start, end):
                self._cuda._library.cuEventDestroy_v2(event)
