import pytest

from gpufleet.fleet.node_view import NodeView
from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuRef, Readings
from gpufleet.model.workload import FleetPod, Status

H100 = "NVIDIA_H100_80GB_HBM3"


def fleet_with(label: str, agent: str = "", exporter: str = "") -> Fleet:
    fleet = Fleet("c", clock=lambda: 1000.0)
    fleet.put_node(FleetNode(name="a", gpu_count=2, gpu_model=label))
    if agent:
        gpus = tuple(FleetGpu(index=index, model=agent) for index in range(2))
        fleet.put_devices(NodeDevices(node="a", gpus=gpus, total=2))
    if exporter:
        seen = tuple(GpuIdentity(GpuRef("a", index), f"GPU-{index}", exporter) for index in range(2))
        fleet.put_readings(Readings(1000.0, seen, {}, {}))
    fleet.put_pod(FleetPod(uid="p", name="p", node="a", phase=Status.RUNNING, gpus=2, bound=900.0))
    fleet.start_accounting()
    return fleet


def names(fleet: Fleet) -> set[str]:
    """Return the model of the node's GPUs by every way to ask for it."""
    view: NodeView = fleet.views()["a"]
    pods = fleet.ownership.pods.values()
    return {
        view.model,
        *view.models,
        *fleet.gpu_models(pods),
        *(period.model for period in fleet.allocation_periods.open()),
        *(period.model for period in fleet.capacity_periods.open()),
        *(model for model in fleet.gpu_columns.models if model),
    }


@pytest.mark.parametrize(
    ("label", "agent", "exporter", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA H100 80GB HBM3", "", H100),
        ("NVIDIA-H100-80GB-HBM3", "", "NVIDIA H100 80GB HBM3", H100),
        ("h100", "", "NVIDIA H100 80GB HBM3", H100),
        ("h100", "NVIDIA H100 80GB HBM3", "", H100),
        ("h100", "", "", "NVIDIA_H100"),
        ("", "", "AMD Instinct MI300X", "AMD_Instinct_MI300X_OAM"),
        ("AMD_Instinct_MI300X_OAM", "AMD Instinct MI300X", "MI300X", "AMD_Instinct_MI300X_OAM"),
        ("Foo-Bar 9", "foo bar 9", "FOO_BAR_9", "FOO_BAR_9"),
        ("", "", "", "unknown"),
    ],
)
def test_sources_that_spell_a_model_differently_give_one_name(
    label: str, agent: str, exporter: str, name: str
) -> None:
    assert names(fleet_with(label, agent, exporter)) - {""} == {name}


def test_a_label_in_another_spelling_splits_no_period() -> None:
    fleet = fleet_with("NVIDIA-A100-SXM4-80GB")
    fleet.allocation_periods.drain()
    fleet.capacity_periods.drain()
    fleet.put_node(FleetNode(name="a", gpu_count=2, gpu_model="NVIDIA A100-SXM4-80GB"))
    fleet.refresh()
    assert (fleet.allocation_periods.drain(), fleet.capacity_periods.drain()) == ([], [])
