"""The AMD reader with a fake `amdsmi` module, because the real one needs ROCm and an AMD GPU.

The fake returns the dictionaries, units and "N/A" texts of the releases 6 and 7.
"""

import os
import sys
from enum import IntEnum
from typing import Any

import pytest

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.amdsmi import AmdSmiReader
from gpufleet.gpus.drivers.detect import open_reader
from gpufleet.gpus.known_gpus import merge_known_gpus
from gpufleet.gpus.processes import ProcessTable
from gpufleet.gpus.topology import GpuPosition, gpu_positions
from gpufleet.model.device import EventKind, Partition, Vendor

GIB = 2**30


class AmdSmiException(Exception):
    pass


class AmdSmiClkType(IntEnum):
    GFX = 1
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiLinkType(IntEnum):
    AMDSMI_LINK_TYPE_XGMI = 1
    AMDSMI_LINK_TYPE_PCIE = 2


class AmdSmiGpuBlock(IntEnum):
    INVALID = 0
    UMC = 1
    SDMA = 2
    GFX = 4


class Release7:
    """Simulate four MI300X, fully meshed."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiLinkType = AmdSmiLinkType
    AmdSmiGpuBlock = AmdSmiGpuBlock

    def __init__(self) -> None:
        self.uncorrectable = 0
        self.records: list[dict[str, Any]] = []
        self.broken: set[str] = set()
        self.lost: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("amdsmi_") and name in super().__getattribute__("broken"):
            return super().__getattribute__("fail")
        return super().__getattribute__(name)

    def fail(self, *_arguments: object) -> None:
        raise AmdSmiException("NOT_SUPPORTED")

    def _reach(self, handle: str) -> None:
        if handle in self.lost:
            raise AmdSmiException("NO_DATA")

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[str]:
        return [f"handle-{n}" for n in range(4)]

    def amdsmi_get_lib_version(self) -> dict[str, Any]:
        return {"major": 26, "minor": 0, "release": 2, "build": "x"}

    def amdsmi_get_gpu_driver_info(self, _handle: str) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": "N/A"}

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return f"{handle[-1]}4ff74a1-0000-1000-80d6-3b12acfb26a1"

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return f"0000:0{handle[-1]}:00.0"

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, Any]:
        self._reach(handle)
        return {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002"}

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, int]:
        self._reach(handle)
        return {"vram_total": 196592, "vram_used": 1024}

    def amdsmi_get_gpu_enumeration_info(self, handle: str) -> dict[str, Any]:
        return {"drm_render": 128 + int(handle[-1]), "drm_card": 0, "hip_uuid": "x"}

    def amdsmi_get_gpu_activity(self, _handle: str) -> dict[str, Any]:
        return {"gfx_activity": 87, "umc_activity": 12, "mm_activity": "N/A"}

    def amdsmi_get_power_info(self, _handle: str) -> dict[str, Any]:
        return {"current_socket_power": 412, "average_socket_power": "N/A", "power_limit": 750}

    def amdsmi_get_power_cap_info(self, _handle: str) -> dict[str, Any]:
        return {"power_cap": 750_000_000, "default_power_cap": 750_000_000}

    def amdsmi_get_energy_count(self, _handle: str) -> dict[str, Any]:
        return {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_temp_metric(self, _handle: str, sensor: IntEnum, _metric: IntEnum) -> int:
        if sensor == AmdSmiTemperatureType.EDGE:
            raise AmdSmiException("NOT_SUPPORTED")
        return 61

    def amdsmi_get_clock_info(self, _handle: str, clock: IntEnum) -> dict[str, Any]:
        return {"clk": 2100 if clock == AmdSmiClkType.GFX else 1300, "max_clk": 2100, "clk_locked": "N/A"}

    def amdsmi_get_gpu_total_ecc_count(self, _handle: str) -> dict[str, int]:
        return {"correctable_count": 3, "uncorrectable_count": self.uncorrectable, "deferred_count": 0}

    def amdsmi_get_gpu_ecc_count(self, _handle: str, block: IntEnum) -> dict[str, int]:
        return {"uncorrectable_count": self.uncorrectable if block == AmdSmiGpuBlock.UMC else 0}

    def amdsmi_get_gpu_compute_partition(self, _handle: str) -> str:
        return "CPX"

    def amdsmi_get_gpu_memory_partition(self, _handle: str) -> str:
        return "NPS4"

    def amdsmi_get_gpu_kfd_info(self, handle: str) -> dict[str, Any]:
        return {"kfd_id": 1, "node_id": 2, "current_partition_id": int(handle[-1])}

    def amdsmi_topo_get_link_type(self, _one: str, _other: str) -> dict[str, int]:
        return {"hops": 1, "type": 1}

    def amdsmi_get_link_metrics(self, _handle: str) -> dict[str, Any]:
        links = [{"bdf": f"0000:0{n}:00.0", "bit_rate": 32, "max_bandwidth": 512} for n in range(4)]
        return {"num_links": 4, "links": links}

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
        if handle != "handle-1":
            return []
        return [{"name": "N/A", "pid": os.getpid(), "mem": 0, "memory_usage": {"vram_mem": 5 * GIB}}]

    def amdsmi_get_gpu_cper_entries(
        self, handle: str, _mask: int, _size: int, cursor: int
    ) -> tuple[Any, ...]:
        fresh = self.records[cursor:] if handle == "handle-2" else []
        return dict(enumerate(fresh)), len(self.records), [], 0


class Release6(Release7):
    """Simulate release 6: other names, no partitions, no link rates, no error records."""

    AmdSmiLinkType = None  # type: ignore[assignment]

    class AmdSmiIoLinkType(IntEnum):
        XGMI = 1

    def __init__(self) -> None:
        super().__init__()
        self.broken = {
            "amdsmi_get_gpu_compute_partition",
            "amdsmi_get_link_metrics",
            "amdsmi_get_gpu_cper_entries",
        }

    def amdsmi_get_power_info(self, _handle: str) -> dict[str, Any]:
        return {"current_socket_power": "N/A", "average_socket_power": 300, "power_limit": 560}

    def amdsmi_get_energy_count(self, _handle: str) -> dict[str, Any]:
        return {"power": 2_000_000, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_clock_info(self, _handle: str, _clock: IntEnum) -> dict[str, Any]:
        return {"cur_clk": 1700, "max_clk": 1700}


def reader(library: Release7) -> AmdSmiReader:
    return AmdSmiReader(ProcessTable(trust_pids=True), now=lambda: 1000.0, library=library)


def test_the_inventory_of_a_partitioned_mesh() -> None:
    devices = reader(Release7()).inventory()
    assert [device.index for device in devices] == [0, 1, 2, 3]
    device = devices[2]
    assert device.vendor is Vendor.AMD
    assert device.model == "AMD Instinct MI300X"
    assert device.memory_bytes == 196592 * 2**20
    assert (device.pci_bus_id, device.minor) == ("0000:02:00.0", 130)
    assert device.partition == Partition("CPX", "NPS4", 2)
    assert set(gpu_positions(devices).values()) == {GpuPosition("xgmi-group-0", 3 * 128)}


def test_readings_are_converted_to_our_units() -> None:
    reading = reader(Release7()).readings()[0]
    assert (reading.utilization_percent, reading.memory_utilization_percent) == (87, 12)
    assert (reading.memory_used_bytes, reading.memory_free_bytes) == (GIB, (196592 - 1024) * 2**20)
    assert (reading.temperature_celsius, reading.power_watts, reading.power_limit_watts) == (61, 412, 750)
    assert reading.energy_joules == pytest.approx(30.6)
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (2100, 1300)
    assert (reading.ecc_corrected, reading.ecc_uncorrected, reading.ecc_uncorrected_blocks) == (3, 0, ())


def test_uncorrectable_errors_name_their_block() -> None:
    library = Release7()
    library.uncorrectable = 2
    assert reader(library).readings()[0].ecc_uncorrected_blocks == (("UMC", 2),)


def test_the_names_of_release_6_work_too() -> None:
    old = reader(Release6())
    reading, device = old.readings()[0], old.inventory()[0]
    assert (reading.power_watts, reading.sm_clock_mhz) == (300, 1700)
    assert reading.energy_joules == pytest.approx(30.6)
    assert device.partition is None
    assert {link.bandwidth_gbps for link in device.links} == {None}
    assert len(device.links) == 3


QUESTIONS = [name for name in vars(Release7) if name.startswith("amdsmi_get_gpu") or "info" in name]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_failing_call_affects_only_its_own_fields(question: str) -> None:
    library = Release7()
    whole = reader(library)
    readings, devices = whole.readings(), whole.inventory()
    library.broken = {question}
    partial = whole.readings()
    assert len(partial) == len(whole.inventory()) == 4
    lost = {
        name
        for name in readings[0].__dataclass_fields__
        if getattr(partial[0], name) != getattr(readings[0], name)
    }
    assert all(getattr(partial[0], name) is None for name in lost - {"power_limit_watts"})
    assert len(lost) <= 3
    assert [d.uuid for d in whole.inventory()] == [d.uuid for d in devices]


class OnePartedGpu(Release7):
    """Simulate the partitions of one MI300X before ROCm 7, which all have the same uuid."""

    def amdsmi_get_gpu_device_uuid(self, _handle: str) -> str:
        return "abff74a1-0000-1000-80d1-3c23a9580558"


def test_partitions_with_the_same_uuid_get_unique_ones() -> None:
    amd = reader(OnePartedGpu())
    uuids = [device.uuid for device in amd.inventory()]
    assert len(set(uuids)) == len(merge_known_gpus((), amd.inventory())) == 4
    assert [reading.uuid for reading in amd.readings()] == uuids
    assert uuids[0] == "abff74a1-0000-1000-80d1-3c23a9580558"


def test_a_gpu_that_does_not_respond_is_a_fault_until_it_does() -> None:
    library = Release7()
    amd = reader(library)
    whole = amd.inventory()
    library.lost = {"handle-2"}
    lost = amd.inventory()
    assert [device.fault is not None for device in lost] == [False, False, True, False]
    assert [device.uuid for device in lost] == [device.uuid for device in whole]
    library.lost = set()
    assert amd.inventory() == whole


def test_a_driver_without_a_responding_gpu_is_reopened() -> None:
    library = Release7()
    amd = reader(library)
    library.lost = set(library.amdsmi_get_processor_handles())
    with pytest.raises(DevicesUnavailable, match="none of them responds"):
        amd.inventory()


def test_a_fault_changes_the_health_and_a_load_does_not() -> None:
    library = Release7()
    amd = reader(library)
    before = amd.health()
    library.amdsmi_get_gpu_activity = lambda _handle: {"gfx_activity": 1}  # type: ignore[method-assign]
    assert amd.health() == before
    library.uncorrectable = 1
    assert amd.health() != before
    library.uncorrectable = 0
    library.lost = {"handle-2"}
    assert amd.health() != before
    library.lost = set()
    pages = [{"status": 1}]
    library.amdsmi_get_gpu_bad_page_info = lambda _handle: pages  # type: ignore[attr-defined]
    assert amd.health() != before


def test_processes_have_their_memory() -> None:
    (row,) = reader(Release7()).processes(identify=True)
    assert (row.index, row.pid, row.gpu_memory_bytes) == (1, os.getpid(), 5 * GIB)
    assert row.command is not None


def test_error_records_are_reported_once_and_fatal_ones_are_marked() -> None:
    library = Release7()
    amd = reader(library)
    assert amd.events(0) == ()
    library.records += [
        {"error_severity": "fatal", "notify_type": "MCE", "timestamp": "2026/11/15 08:00:00"},
        {"error_severity": "non_fatal_uncorrected", "notify_type": "CMC", "timestamp": "2026/11/15 08:00:01"},
    ]
    events = amd.events(0)
    assert [(event.kind, event.fatal, event.uuid) for event in events] == [
        (EventKind.CPER, True, "24ff74a1-0000-1000-80d6-3b12acfb26a1"),
        (EventKind.CPER, False, "24ff74a1-0000-1000-80d6-3b12acfb26a1"),
    ]
    assert amd.events(0) == ()


def test_records_have_the_time_at_which_they_were_written() -> None:
    library = Release7()
    library.records = [
        {"error_severity": "fatal", "notify_type": "MCE", "timestamp": stamp}
        for stamp in ("1970/01/01 00:05:00", "2026/11/15 08:00:00", "N/A")
    ]
    assert [event.at for event in reader(library).events(0)] == [300.0, 1000.0, 1000.0]


def test_a_process_with_an_undecodable_name_affects_nothing_else() -> None:
    class Bindings(Release7):
        def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
            if handle == "handle-0":
                b"\xd0".decode()  # as the bindings do with a name that the kernel has cut
            return super().amdsmi_get_gpu_process_list(handle)

    assert [row.pid for row in reader(Bindings()).processes()] == [os.getpid()]


def test_the_error_of_the_driver_is_reported() -> None:
    library = Release7()
    library.broken = {"amdsmi_init"}
    with pytest.raises(DevicesUnavailable, match="AMD GPUs can't be read: AMD SMI says NOT_SUPPORTED"):
        reader(library)


@pytest.mark.skipif("amdsmi" in sys.modules, reason="this machine has a working amdsmi")
def test_a_machine_without_rocm_is_reported() -> None:
    with pytest.raises(DevicesUnavailable, match="amdsmi does not load"):
        open_reader("amdsmi")
