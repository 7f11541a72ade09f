"""Every fault that the agent can see, injected on the NVML shim, in the kernel log, in sysfs or as a reading."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.shim.nvml import NvmlShim, machine, nvml_shim, uuid

from gpufleet.agent.monitor import Monitor, PreviousState
from gpufleet.agent.pod_processes import OrphanAge
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.infiniband import PortMonitor
from gpufleet.gpus.kernel_log import parse_xid
from gpufleet.gpus.rules import RULES, Remedy, Scope, Severity, reference
from gpufleet.gpus.xid import HealthRules
from gpufleet.model.device import Device, DeviceReading, Vendor
from gpufleet.model.node import Health

__all__ = ["nvml_shim"]


@pytest.fixture
async def monitor(nvml_shim: NvmlShim) -> AsyncIterator[Monitor]:
    reader = DeadlineReader(NvmlReader, deadline=5.0)
    yield Monitor(reader, HealthTracker(), ports=dict)
    await reader.close()


async def signals(monitor: Monitor) -> dict[str, tuple[int | None, Severity]]:
    found = (await monitor.read()).findings
    return {each.finding.key: (each.gpu, each.finding.severity) for each in found}


def test_the_page_of_rules_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "health-rules.md"
    assert page.read_text() == reference(), "run `make docs`"


FAULTS: dict[str, Callable[[NvmlShim], None]] = {
    "nvlink-down": lambda shim: shim.set("3.link.7", "6 down"),
    "fabric": lambda shim: shim.set("3.fabric", "1 0 0"),
    "fabric-degraded": lambda shim: shim.set("3.fabric", "3 0 1"),
    "pcie-width": lambda shim: shim.set("3.pcie_width", 8),
    "nvlink-errors": lambda shim: shim.set("3.field.59", 4),
    "remap-pending": lambda shim: shim.set("3.field.144", 1),
    "remap-failed": lambda shim: shim.set("3.field.145", 1),
    "recovery-action": lambda shim: shim.set("3.field.230", 1),
    "ecc": lambda shim: shim.set("3.field.4", 2),
    "fault": lambda shim: shim.lose(3),
}


@pytest.mark.parametrize("signal", FAULTS)
async def test_a_fault_on_the_shim_is_a_finding_of_its_gpu(
    signal: str, monitor: Monitor, nvml_shim: NvmlShim
) -> None:
    assert await signals(monitor) == {}
    FAULTS[signal](nvml_shim)
    assert await signals(monitor) == {signal: (3, RULES[signal].severity)}
    unhealthy = RULES[signal].severity is Severity.UNHEALTHY
    verdict = monitor.observation.verdicts[uuid(3)]
    assert verdict.health is (Health.UNHEALTHY if unhealthy else Health.HEALTHY)
    assert monitor.observation.verdicts[uuid(4)].health is Health.HEALTHY


async def test_a_gpu_that_cannot_join_the_fabric_is_unhealthy(monitor: Monitor, nvml_shim: NvmlShim) -> None:
    nvml_shim.set("2.fabric", "3 999 0")
    await monitor.read()
    assert "reports error 999" in monitor.observation.verdicts[uuid(2)].reason


async def test_cards_without_nvlink_or_fabric_have_no_finding(nvml_shim: NvmlShim, monitor: Monitor) -> None:
    nvml_shim.describe({key: value for key, value in machine(4).items() if not key.endswith(".fabric")})
    assert await signals(monitor) == {}


async def test_links_that_an_earlier_agent_saw_are_expected(monitor: Monitor, nvml_shim: NvmlShim) -> None:
    for gpu in range(8):
        nvml_shim.set(f"{gpu}.link.17", "6 down")
    monitor.restore(PreviousState(links={uuid(5): 18}))
    assert await signals(monitor) == {"nvlink-down": (5, Severity.UNHEALTHY)}


async def test_a_slow_link_counts_only_under_load_and_twice_in_a_row(
    monitor: Monitor, nvml_shim: NvmlShim
) -> None:
    nvml_shim.set("7.pcie_generation", 3)
    nvml_shim.set("1.pcie_generation", 1)  # idle GPUs save power
    assert await signals(monitor) == {}
    assert await signals(monitor) == {"pcie-speed": (7, Severity.DEGRADED)}
    nvml_shim.set("7.pcie_generation", 5)
    assert await signals(monitor) == {}


async def test_a_mismatch_of_library_and_module_is_a_finding_of_the_node(
    monitor: Monitor, nvml_shim: NvmlShim
) -> None:
    await monitor.read()
    nvml_shim.fail("nvmlDeviceGetCount_v2", 18)
    assert await signals(monitor) == {"driver-mismatch": (None, Severity.UNHEALTHY)}
    assert monitor.observation.verdicts[uuid(0)].remedy is Remedy.RELOAD
    assert monitor.observation.verdicts[uuid(0)].health is Health.UNHEALTHY


async def test_a_fatal_error_of_an_nvswitch_stays_until_all_gpus_are_reset(
    monitor: Monitor, nvml_shim: NvmlShim
) -> None:
    await monitor.read()
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    event = parse_xid(line, monitor.observation.read_at)
    assert event is not None
    await monitor.handle([event], from_kernel_log=True)
    found = monitor.observation.findings
    assert [(each.finding.key, each.finding.scope) for each in found] == [("sxid", Scope.ISLAND)]
    assert {verdict.health for verdict in monitor.observation.verdicts.values()} == {Health.UNHEALTHY}
    for gpu in range(7):
        nvml_shim.set(f"{gpu}.field.83", 1)
    assert "sxid" in await signals(monitor)
    nvml_shim.set("7.field.83", 1)
    assert await signals(monitor) == {}


async def test_an_nvswitch_warning_keeps_gpus_healthy(monitor: Monitor) -> None:
    await monitor.read()
    event = parse_xid("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32", 1e10)
    assert event is not None
    await monitor.handle([event], from_kernel_log=True)
    assert {verdict.health for verdict in monitor.observation.verdicts.values()} == {Health.HEALTHY}


@pytest.mark.parametrize(
    ("ports", "down", "severity"),
    [(8, 1, Severity.DEGRADED), (8, 3, Severity.UNHEALTHY), (1, 1, Severity.UNHEALTHY)],
)
def test_one_rail_of_eight_degrades_the_node(ports: int, down: int, severity: Severity) -> None:
    rails = PortMonitor()
    rails.check({f"mlx5_{n}/1": "ACTIVE" for n in range(ports)})
    found = rails.check({f"mlx5_{n}/1": "DOWN" if n < down else "ACTIVE" for n in range(ports)})
    assert found is not None
    assert (found.severity, found.scope) == (severity, Scope.NODE)


async def test_a_port_that_is_down_when_the_agent_starts_again_is_a_finding(nvml_shim: NvmlShim) -> None:
    reader = DeadlineReader(NvmlReader, deadline=5.0)
    first = Monitor(reader, HealthTracker(), ports=lambda: {"mlx5_0/1": "ACTIVE"})
    await first.read()
    second = Monitor(reader, HealthTracker(), ports=lambda: {"mlx5_0/1": "DOWN"})
    second.restore(PreviousState(ports=first.observation.ports))
    assert await signals(second) == {"rails": (None, Severity.UNHEALTHY)}
    await reader.close()


GPU = Device(index=0, uuid="GPU-0", vendor=Vendor.AMD)


def judged(rules: HealthRules, *readings: DeviceReading) -> dict[str, Severity]:
    tracker = HealthTracker(rules)
    tracker.observe_devices([GPU], 0.0)
    for reading in readings:
        tracker.observe_readings([reading])
    return {each.finding.key: each.finding.severity for each in tracker.open_findings()}


READING = DeviceReading(uuid="GPU-0", index=0, at=10.0)


@pytest.mark.parametrize("reason", ["hardware-thermal", "software-thermal", "power-brake"])
def test_reduced_clocks_are_a_finding_after_a_minute(reason: str) -> None:
    signal = "power-brake" if reason == "power-brake" else "thermal"
    hot = [replace(READING, at=at, throttle_reasons=(reason,)) for at in (10.0, 40.0, 71.0)]
    assert judged(HealthRules(), *hot[:2]) == {}
    assert judged(HealthRules(), *hot) == {signal: Severity.DEGRADED}
    assert judged(HealthRules(), *hot, replace(READING, at=80.0, throttle_reasons=())) == {}


def test_bad_pages_of_amd_gpus() -> None:
    pending = replace(READING, bad_pages=3, bad_pages_pending=1, bad_pages_limit=10)
    assert judged(HealthRules(), pending) == {"bad-pages-pending": Severity.UNHEALTHY}
    full = replace(READING, bad_pages=10, bad_pages_pending=0, bad_pages_limit=10)
    assert judged(HealthRules(), full) == {"bad-pages": Severity.UNHEALTHY}


def test_many_correctable_errors_of_an_amd_gpu_are_a_warning_for_an_hour() -> None:
    rules = HealthRules(corrected_per_hour=100)
    few, many = (replace(READING, at=at, ecc_corrected=count) for at, count in ((10.0, 5), (20.0, 120)))
    assert judged(rules, few) == {}
    assert judged(rules, few, many) == {"ecc-corrected": Severity.WARNING}
    assert judged(rules, few, many, replace(READING, at=3700.0, ecc_corrected=121)) == {}


def test_processes_that_survive_their_pod_are_a_finding_after_five_minutes() -> None:
    ages = OrphanAge()
    assert ages.findings({2: {"uid-a"}}, 100.0) == {}
    assert ages.findings({2: {"uid-a"}}, 399.0) == {}
    assert {gpu: each.key for gpu, each in ages.findings({2: {"uid-a"}}, 400.0).items()} == {
        2: "orphan-processes"
    }
    assert ages.findings({}, 401.0) == {}
    assert ages.findings({2: {"uid-a"}}, 402.0) == {}
