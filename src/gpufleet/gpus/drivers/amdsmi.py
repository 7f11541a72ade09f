"""AMD GPUs through AMD SMI (the `amdsmi` package of ROCm 6 and 7).

The package belongs to the ROCm installation, so it is imported only on demand; the import fails in many
ways where the library is missing. Results are dictionaries in which missing values are the text "N/A" and
keys have changed between releases, so each value is looked up by all its names.

A partitioned GPU (DPX … CPX) is listed once per partition. Partitions have their own memory and processes;
counters of the whole GPU (power, temperature, energy) exist only on partition 0 and are None on the
others. Clock throttling is not read, because the library sleeps 100 ms per GPU to measure it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus import pci
from gpufleet.gpus.known_gpus import placeholder_uuid
from gpufleet.gpus.processes import ProcessTable
from gpufleet.model.device import (
    Device,
    DeviceEvent,
    DeviceProcess,
    DeviceReading,
    EventKind,
    Link,
    LinkKind,
    Partition,
    Vendor,
)

_MIB = 2**20
_MICRO = 1e-6
_MIN_MICROWATTS = 100_000
"""Larger power limits are in microwatts, because no limit in watts is that large."""
_FATAL, _UNCORRECTED = 1, 0
_BLOCKS_TO_SKIP = {"INVALID", "RESERVED"}
_UNRESPONSIVE = "the GPU does not respond: it fell off the bus or failed to reset"


class AmdSmiReader:
    """Read AMD GPUs; raise DevicesUnavailable if there is no usable library or driver."""

    simulated = False

    def __init__(
        self,
        processes: ProcessTable | None = None,
        now: Callable[[], float] = time.time,
        library: Any = None,
    ) -> None:
        """`library` replaces the `amdsmi` module in tests."""
        self._smi = library or _import_library()
        self._now = now
        self._processes = processes or ProcessTable()
        self._cursors: dict[int, int] = {}
        try:
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())
        except self._smi.AmdSmiException as error:
            raise DevicesUnavailable(f"AMD GPUs can't be read: AMD SMI says {error}") from error
        self._uuids = _unique(self._uuid(index, handle) for index, handle in enumerate(self._handles))
        self.name = self._describe()

    def inventory(self) -> tuple[Device, ...]:
        """See `DeviceReader.inventory`."""
        devices = tuple(self._device(index, handle) for index, handle in enumerate(self._handles))
        if devices and all(device.fault for device in devices):
            # The driver was unloaded or reloaded, which invalidates all handles: make the caller reopen it.
            raise DevicesUnavailable("AMD GPUs can't be read: none of them responds to AMD SMI")
        return devices

    def readings(self) -> tuple[DeviceReading, ...]:
        """See `DeviceReader.readings`."""
        return tuple(self._reading(index, handle) for index, handle in enumerate(self._handles))

    def health(self) -> tuple[object, ...]:
        """See `DeviceReader.health`: whether each GPU responds, uncorrectable errors and bad memory pages."""
        return tuple(self._health(handle) for handle in self._handles)

    def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """See `DeviceReader.processes`."""
        return self._processes.describe(self._each_process(), identify)

    def events(self, timeout: float) -> tuple[DeviceEvent, ...]:
        """See `DeviceReader.events`; return fatal and uncorrected error records (CPER), which only root may read."""
        found = [
            event
            for index, handle in enumerate(self._handles)
            for event in self._error_records(index, handle)
        ]
        if not found:
            time.sleep(timeout)  # the library cannot wait for records: keep the caller from spinning
        return tuple(found)

    def close(self) -> None:
        """See `DeviceReader.close`."""
        self._ask("amdsmi_shut_down")

    def _device(self, index: int, handle: Any) -> Device:
        address = pci.bus_id(self._ask("amdsmi_get_gpu_device_bdf", handle) or "")
        asic = self._ask("amdsmi_get_gpu_asic_info", handle)
        memory = _number(self._ask("amdsmi_get_gpu_vram_usage", handle), "vram_total")
        if asic is None and memory is None:
            return Device(index=index, uuid=self._uuids[index], vendor=Vendor.AMD, fault=_UNRESPONSIVE)
        ids = self._ask("amdsmi_get_gpu_enumeration_info", handle)
        return Device(
            index=index,
            uuid=self._uuids[index],
            vendor=Vendor.AMD,
            model=_text(asic, "market_name"),
            memory_bytes=int(memory * _MIB) if memory is not None else None,
            pci_bus_id=address,
            numa_node=pci.numa_node(address) if address else None,
            minor=_whole(ids, "drm_render"),
            partition=self._partition(handle),
            links=tuple(self._links(handle)),
            pcie_width=_whole(self._pcie(handle, "pcie_static"), "max_pcie_width"),
        )

    def _reading(self, index: int, handle: Any) -> DeviceReading:
        smi = self._smi
        activity = self._ask("amdsmi_get_gpu_activity", handle)
        memory = self._ask("amdsmi_get_gpu_vram_usage", handle)
        total, used = _number(memory, "vram_total"), _number(memory, "vram_used")
        power = self._ask("amdsmi_get_power_info", handle)
        errors = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
        uncorrected = _whole(errors, "uncorrectable_count")
        pages = self._bad_pages(handle)
        return DeviceReading(
            uuid=self._uuids[index],
            index=index,
            at=self._now(),
            utilization_percent=_number(activity, "gfx_activity"),
            memory_utilization_percent=_number(activity, "umc_activity"),
            memory_used_bytes=int(used * _MIB) if used is not None else None,
            memory_free_bytes=int((total - used) * _MIB) if total is not None and used is not None else None,
            memory_total_bytes=int(total * _MIB) if total is not None else None,
            temperature_celsius=self._temperature(handle),
            power_watts=_number(power, "current_socket_power", "socket_power", "average_socket_power"),
            power_limit_watts=self._power_limit(handle, power),
            energy_joules=self._energy(handle),
            sm_clock_mhz=_number(
                self._ask("amdsmi_get_clock_info", handle, smi.AmdSmiClkType.GFX), "clk", "cur_clk"
            ),
            memory_clock_mhz=_number(
                self._ask("amdsmi_get_clock_info", handle, smi.AmdSmiClkType.MEM), "clk", "cur_clk"
            ),
            ecc_corrected=_whole(errors, "correctable_count"),
            ecc_uncorrected=uncorrected,
            ecc_uncorrected_blocks=tuple(self._bad_blocks(handle)) if uncorrected else (),
            pcie_width=_whole(self._pcie(handle, "pcie_metric"), "pcie_width"),
            bad_pages=pages.total,
            bad_pages_pending=pages.pending,
            bad_pages_limit=pages.limit,
        )

    def _health(self, handle: Any) -> tuple[object, ...]:
        errors = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
        responds = self._ask("amdsmi_get_gpu_vram_usage", handle) is not None
        return responds, _whole(errors, "uncorrectable_count"), self._bad_pages(handle)

    def _pcie(self, handle: Any, part: str) -> Any:
        return (self._ask("amdsmi_get_pcie_info", handle) or {}).get(part)

    def _bad_pages(self, handle: Any) -> "_BadPages":
        """Return the counts of bad memory pages; the library returns a text if there are none."""
        pages = self._ask("amdsmi_get_gpu_bad_page_info", handle)
        if pages is None:
            return _BadPages()
        records = pages if isinstance(pages, list) else []
        limit = self._ask("amdsmi_get_gpu_bad_page_threshold", handle)
        pending = sum(_is_pending(record.get("status")) for record in records)
        return _BadPages(len(records), pending, limit if isinstance(limit, int) and limit > 0 else None)

    def _temperature(self, handle: Any) -> float | None:
        smi = self._smi
        for sensor in (smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureType.EDGE):
            value = self._ask("amdsmi_get_temp_metric", handle, sensor, smi.AmdSmiTemperatureMetric.CURRENT)
            if isinstance(value, int | float) and value > 0:
                return float(value)
        return None

    def _power_limit(self, handle: Any, power: Any) -> float | None:
        cap = _number(self._ask("amdsmi_get_power_cap_info", handle), "power_cap")
        cap = _number(power, "power_limit") if cap is None else cap
        return cap * _MICRO if cap is not None and cap >= _MIN_MICROWATTS else cap

    def _energy(self, handle: Any) -> float | None:
        energy = self._ask("amdsmi_get_energy_count", handle)
        ticks, microjoules = (
            _number(energy, "energy_accumulator", "power"),
            _number(energy, "counter_resolution"),
        )
        return ticks * microjoules * _MICRO if ticks is not None and microjoules is not None else None

    def _bad_blocks(self, handle: Any) -> Iterator[tuple[str, int]]:
        for block in self._smi.AmdSmiGpuBlock:
            if block.name not in _BLOCKS_TO_SKIP:
                count = _whole(self._ask("amdsmi_get_gpu_ecc_count", handle, block), "uncorrectable_count")
                if count:
                    yield block.name, count

    def _partition(self, handle: Any) -> Partition | None:
        compute = self._ask("amdsmi_get_gpu_compute_partition", handle)
        if not isinstance(compute, str) or compute in ("", "N/A"):
            return None
        memory = self._ask("amdsmi_get_gpu_memory_partition", handle)
        number = _whole(self._ask("amdsmi_get_gpu_kfd_info", handle), "current_partition_id")
        return Partition(
            compute, memory if isinstance(memory, str) and memory != "N/A" else None, number or 0
        )

    def _links(self, handle: Any) -> Iterator[Link]:
        rates = self._link_rates(handle)
        for other in self._handles:
            if other is handle:
                continue
            route = self._ask("amdsmi_topo_get_link_type", handle, other)
            if route and route.get("type") == _xgmi(self._smi) and route.get("hops") == 1:
                peer = pci.bus_id(self._ask("amdsmi_get_gpu_device_bdf", other) or "")
                yield Link(LinkKind.XGMI, peer=peer, bandwidth_gbps=rates.get(peer))

    def _link_rates(self, handle: Any) -> dict[str | None, float]:
        """Return GB/s in both directions by the peer's address; the library reports Gb/s in one direction."""
        metrics = self._ask("amdsmi_get_link_metrics", handle) or {}
        rates: dict[str | None, float] = {}
        for link in metrics.get("links", ()):
            rate = _number(link, "max_bandwidth")
            if rate:
                rates[pci.bus_id(str(link.get("bdf")))] = rate / 8 * 2
        return rates

    def _each_process(self) -> Iterator[DeviceProcess]:
        for index, handle in enumerate(self._handles):
            for row in self._ask("amdsmi_get_gpu_process_list", handle) or ():
                info = row
                if not isinstance(row, dict):
                    info = self._ask("amdsmi_get_gpu_process_info", handle, row)
                pid = _whole(info, "pid")
                if pid:
                    memory = _number(info.get("memory_usage"), "vram_mem")
                    memory = _number(info, "mem") if memory is None else memory
                    used = int(memory) if memory is not None else None
                    yield DeviceProcess(self._uuids[index], index, pid, used)

    def _error_records(self, index: int, handle: Any) -> Iterator[DeviceEvent]:
        severities = 1 << _FATAL | 1 << _UNCORRECTED
        cursor = self._cursors.get(index, 0)
        result = self._ask("amdsmi_get_gpu_cper_entries", handle, severities, _MIB, cursor)
        if not result:
            return
        entries, self._cursors[index] = result[0], result[1]
        for entry in entries.values():
            severity = str(entry.get("error_severity"))
            yield DeviceEvent(
                kind=EventKind.CPER,
                code=_FATAL if severity == "fatal" else _UNCORRECTED,
                at=_record_time(entry.get("timestamp"), self._now()),
                uuid=self._uuids[index],
                message=f"{severity} {entry.get('notify_type')} at {entry.get('timestamp')}",
                fatal=severity == "fatal",
            )

    def _uuid(self, index: int, handle: Any) -> str:
        uuid = self._ask("amdsmi_get_gpu_device_uuid", handle)
        return uuid if isinstance(uuid, str) and uuid not in ("", "N/A") else placeholder_uuid(index)

    def _describe(self) -> str:
        version = self._ask("amdsmi_get_lib_version")
        number = ".".join(str(version[part]) for part in ("major", "minor")) if version else "?"
        driver = self._ask("amdsmi_get_gpu_driver_info", self._handles[0]) if self._handles else None
        return f"AMD SMI {number}, driver {_text(driver, 'driver_version') or '?'}"

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a library function; return None if the function or the value does not exist."""
        function = getattr(self._smi, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except (self._smi.AmdSmiException, ValueError):  # ValueError: a name that is not valid UTF-8
            return None


class _BadPages(NamedTuple):
    total: int | None = None
    pending: int | None = None
    limit: int | None = None


def _unique(uuids: Iterable[str]) -> list[str]:
    """Add a suffix to repeated uuids: before ROCm 7 all partitions of a GPU have the same one."""
    seen: Counter[str] = Counter()
    names = []
    for uuid in uuids:
        names.append(f"{uuid}-{seen[uuid]}" if seen[uuid] else uuid)
        seen[uuid] += 1
    return names


def _import_library() -> Any:
    try:
        import amdsmi
    except Exception as error:  # ImportError, OSError, KeyError or AttributeError, depending on the release
        raise DevicesUnavailable(f"AMD GPUs can't be read: amdsmi does not load ({error})") from error
    return amdsmi


def _xgmi(smi: Any) -> Any:
    kinds = getattr(smi, "AmdSmiLinkType", None) or smi.AmdSmiIoLinkType
    return getattr(kinds, "AMDSMI_LINK_TYPE_XGMI", None) or kinds.XGMI


def _is_pending(status: object) -> bool:
    """Return whether a bad page is in use until the next reset; releases use an enum or its number."""
    return getattr(status, "name", str(status)).upper().endswith("PENDING") or status == 1


def _record_time(text: object, now: float) -> float:
    """Parse the time of a record, in UTC: after opening, the library also returns old records."""
    try:
        at = datetime.strptime(str(text), "%Y/%m/%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return now
    return min(at, now)


def _number(result: Any, *keys: str) -> float | None:
    """Return the value of the first key that has a number."""
    for key in keys:
        value = result.get(key) if isinstance(result, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def _whole(result: Any, key: str) -> int | None:
    value = _number(result, key)
    return int(value) if value is not None else None


def _text(result: Any, key: str) -> str | None:
    value = result.get(key) if isinstance(result, dict) else None
    return value if isinstance(value, str) and value not in ("", "N/A") else None
