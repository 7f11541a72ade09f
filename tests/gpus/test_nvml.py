import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.shim.nvml import GIB, NvmlShim, bus, meshed, sliced, switched, uuid

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.processes import ProcessTable
from gpufleet.model.device import EventKind, LinkKind


@pytest.fixture
def reader(nvml_shim: NvmlShim) -> Iterator[NvmlReader]:
    reader = NvmlReader(ProcessTable(trust_pids=True), now=lambda: 1000.0)
    yield reader
    reader.close()


def test_the_inventory_contains_every_gpu_with_its_links(reader: NvmlReader) -> None:
    devices = reader.inventory()
    assert [device.index for device in devices] == list(range(8))
    assert [device.uuid for device in devices] == [uuid(n) for n in range(8)]
    first = devices[0]
    assert first.model == "NVIDIA H100 80GB HBM3"
    assert first.memory_bytes == 80 * GIB
    assert first.pci_bus_id == "0000:10:00.0"
    assert first.minor == 0
    assert first.mig_enabled is False
    assert first.fault is None
    assert len(first.links) == 18
    assert {(link.kind, link.to_switch, link.version) for link in first.links} == {(LinkKind.NVLINK, True, 6)}
    assert reader.name == "NVML 13.580.95, driver 580.95.05"
    assert reader.simulated is False


def test_direct_links_name_their_peer_and_inactive_links_are_omitted(
    reader: NvmlReader, nvml_shim: NvmlShim
) -> None:
    nvml_shim.describe({**meshed((0, 1), (2, 3)), "0.link.0": "2 down"})
    devices = reader.inventory()
    assert [link.peer for link in devices[0].links] == ["0000:11:00.0"]
    assert [link.peer for link in devices[1].links] == ["0000:10:00.0"] * 2
    assert bus(0) == "00000000:10:00.0"


def test_a_reading_has_every_quantity_in_its_unit(reader: NvmlReader, nvml_shim: NvmlShim) -> None:
    nvml_shim.set("3.throttle", 0x4 | 0x40)
    nvml_shim.set("3.field.230", 1)
    reading = reader.readings()[3]
    assert reading.at == 1000.0
    assert reading.uuid == uuid(3)
    assert reading.utilization_percent == 30
    assert reading.memory_utilization_percent == 15
    assert reading.memory_used_bytes == 3 * GIB
    assert reading.memory_total_bytes == 80 * GIB
    assert reading.memory_free_bytes == 80 * GIB - 3 * GIB - GIB // 2
    assert reading.temperature_celsius == 43
    assert reading.power_watts == 103.5
    assert reading.power_limit_watts == 700
    assert reading.energy_joules == 5000.003
    assert reading.sm_clock_mhz == 1980
    assert reading.memory_clock_mhz == 2619
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (0, 0)
    assert (reading.remap_pending, reading.remap_failed) == (False, False)
    assert reading.recovery_action == "reset"
    assert reading.throttle_reasons == ("power-cap", "hardware-thermal")


