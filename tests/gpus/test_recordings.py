"""Compare recordings of real machines (record_nvml.py) with the output of nvidia-smi.

Constant values must agree to nvidia-smi's last digit. Values that change during the recording must lie
within the range that nvidia-smi printed, widened by its rounding and, for power, by 2% of the limit, because
power changes within milliseconds.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpufleet.gpus import pci

Recording = dict[str, Any]
RECORDINGS = sorted(Path(__file__).with_name("fixtures").glob("*.json"))
MIB = 2**20

STEADY = [
    ("memory_total_bytes", "memory.total", MIB, 1.0),
    ("power_limit_watts", "enforced.power.limit", 1, 0.01),
    ("ecc_corrected", "ecc.errors.corrected.volatile.total", 1, 0),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total", 1, 0),
]
MOVING = [
    ("memory_used_bytes", "memory.used", MIB, 1.0),
    ("memory_free_bytes", "memory.free", MIB, 1.0),
    ("utilization_percent", "utilization.gpu", 1, 1.0),
    ("memory_utilization_percent", "utilization.memory", 1, 1.0),
    ("temperature_celsius", "temperature.gpu", 1, 1.0),
    ("power_watts", "power.draw", 1, 0.01),
    ("sm_clock_mhz", "clocks.sm", 1, 1.0),
    ("memory_clock_mhz", "clocks.mem", 1, 1.0),
]


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None


def seen(recording: Recording, gpu: int, field: str) -> list[float | None]:
    """Return all values that nvidia-smi printed for one quantity of one GPU."""
    tables = [table for sample in recording["samples"] for table in (sample["before"], sample["after"])]
    return [number(row[field]) for table in tables for row in table if int(row["index"]) == gpu]


def disagreements(recording: Recording) -> Iterator[str]:
    for sample in recording["samples"]:
        for reading in sample["readings"]:
            gpu = reading["index"]
            for ours, theirs, unit, rounding in STEADY + MOVING:
                printed = [value for value in seen(recording, gpu, theirs) if value is not None]
                value = reading[ours]
                if value is None or not printed:
                    if (value is None) != (not printed):
                        yield f"GPU {gpu} {ours}: {value}, nvidia-smi {printed[:1] or 'has none'}"
                    continue
                slack = rounding + (
                    0.02 * (reading["power_limit_watts"] or 0) if ours == "power_watts" else 0
                )
                if not min(printed) - slack <= value / unit <= max(printed) + slack:
                    yield f"GPU {gpu} {ours}: {value / unit} is not within {min(printed)}..{max(printed)}"


def load(path: Path) -> Recording:
    recording: Recording = json.loads(path.read_text())
    return recording


recorded = pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)


@recorded
def test_every_reading_agrees_with_nvidia_smi(path: Path) -> None:
    recording = load(path)
    assert recording["samples"]
    assert all(sample["readings"] for sample in recording["samples"])
    assert list(disagreements(recording)) == []


@recorded
def test_the_inventory_agrees_with_nvidia_smi(path: Path) -> None:
    recording = load(path)
    rows = recording["samples"][0]["before"]
    xml = ElementTree.fromstring(recording["nvidia_smi_xml"])
    minors = {gpu.findtext("uuid"): gpu.findtext("minor_number") for gpu in xml.iter("gpu")}
    assert len(recording["inventory"]) == len(rows)
    for device, row in zip(recording["inventory"], rows, strict=True):
        assert device["fault"] is None
        assert (device["index"], device["uuid"], device["model"]) == (
            int(row["index"]),
            row["uuid"],
            row["name"],
        )
        assert device["pci_bus_id"] == pci.bus_id(row["pci.bus_id"])
        assert abs(device["memory_bytes"] / MIB - float(row["memory.total"])) <= 1
        assert device["mig_enabled"] == {"Disabled": False, "Enabled": True}.get(row["mig.mode.current"])
        assert str(device["minor"]) == minors[device["uuid"]]


@recorded
def test_the_remapped_rows_are_those_that_nvidia_smi_prints(path: Path) -> None:
    recording = load(path)
    xml = ElementTree.fromstring(recording["nvidia_smi_xml"])
    for reading, gpu in zip(recording["samples"][-1]["readings"], xml.iter("gpu"), strict=True):
        counts = reading["remapped_rows_corrected"], reading["remapped_rows_uncorrected"]
        printed = (
            gpu.findtext("remapped_rows/remapped_row_corr"),
            gpu.findtext("remapped_rows/remapped_row_unc"),
        )
        assert tuple(map(str, counts)) == printed
        flags = reading["remap_pending"], reading["remap_failed"]
        words = (
            gpu.findtext("remapped_rows/remapped_row_pending"),
            gpu.findtext("remapped_rows/remapped_row_failure"),
        )
        assert tuple("Yes" if flag else "No" for flag in flags) == words


@recorded
def test_as_many_links_are_up_as_nvidia_smi_lists(path: Path) -> None:
    recording = load(path)
    up = len(re.findall(r"Link \d+: [\d.]+ GB/s", recording["nvidia_smi_nvlink"]))
    assert sum(len(device["links"]) for device in recording["inventory"]) == up


@recorded
def test_the_processes_are_those_that_nvidia_smi_lists_with_their_memory(path: Path) -> None:
    recording = load(path)
    theirs = {int(row["pid"]): number(row["used_memory"]) for row in recording["processes_before"]}
    ours = {row["pid"]: row["gpu_memory_bytes"] for row in recording["processes"]}
    assert ours.keys() == theirs.keys()
    for pid, mib in theirs.items():
        if mib is not None:
            assert abs(ours[pid] / MIB - mib) <= 1
    if theirs:  # a driver may hide processes from a container; then it hides them from both
        assert max(memory for memory in ours.values() if memory is not None) >= recording["held_mib"] * MIB


def synthetic() -> Recording:
    row = {
        "index": "0",
        "memory.total": "81559",
        "memory.used": "612",
        "memory.free": "80444",
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "31",
        "power.draw": "112.41",
        "enforced.power.limit": "700.00",
        "clocks.sm": "1980",
        "clocks.mem": "2619",
        "ecc.errors.corrected.volatile.total": "0",
        "ecc.errors.uncorrected.volatile.total": "[N/A]",
    }
    reading = {
        "index": 0,
        "memory_total_bytes": 81559 * MIB,
        "memory_used_bytes": int(612.4 * MIB),
        "memory_free_bytes": 80444 * MIB,
        "utilization_percent": 0,
        "memory_utilization_percent": 0,
        "temperature_celsius": 32,
        "power_watts": 113.0,
        "power_limit_watts": 700.0,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "ecc_corrected": 0,
        "ecc_uncorrected": None,
    }
    return {
        "samples": [{"before": [row], "readings": [reading], "after": [{**row, "temperature.gpu": "32"}]}]
    }


def test_a_correct_recording_has_no_differences() -> None:
    assert list(disagreements(synthetic())) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_used_bytes", 612 * 10**6),
        ("temperature_celsius", 34),
        ("power_watts", 0.113),
        ("power_limit_watts", 699.9),
        ("ecc_corrected", 1),
        ("ecc_uncorrected", 0),
        ("utilization_percent", None),
    ],
)
def test_a_reading_in_the_wrong_unit_or_field_is_detected(field: str, value: float | None) -> None:
    recording = synthetic()
    recording["samples"][0]["readings"][0][field] = value
    assert len(list(disagreements(recording))) >= 1
