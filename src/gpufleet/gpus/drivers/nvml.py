"""NVIDIA GPUs through NVML (nvidia-ml-py).

Each NVML call may fail on its own: NotSupported with MIG or on small cards, FunctionNotFound with an old
driver. Such a failure leaves one field empty. GPU_IS_LOST and RESET_REQUIRED are faults of one GPU. Only
failures of the driver as a whole raise an error.

Memory is read like nvidia-smi does (v2: memory reserved by the driver is not "used"). Rare counters come
in one call by field id, each with its own status.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from gpufleet.errors import DevicesUnavailable, DriverMismatch
from gpufleet.gpus import pci
from gpufleet.gpus.drivers.nvml_fabric import read_fabric
from gpufleet.gpus.drivers.nvml_links import active_links, read_links
from gpufleet.gpus.drivers.nvml_mig import read_mig
from gpufleet.gpus.known_gpus import placeholder_uuid
from gpufleet.gpus.processes import ProcessTable
from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading, EventKind, Vendor

_GPU_FAULTS = {
    15: "the GPU is lost: it fell off the bus or is inaccessible",
    16: "the GPU needs a reset",
    28: "the driver cannot find the GPU",
}
_DRIVER_FAULTS = {1, 9, 12, 18}
"""Uninitialized, driver not loaded, library not found, library and driver versions differ."""
_TIMEOUT, _MISMATCH = 10, 18

_THROTTLES = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
    0x100: "display-clocks",
}
_RECOVERY = {0: "none", 1: "reset", 2: "reboot", 3: "drain", 4: "drain-and-reset", 6: "reset", 7: "reboot"}

_ECC_CORRECTED, _ECC_UNCORRECTED, _ENERGY = 3, 4, 83
_REMAPPED_CORRECTED, _REMAPPED_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED = 142, 143, 144, 145
_RECOVERY_ACTION, _NVLINK_RECOVERIES = 230, 59
_FIELDS = (
    _ECC_CORRECTED,
    _ECC_UNCORRECTED,
    _ENERGY,
    _REMAPPED_CORRECTED,
    _REMAPPED_UNCORRECTED,
    _REMAP_PENDING,
    _REMAP_FAILED,
    _RECOVERY_ACTION,
    _NVLINK_RECOVERIES,
)
_HEALTH_FIELDS = (_ECC_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED, _RECOVERY_ACTION)
_UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class _GpuFault(Exception):
    """The GPU as a whole does not respond."""


class NvmlReader:
    """Read NVIDIA GPUs; raise DevicesUnavailable if there is no usable driver."""

    simulated = False

    def __init__(self, processes: ProcessTable | None = None, now: Callable[[], float] = time.time) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise DevicesUnavailable("NVIDIA GPUs can't be read: nvidia-ml-py is not installed") from error
        self._nvml = pynvml
        self._now = now
        self._processes = processes or ProcessTable()
        self._events: Any = None
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        with self._driver():
            pynvml.nvmlInit()
            versions = pynvml.nvmlSystemGetNVMLVersion(), pynvml.nvmlSystemGetDriverVersion()
        self.name = "NVML {}, driver {}".format(*versions)

    def inventory(self) -> tuple[Device, ...]:
        """See `DeviceReader.inventory`."""
        return tuple(self._device(index) for index in range(self._count()))

    def readings(self) -> tuple[DeviceReading, ...]:
        """See `DeviceReader.readings`."""
        return tuple(self._reading(index) for index in range(self._count()))

    def health(self) -> tuple[object, ...]:
        """See `DeviceReader.health`: counters, NVLinks, the fabric, the PCIe width, or why a GPU is lost."""
        return tuple(self._health(index) for index in range(self._count()))

    def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """See `DeviceReader.processes`."""
        rows: dict[tuple[int, int, str | None], DeviceProcess] = {}
        for index in range(self._count()):
            try:
                for row in self._processes_of(index):
                    rows.setdefault((row.index, row.pid, row.mig_uuid), row)
            except _GpuFault:
                continue
        return self._processes.describe(rows.values(), identify)

    def events(self, timeout: float) -> tuple[DeviceEvent, ...]:
        """See `DeviceReader.events`; return the XIDs that NVML calls critical."""
        if self._events is None:
            self._events = self._subscribe()
        found: list[DeviceEvent] = []
        milliseconds = round(timeout * 1000)
        while (event := self._next_event(milliseconds)) is not None:
            found.append(event)
            milliseconds = 0
        return tuple(found)

    def close(self) -> None:
        """See `DeviceReader.close`."""
        if self._events:
            self._query(self._nvml.nvmlEventSetFree, self._events)
        with self._driver():
            self._nvml.nvmlShutdown()

    def _device(self, index: int) -> Device:
        nvml, query = self._nvml, self._query
        try:
            handle = self._handle(index)
            info = query(nvml.nvmlDeviceGetPciInfo, handle)
            address = pci.bus_id(info.busId) if info else None
            mode = query(nvml.nvmlDeviceGetMigMode, handle)
            memory = self._memory(handle)
            model = query(nvml.nvmlDeviceGetName, handle)
            if memory is None and model is None:
                raise _GpuFault("the GPU does not respond")
            return Device(
                index=index,
                uuid=self._uuids[index],
                vendor=Vendor.NVIDIA,
                model=model,
                memory_bytes=memory.total if memory else None,
                pci_bus_id=address,
                numa_node=pci.numa_node(address) if address else None,
                minor=query(nvml.nvmlDeviceGetMinorNumber, handle),
                mig_enabled=bool(mode[0]) if mode else None,
                mig=read_mig(nvml, query, handle) if mode and mode[0] else (),
                links=read_links(nvml, query, handle),
                pcie_generation=query(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
                pcie_width=query(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            )
        except _GpuFault as fault:
            uuid = self._uuids.get(index, placeholder_uuid(index))
            return Device(index=index, uuid=uuid, vendor=Vendor.NVIDIA, fault=str(fault))

    def _reading(self, index: int) -> DeviceReading:
        at = self._now()
        try:
            return self._read(self._handle(index), index, at)
        except _GpuFault as fault:
            uuid = self._uuids.get(index, placeholder_uuid(index))
            return DeviceReading(uuid=uuid, index=index, at=at, fault=str(fault))

    def _read(self, handle: Any, index: int, at: float) -> DeviceReading:
        nvml, query = self._nvml, self._query
        usage = query(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._memory(handle)
        power = query(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = query(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        fields = self._fields(handle)
        energy = fields.get(_ENERGY)
        throttles = self._throttles(handle)
        fabric = read_fabric(nvml, query, handle)
        return DeviceReading(
            uuid=self._uuids[index],
            index=index,
            at=at,
            utilization_percent=usage.gpu if usage else None,
            memory_utilization_percent=usage.memory if usage else None,
            memory_used_bytes=memory.used if memory else None,
            memory_free_bytes=memory.free if memory else None,
            memory_total_bytes=memory.total if memory else None,
            temperature_celsius=self._temperature(handle),
            power_watts=power / 1000 if power is not None else None,
            power_limit_watts=limit / 1000 if limit is not None else None,
            energy_joules=energy / 1000 if energy is not None else None,
            sm_clock_mhz=query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            ecc_corrected=fields.get(_ECC_CORRECTED),
            ecc_uncorrected=fields.get(_ECC_UNCORRECTED),
            remapped_rows_corrected=fields.get(_REMAPPED_CORRECTED),
            remapped_rows_uncorrected=fields.get(_REMAPPED_UNCORRECTED),
            remap_pending=_flag(fields.get(_REMAP_PENDING)),
            remap_failed=_flag(fields.get(_REMAP_FAILED)),
            recovery_action=_RECOVERY.get(fields.get(_RECOVERY_ACTION, -1)),
            throttle_reasons=throttles,
            pcie_generation=query(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            pcie_width=query(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            nvlink_recoveries=fields.get(_NVLINK_RECOVERIES),
            fabric=fabric.state,
            fabric_problem=fabric.problem,
        )

    def _health(self, index: int) -> tuple[object, ...]:
        nvml, query = self._nvml, self._query
        try:
            handle = self._handle(index)
            return (
                self._fields(handle, _HEALTH_FIELDS),
                active_links(nvml, query, handle),
                read_fabric(nvml, query, handle),
                query(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            )
        except _GpuFault as fault:
            return (str(fault),)

    def _processes_of(self, index: int) -> Iterator[DeviceProcess]:
        nvml, handle = self._nvml, self._handle(index)
        mode = self._query(nvml.nvmlDeviceGetMigMode, handle)
        slices = read_mig(nvml, self._query, handle) if mode and mode[0] else ()
        by_instance = {(s.gpu_instance, s.compute_instance): s.uuid for s in slices}
        for kind in ("Compute", "Graphics"):
            for version in ("_v3", "_v2"):
                listed = self._query(getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}"), handle)
                if listed is None:
                    continue
                for row in listed:
                    instance = by_instance.get((row.gpuInstanceId, row.computeInstanceId))
                    yield DeviceProcess(self._uuids[index], index, row.pid, row.usedGpuMemory, instance)
                break

    def _subscribe(self) -> Any:
        nvml, query = self._nvml, self._query
        events = query(nvml.nvmlEventSetCreate)
        if events is None:
            return False
        subscribed = 0
        for index in range(self._count()):
            try:
                query(
                    nvml.nvmlDeviceRegisterEvents,
                    self._handle(index),
                    nvml.nvmlEventTypeXidCriticalError,
                    events,
                )
                subscribed += 1
            except _GpuFault:
                continue
        return events if subscribed else False

    def _next_event(self, milliseconds: int) -> DeviceEvent | None:
        nvml = self._nvml
        if not self._events:
            time.sleep(milliseconds / 1000)  # no subscription: keep the caller from spinning
            return None
        started = time.monotonic()
        try:
            data = nvml.nvmlEventSetWait_v2(self._events, milliseconds)
        except nvml.NVMLError as error:
            if error.value in _DRIVER_FAULTS:
                self._fail(error)
            if error.value != _TIMEOUT:
                time.sleep(max(0.0, milliseconds / 1000 - (time.monotonic() - started)))
            return None
        try:
            uuid = self._query(nvml.nvmlDeviceGetUUID, data.device)
        except _GpuFault:
            uuid = self._uuid_of_lost_gpu(data.device)
        return DeviceEvent(kind=EventKind.XID, code=int(data.eventData), at=self._now(), uuid=uuid)

    def _uuid_of_lost_gpu(self, device: Any) -> str | None:
        for index, handle in self._handles.items():
            if _address(handle) == _address(device):
                return self._uuids.get(index)
        return None

    def _count(self) -> int:
        with self._driver():
            return int(self._nvml.nvmlDeviceGetCount())

    def _handle(self, index: int) -> Any:
        handle = self._handles.get(index)
        if handle is None:
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError as error:
                self._raise_if_fatal(error)
                raise _GpuFault(f"the driver has no handle for GPU {index}: {error}") from error
            uuid = self._query(self._nvml.nvmlDeviceGetUUID, handle)
            self._uuids[index] = uuid or placeholder_uuid(index)
            self._handles[index] = handle
        return handle

    def _memory(self, handle: Any) -> Any:
        nvml = self._nvml
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        return memory or self._query(nvml.nvmlDeviceGetMemoryInfo, handle)

    def _temperature(self, handle: Any) -> int | None:
        nvml = self._nvml
        value: int | None = self._query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        if value is None:
            value = self._query(nvml.nvmlDeviceGetTemperatureV, handle, nvml.NVML_TEMPERATURE_GPU)
        return value

    def _throttles(self, handle: Any) -> tuple[str, ...] | None:
        nvml = self._nvml
        mask = self._query(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if mask is None:
            mask = self._query(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return None if mask is None else tuple(name for bit, name in _THROTTLES.items() if mask & bit)

    def _fields(self, handle: Any, fields: tuple[int, ...] = _FIELDS) -> dict[int, int]:
        """Return the supported counters by field id."""
        values = self._query(self._nvml.nvmlDeviceGetFieldValues, handle, list(fields)) or ()
        return {
            value.fieldId: int(getattr(value.value, _UNION_MEMBERS[value.valueType]))
            for value in values
            if value.nvmlReturn == 0 and value.valueType < len(_UNION_MEMBERS)
        }

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call NVML; return None if the value is not available, raise if the GPU or the driver failed."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            self._raise_if_fatal(error)
            return None

    def _raise_if_fatal(self, error: Any) -> None:
        if error.value in _GPU_FAULTS:
            raise _GpuFault(_GPU_FAULTS[error.value]) from error
        if error.value in _DRIVER_FAULTS:
            self._fail(error)

    @contextmanager
    def _driver(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            self._fail(error)

    def _fail(self, error: Any) -> NoReturn:
        if error.value == _MISMATCH:
            raise DriverMismatch(
                "NVIDIA's library and kernel module have different versions: reload the driver or reboot"
            ) from error
        raise DevicesUnavailable(f"NVIDIA GPUs can't be read: NVML says {str(error)!r}") from error


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _address(handle: Any) -> int:
    from ctypes import c_void_p, cast

    return cast(handle, c_void_p).value or 0
