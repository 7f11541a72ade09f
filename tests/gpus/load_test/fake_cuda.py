"""A driver library in memory, with the faults that a load test must find."""

import ctypes
import struct
from typing import Any
from uuid import UUID

import numpy as np

from gpufleet.gpus.load_test.kernels import SUMMED, TILES

MEMORY = 8 * 2**20
"""Free memory beyond what the test leaves alone."""


class FakeCuda:
    """Behaves like `libcuda.so.1` with GPUs of 4 multiprocessors."""

    def __init__(self, *uuids: str) -> None:
        self._uuids = uuids
        self._memory: dict[int, np.ndarray[Any, Any]] = {}
        self._next = 2**20
        self._clock = 0.0
        self.slow: set[str] = set()
        """What takes ten times longer: `memory`, `copy`, `multiply`."""
        self.stuck_bit_at: int | None = None
        """Offset of a word in the first allocation of which one bit is always 0."""
        self.wrong_sums = False
        self.fails: dict[str, int] = {}
        """Error codes by call."""
        self.major = 9
        self.freed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if (code := self.fails.get(name, 0)) == 0:
                method = getattr(type(self), "_" + name.removesuffix("_v2"), None)
                if method is not None:
                    method(self, *arguments)
            return code

        return call

    def _cuGetErrorName(self, code: int, text: Any) -> None:
        text._obj.value = f"CUDA_ERROR_{code}".encode()

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = len(self._uuids)

    def _cuDeviceGet(self, handle: Any, ordinal: int) -> None:
        handle._obj.value = ordinal

    def _cuDeviceGetUuid(self, raw: Any, handle: Any) -> None:
        raw._obj[:] = UUID(self._uuids[handle.value].removeprefix("GPU-")).bytes

    def _cuDeviceGetAttribute(self, value: Any, number: int, handle: Any) -> None:
        value._obj.value = {75: self.major, 76: 0, 16: 4}[number]

    def _cuDeviceCanAccessPeer(self, value: Any, handle: Any, other: Any) -> None:
        value._obj.value = 1

    def _cuMemGetInfo(self, free: Any, total: Any) -> None:
        free._obj.value = total._obj.value = 512 * 2**20 + MEMORY

    def _cuMemAlloc(self, address: Any, size: Any) -> None:
        address._obj.value = self._next
        if size.value <= MEMORY:
            self._memory[self._next] = np.zeros(size.value // 4, np.uint32)
        self._next += size.value

    def _cuMemFree(self, address: Any) -> None:
        self.freed.append(address.value)

    def _cuMemcpyHtoD(self, address: Any, data: bytes, size: Any) -> None:
        self._memory[address.value][:] = np.frombuffer(data, np.uint32)

    def _cuMemcpyDtoH(self, data: Any, address: Any, size: Any) -> None:
        data.raw = self._memory[address.value].tobytes()

    def _cuMemcpyHtoDAsync(self, to: Any, source: Any, size: Any, stream: Any) -> None:
        self._clock += size.value / 55e9 * (10 if "copy" in self.slow else 1)

    def _cuMemcpyDtoHAsync(self, to: Any, source: Any, size: Any, stream: Any) -> None:
        self._cuMemcpyHtoDAsync(to, source, size, stream)

    def _cuMemcpyPeerAsync(self, to: Any, there: Any, source: Any, here: Any, size: Any, stream: Any) -> None:
        self._clock += size.value / 400e9

    def _cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> None:
        function._obj.value = {b"fill": 1, b"verify": 2, b"multiply": 3}[name]

    def _cuLaunchKernel(self, kernel: Any, blocks: int, *rest: Any) -> None:
        threads, pointers = rest[2], rest[7]
        kinds = {
            1: (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32),
            2: (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64),
            3: (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64),
        }[kernel.value]
        values = [ctypes.cast(p, ctypes.POINTER(k))[0] for p, k in zip(pointers, kinds, strict=True)]
        if kernel.value == 3:
            self._multiply(blocks * threads // 32, *values)
        else:
            self._walk(kernel.value == 2, *values)

    def _walk(self, verify: bool, address: int, words: int, seed: int, errors: int = 0) -> None:
        index = np.arange(words, dtype=np.uint32)
        first = index * np.uint32(0x9E3779B1) + np.uint32(seed)
        first ^= first >> np.uint32(15)
        columns = (first, ~first, first + np.uint32(0x9E3779B1), first ^ np.uint32(0x5A5A5A5A))
        pattern = np.stack(columns, axis=1).reshape(-1)
        memory = self._memory[address]
        self._clock += 16 * words / 4.4e12 * (10 if "memory" in self.slow else 1)
        if not verify:
            memory[:] = pattern
            if self.stuck_bit_at is not None:
                memory[self.stuck_bit_at] &= np.uint32(0xFFFFFFFE)
            return
        wrong = np.flatnonzero((memory != pattern).reshape(-1, 4).any(axis=1))
        if len(wrong):
            self._report(errors, len(wrong), address + 16 * int(wrong[-1]))

    def _multiply(self, warps: int, factors: int, sums: int, rounds: int, errors: int) -> None:
        self._clock += (
            warps * rounds * SUMMED * TILES * 4096 / 650e12 * (10 if "multiply" in self.slow else 1)
        )
        lanes = self._memory[factors].tobytes()
        expected = self._memory[sums].tobytes()
        for tile in range(TILES):
            left, right = np.zeros((16, 16)), np.zeros((16, 8))
            for lane in range(32):
                halves = struct.unpack_from("<12e", lanes, 24 * (TILES * lane + tile))
                row, column = lane // 4, lane % 4 * 2
                for i, (r, c) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
                    left[row + r, column + c : column + c + 2] = halves[2 * i : 2 * i + 2]
                for i in range(2):
                    right[column + 8 * i : column + 8 * i + 2, row] = halves[8 + 2 * i : 10 + 2 * i]
            product = left @ right * SUMMED
            if self.wrong_sums:
                product[3, 3] += 1
            for lane in range(32):
                row, column = lane // 4, lane % 4 * 2
                got = (*product[row, column : column + 2], *product[row + 8, column : column + 2])
                if got != struct.unpack_from("<4f", expected, 16 * (TILES * lane + tile)):
                    self._report(errors, 1, 2)

    def _report(self, errors: int, count: int, where: int) -> None:
        known, _ = struct.unpack("<2Q", self._memory[errors].tobytes())
        self._memory[errors][:] = np.frombuffer(struct.pack("<2Q", known + count, where), np.uint32)

    def _cuEventRecord(self, event: Any, stream: Any) -> None:
        event.value = int(self._clock * 1e9) + 1

    def _cuEventElapsedTime(self, milliseconds: Any, start: Any, end: Any) -> None:
        milliseconds._obj.value = (end.value - start.value) / 1e6
