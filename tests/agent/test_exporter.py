"""The metrics of the agent, and that the server reads all of them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.agent.exporter import PREFIX, PROCESS_QUANTITIES, QUANTITIES, Exporter
from gpufleet.agent.monitor import Observation
from gpufleet.exporters.known_exporters import AGENT
from gpufleet.gpus.health import HealthVerdict
from gpufleet.model.device import Device, DeviceProcess, DeviceReading, Vendor
from gpufleet.model.node import Health

GPU = Device(0, "GPU-a", Vendor.NVIDIA, model="NVIDIA H200")
LOST = Device(1, "GPU-b", Vendor.NVIDIA, model="NVIDIA H200", fault="lost")
READING = DeviceReading(
    "GPU-a", 0, 100.0, 37.0, 5.0, 30, 50, 80, 61.0, 312.5, 700.0, 9e6, 1980.0, 2619.0, 1, 2
)
SIGHT = Observation(
    devices=(GPU, LOST),
    verdicts={
        "GPU-a": HealthVerdict(Health.HEALTHY, "", 1.0),
        "GPU-b": HealthVerdict(Health.UNHEALTHY, "lost", 1.0),
    },
    readings=(READING, DeviceReading("GPU-b", 1, 100.0, fault="lost")),
    processes=(
        DeviceProcess("GPU-a", 0, 77, 20, None, "python", "ann", "python train.py --token=x", 99.5, 1.5),
    ),
    xids={("GPU-b", 79): 1},
    read_at=100.0,
)


def page(
    observation: Observation = SIGHT, *, now: float = 110.0, identify: bool = False, most: int = 256
) -> "Page":
    exporter = Exporter(
        "node-a", lambda: observation, identify=identify, max_processes=most, clock=lambda: now
    )
    return Page(exporter.render().decode())


class Page:
    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def of(self, name: str) -> dict[str, float]:
        return {sample.labels["gpu"]: sample.value for sample in self.samples if sample.name == name}


def test_the_names_and_labels_are_those_of_the_contract() -> None:
    found = page()
    assert found.of("nvidia_gpu_utilization_percent") == {"0": 37.0}
    assert found.of("nvidia_gpu_used_memory_bytes") == {"0": 30.0}
    assert found.of("nvidia_gpu_free_memory_bytes") == {"0": 50.0}
    assert found.of("nvidia_gpu_total_memory_bytes") == {"0": 80.0}
    assert found.of("nvidia_gpu_memory_utilization_percent") == {"0": 37.5}
    assert found.of("nvidia_gpu_memory_busy_percent") == {"0": 5.0}
    assert found.of("nvidia_gpu_temperature_celsius") == {"0": 61.0}
    assert found.of("nvidia_gpu_energy_joules_total") == {"0": 9e6}
    assert found.of("nvidia_gpu_healthy") == {"0": 1.0, "1": 0.0}
    assert found.of("nvidia_gpu_xid_errors_total") == {"1": 1.0}
    labels = next(s.labels for s in found.samples if s.name == "nvidia_gpu_utilization_percent")
    assert labels == {
        "node": "node-a",
        "hostname": "node-a",
        "gpu": "0",
        "gpu_id": "0",
        "gpu_name": "NVIDIA_H200",
        "uuid": "GPU-a",
    }


def served_names() -> Iterator[str]:
    for quantity in (*QUANTITIES, *PROCESS_QUANTITIES):
        yield f"{quantity.name}_total" if quantity.counter else quantity.name
    yield "xid_errors_total"


def test_all_metrics_that_the_server_reads_are_served() -> None:
    expected = {metric.name for metrics in AGENT.metrics.values() for metric in metrics}
    expected |= {fault.name for fault in AGENT.faults} | set(AGENT.processes.values())
    assert AGENT.prefix == PREFIX
    assert expected <= set(served_names())


def test_user_and_command_are_served_only_on_request() -> None:
    quiet = page()
    assert quiet.of("nvidia_gpu_process_gpu_memory_bytes") == {"0": 20.0}
    assert quiet.of("nvidia_gpu_process_cpu_percent") == {"0": 99.5}
    assert "ann" not in quiet.text
    assert "token" not in quiet.text
    sample = next(s for s in page(identify=True).samples if s.name == "nvidia_gpu_process_memory_percent")
    assert (sample.labels["pid"], sample.labels["process_name"], sample.labels["user"]) == (
        "77",
        "python",
        "ann",
    )
    assert sample.labels["command"] == "python train.py --token=x"


def test_a_quantity_that_the_driver_does_not_report_has_no_series() -> None:
    silent = replace(READING, utilization_percent=None)
    found = page(replace(SIGHT, readings=(silent,)))
    assert "utilization_percent{" not in found.text.replace("memory_utilization_percent{", "")
    assert found.of("nvidia_gpu_power_watts") == {"0": 312.5}


def test_old_readings_are_not_served_as_new() -> None:
    found = page(now=161.0)
    assert found.of("nvidia_gpu_utilization_percent") == {}
    assert found.of("nvidia_gpu_process_gpu_memory_bytes") == {}
    assert found.of("nvidia_gpu_healthy") == {"0": 1.0, "1": 0.0}


@pytest.mark.parametrize("count", [0, 3, 5000])
def test_the_number_of_process_series_is_bounded(count: int) -> None:
    many = tuple(DeviceProcess("GPU-a", 0, pid, pid, None, "x" * 500) for pid in range(1, count + 1))
    found = page(replace(SIGHT, processes=many), most=10)
    shown = [s for s in found.samples if s.name == "nvidia_gpu_process_gpu_memory_bytes"]
    assert [s.value for s in shown] == [float(pid) for pid in range(count, 0, -1)][:10]
    assert all(len(s.labels["process_name"]) <= 64 for s in shown)
    left_out = next(s.value for s in found.samples if s.name == "gpufleet_agent_processes_left_out")
    assert left_out == max(0, count - 10)


def test_the_memory_of_a_process_on_several_mig_instances_is_summed() -> None:
    parts = tuple(DeviceProcess("GPU-a", 0, 5, memory, f"MIG-{memory}") for memory in (3, 4))
    assert page(replace(SIGHT, processes=parts)).of("nvidia_gpu_process_gpu_memory_bytes") == {"0": 7.0}


def test_a_hostile_name_breaks_no_line() -> None:
    evil = (DeviceProcess("GPU-a", 0, 5, 1, None, 'a"} 1\nnvidia_gpu_healthy{gpu="9"} 1'),)
    found = page(replace(SIGHT, processes=evil))
    assert found.of("nvidia_gpu_healthy") == {"0": 1.0, "1": 0.0}
