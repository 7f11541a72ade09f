"""The repairs and findings of the simulated fleet agree with its runs."""

from datetime import datetime

import pytest

from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.objects.identities import Json
from gpufleet.demo.objects.nodes import gpu_node_status, node
from gpufleet.demo.objects.repairs import open_repairs, past_repairs
from gpufleet.demo.simulation.hardware import BUILT, DAY
from gpufleet.demo.simulation.simulation import Simulation

NOW = BUILT + 300 * DAY + 12_345.0


@pytest.fixture(scope="module")
def fleet() -> Simulation:
    return Simulation(seed=1, nodes=32, gpus=8)


def repairs(fleet: Simulation, at: float = NOW) -> dict[str, Json]:
    found = [*past_repairs(fleet, at), *open_repairs(fleet, at)]
    return {each["metadata"]["name"]: each["status"] for each in found}


def test_the_node_that_has_lost_a_gpu_waits_for_a_human_and_is_tainted(fleet: Simulation) -> None:
    (machine,) = [each for each in fleet.hardware.machines if fleet.hardware.lost_gpu(each, NOW) is not None]
    status = repairs(fleet)[machine.name]
    assert (status["phase"], status["cause"], len(status["gpus"])) == ("Manual", "xid-79", 8)
    assert node(machine, fleet.hardware, NOW)["spec"]["taints"][0]["key"] == "gpu.scheduling/unhealthy"
    findings = gpu_node_status(machine, fleet.hardware, NOW, {})["status"]["findings"]
    assert "xid-79" in {each["signal"] for each in findings}


def test_the_other_node_of_the_pair_is_back_with_its_history(fleet: Simulation) -> None:
    pair = [fleet.hardware.machines[number] for number in fleet.hardware.faulty.xid or ()]
    statuses = [repairs(fleet)[machine.name] for machine in pair]
    (back,) = [each for each in statuses if each.get("phase", "Healthy") == "Healthy"]
    assert len(back["history"]) >= 5
    assert back["history"][-1]["steps"][-1].endswith("all tests passed")


def test_no_run_holds_a_gpu_during_an_earlier_fault(fleet: Simulation) -> None:
    short = [
        (name, int(episode["message"].split()[1].rstrip(":")), episode)
        for name, status in repairs(fleet).items()
        for episode in status.get("history", ())
        if episode["gpus"] == 1
    ]
    assert 2 <= len(short) <= 20
    for name, gpu, episode in short:
        opened, closed = (datetime.fromisoformat(episode[end]).timestamp() for end in ("opened", "closed"))
        held = allocation_periods(fleet, opened + 1, closed - 1)
        assert not [each for each in held if each.node == name and gpu in each.held], episode


def test_repairs_are_the_same_every_time(fleet: Simulation) -> None:
    assert repairs(fleet) == repairs(Simulation(seed=1, nodes=32, gpus=8))


def test_some_gpus_have_findings_and_stay_in_use(fleet: Simulation) -> None:
    statuses = [
        gpu_node_status(fleet.hardware.machines[each.node], fleet.hardware, NOW, {})["status"]
        for each in fleet.hardware.degraded
    ]
    assert [status["findings"][0]["signal"] for status in statuses] == ["pcie-width", "nvlink-errors", "ecc"]
    assert all(status.get("unhealthy", 0) == 0 for status in statuses)
