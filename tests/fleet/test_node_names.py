"""Exporter node names are resolved where readings enter the fleet."""

import numpy as np

from gpufleet.fleet.node_names import NodeNames
from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import CapacityPeriod
from gpufleet.model.reading import (
    Fault,
    FaultKind,
    GpuIdentity,
    GpuProcess,
    GpuRef,
    GpuUser,
    Processes,
    Quantity,
    Readings,
)

FAULT = Fault(FaultKind.XID, 79, 1.0, 5.0)


def exporter_readings(at: float = 1000.0) -> Readings:
    refs = [GpuRef("10.0.0.1", 0), GpuRef("10.0.0.1", 1), GpuRef("a", 0), GpuRef("elsewhere", 0)]
    values = np.array([10.0, 11.0, 20.0, 30.0])
    return Readings(
        at,
        tuple(GpuIdentity(ref) for ref in refs),
        {Quantity.UTILIZATION: values},
        {Quantity.UTILIZATION: values + at},
        holders={1: (GpuUser("ml", "p"),)},
        faults={2: (FAULT,)},
    )


def named_fleet() -> Fleet:
    fleet = Fleet("prod")
    fleet.put_node(FleetNode(name="b", aliases=("10.0.0.1",), gpu_count=2))
    fleet.put_node(FleetNode(name="a", gpu_count=1))
    return fleet


def test_the_fleet_sees_its_own_node_names_in_order() -> None:
    fleet = named_fleet()
    fleet.put_readings(exporter_readings())
    readings = fleet.gpu_columns.readings
    names = [(gpu.ref.node, gpu.ref.index) for gpu in readings.gpus]
    assert names == [("a", 0), ("b", 0), ("b", 1), ("elsewhere", 0)]
    assert readings.values[Quantity.UTILIZATION].tolist() == [20.0, 10.0, 11.0, 30.0]
    assert readings.times[Quantity.UTILIZATION].tolist() == [1020.0, 1010.0, 1011.0, 1030.0]
    assert readings.holders == {2: (GpuUser("ml", "p"),)}
    assert readings.faults == {0: (FAULT,)}
    assert list(readings.rows_of("b")) == [1, 2]
    assert list(readings.rows_of("10.0.0.1")) == []
    column = fleet.gpu_columns.column(Quantity.UTILIZATION)
    assert column[fleet.gpu_columns.slots_of("b", [0, 1])].tolist() == [10.0, 11.0]


def test_the_same_gpus_stay_the_same_until_a_name_changes() -> None:
    fleet, first = named_fleet(), exporter_readings()
    fleet.put_readings(first)
    before = fleet.gpu_columns.readings.gpus
    second = exporter_readings(1015.0)
    fleet.put_readings(Readings(1015.0, first.gpus, second.values, second.times))
    assert fleet.gpu_columns.readings.gpus is before
    fleet.put_node(FleetNode(name="c", aliases=("elsewhere",), gpu_count=1))
    fleet.put_readings(Readings(1030.0, first.gpus, second.values, second.times))
    assert [gpu.ref.node for gpu in fleet.gpu_columns.readings.gpus] == ["a", "b", "b", "c"]


def test_readings_with_fleet_names_are_used_as_they_are() -> None:
    fleet = named_fleet()
    readings = Readings(1.0, (GpuIdentity(GpuRef("a", 0)), GpuIdentity(GpuRef("b", 0))))
    fleet.put_readings(readings)
    assert fleet.gpu_columns.readings is readings


def test_processes_get_fleet_names() -> None:
    names = NodeNames()
    names.put("b", ("10.0.0.1",))

    def process(node: str, pid: int) -> GpuProcess:
        return GpuProcess(GpuRef(node, 0), pid, "python", "", "", None, None, None, 1.0)

    found = names.resolve_processes(Processes((process("10.0.0.1", 7), process("a", 8)), {"cpu": "down"}))
    assert [(row.gpu.node, row.pid) for row in found.rows] == [("a", 8), ("b", 7)]
    assert found.errors == {"cpu": "down"}


def test_in_an_hour_the_latest_owner_of_an_alias_wins_and_own_names_win_over_aliases() -> None:
    def period(node: str, start: float, *aliases: str) -> CapacityPeriod:
        return CapacityPeriod(node=node, gpus=8, model="H200", aliases=aliases, start=start)

    names = NodeNames.of_periods(
        [period("new", 50.0, "10.0.0.1"), period("old", 0.0, "10.0.0.1", "h1"), period("old", 60.0, "new")]
    )
    resolved = [names.resolve(name) for name in ("10.0.0.1", "h1", "new", "old", "other")]
    assert resolved == ["new", "old", "new", "old", "other"]