FIELDS_BY_QUESTION = {
    "nvmlDeviceGetUtilizationRates": {"utilization_percent", "memory_utilization_percent"},
    "nvmlDeviceGetTemperature": {"temperature_celsius"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_watts"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle_reasons"},
    "nvmlDeviceGetFieldValues": {
        "energy_joules",
        "ecc_corrected",
        "ecc_uncorrected",
        "remapped_rows_corrected",
        "remapped_rows_uncorrected",
        "remap_pending",
        "remap_failed",
        "recovery_action",
        "nvlink_recoveries",
    },
    "nvmlDeviceGetGpuFabricInfoV": {"fabric"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
}


@pytest.mark.parametrize(
    "code", [3, 4, 13, 999], ids=["not-supported", "no-permission", "old-driver", "unknown"]
)
@pytest.mark.parametrize(("function", "fields"), FIELDS_BY_QUESTION.items())
def test_a_failing_call_affects_only_its_own_fields(
    reader: NvmlReader, nvml_shim: NvmlShim, function: str, fields: set[str], code: int
) -> None:
    whole = reader.readings()
    nvml_shim.fail(function, code, gpu=2)
    partial = reader.readings()
    assert partial[:2] == whole[:2]
    assert partial[3:] == whole[3:]
    for name in whole[2].__dataclass_fields__:
        expected = None if name in fields else getattr(whole[2], name)
        assert getattr(partial[2], name) == expected, name


def test_an_old_driver_without_memory_v2_is_read_with_v1(reader: NvmlReader, nvml_shim: NvmlShim) -> None:
    nvml_shim.fail("nvmlDeviceGetMemoryInfo_v2", 13)
    reading = reader.readings()[1]
    assert (reading.memory_used_bytes, reading.memory_free_bytes) == (GIB, 79 * GIB)


def test_a_lost_gpu_is_a_fault_of_that_gpu_and_the_others_are_read(
    reader: NvmlReader, nvml_shim: NvmlShim
) -> None:
    reader.inventory()
    nvml_shim.lose(5)
    devices, readings = reader.inventory(), reader.readings()
    assert len(devices) == len(readings) == 8
    assert devices[5].uuid == readings[5].uuid == uuid(5)
    assert devices[5].fault is not None
    assert "lost" in devices[5].fault
    assert readings[5].fault == devices[5].fault
    assert readings[5].utilization_percent is None
    assert all(device.fault is None for device in devices if device.index != 5)
    assert readings[6].temperature_celsius == 46
    nvml_shim.find_again(5)
    assert reader.inventory()[5].fault is None


def test_a_gpu_that_answers_nothing_but_unknown_errors_is_a_fault(
    reader: NvmlReader, nvml_shim: NvmlShim
) -> None:
    reader.inventory()
    for question in ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        nvml_shim.fail(question, 999, gpu=5)
    device = reader.inventory()[5]
    assert (device.uuid, device.fault) == (uuid(5), "the GPU does not respond")


def test_a_gpu_lost_before_the_first_read_has_a_placeholder_uuid(nvml_shim: NvmlShim) -> None:
    nvml_shim.lose(5)
    reader = NvmlReader()
    device = reader.inventory()[5]
    assert (device.uuid, device.index) == ("unknown-5", 5)
    assert device.fault is not None
    reader.close()


def test_mig_instances_have_their_profile_and_the_whole_gpu_has_no_utilization(
    reader: NvmlReader, nvml_shim: NvmlShim
) -> None:
    nvml_shim.describe(sliced(switched(2), 1))
    device = reader.inventory()[1]
    assert device.mig_enabled is True
    assert [(s.index, s.uuid, s.profile) for s in device.mig] == [
        (0, "MIG-1-0", "1g.10gb"),
        (1, "MIG-1-1", "1g.10gb"),
        (2, "MIG-1-2", "3g.40gb"),
    ]
    assert device.mig[2].memory_bytes == 40 * GIB
    reading = reader.readings()[1]
    assert reading.utilization_percent is None
    assert reading.temperature_celsius == 41


def test_processes_have_their_memory_and_are_identified_only_on_request(
    reader: NvmlReader, nvml_shim: NvmlShim
) -> None:
    me = psutil.Process()
    nvml_shim.run(2, me.pid, 7 * GIB)
    nvml_shim.run(0, me.pid, GIB)
    rows = reader.processes()
    assert [(row.index, row.pid, row.gpu_memory_bytes) for row in rows] == [
        (0, me.pid, GIB),
        (2, me.pid, 7 * GIB),
    ]
    assert rows[0].name == me.name()
    assert rows[0].memory_percent is not None
    assert rows[0].memory_percent > 0
    assert (rows[0].user, rows[0].command) == (None, None)
    assert rows[0].cpu_percent is None
    again = reader.processes(identify=True)[0]
    assert again.user == me.username()
    assert again.command == " ".join(me.cmdline())
    assert again.cpu_percent is not None


def test_a_process_on_a_mig_instance_names_the_instance(reader: NvmlReader, nvml_shim: NvmlShim) -> None:
    nvml_shim.describe(sliced(switched(2), 1))
    nvml_shim.run(1, os.getpid(), GIB, instance=(2, 0))
    (row,) = reader.processes()
    assert row.mig_uuid == "MIG-1-1"


def test_a_lost_gpu_hides_only_its_own_processes(reader: NvmlReader, nvml_shim: NvmlShim) -> None:
    nvml_shim.run(0, os.getpid(), GIB)
    nvml_shim.run(1, os.getpid(), GIB)
    nvml_shim.lose(0)
    assert [row.index for row in reader.processes()] == [1]


def test_xids_arrive_once_each_with_the_gpu_they_concern(reader: NvmlReader, nvml_shim: NvmlShim) -> None:
    assert reader.events(0) == ()
    nvml_shim.xid(3, 48)
    nvml_shim.xid(6, 79)
    events = reader.events(5)
    assert [(event.kind, event.code, event.uuid) for event in events] == [
        (EventKind.XID, 48, uuid(3)),
        (EventKind.XID, 79, uuid(6)),
    ]
    assert reader.events(0.01) == ()


def test_the_xid_of_a_lost_gpu_has_its_uuid(reader: NvmlReader, nvml_shim: NvmlShim) -> None:
    reader.inventory()
    reader.events(0)
    nvml_shim.lose(4)
    nvml_shim.xid(4, 79)
    assert [event.uuid for event in reader.events(1)] == [uuid(4)]


def test_a_driver_that_is_not_loaded_is_reported(
    nvml_shim: NvmlShim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NVML_SHIM_STATE", str(tmp_path / "nothing"))
    with pytest.raises(DevicesUnavailable, match="NVIDIA GPUs can't be read: NVML says 'Driver Not Loaded'"):
        NvmlReader()


def test_another_process_finds_the_shim_through_its_environment(nvml_shim: NvmlShim) -> None:
    program = "from gpufleet.gpus.drivers.nvml import NvmlReader; print(len(NvmlReader().inventory()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **nvml_shim.environment()},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "8"
