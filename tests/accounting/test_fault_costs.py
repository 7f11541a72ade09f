import pytest

from gpufleet.accounting.fault_costs import Fault, fault_costs

HOUR = 3600.0


def test_lost_hours_are_counted_by_cause_node_and_model() -> None:
    faults = [
        Fault("a", "H100", "xid-79", 8, 10 * HOUR, 12 * HOUR),
        Fault("b", "H200", "xid-48", 1, 20 * HOUR, 24 * HOUR),
        Fault("a", "H100", "xid-48", 1, 30 * HOUR, None),
    ]
    costs = fault_costs(faults, 10, 0.0, 40 * HOUR)
    assert (costs.faults, costs.open_faults, costs.lost_gpu_hours) == (3, 1, 30.0)
    assert costs.by_cause == {"xid-79": 16.0, "xid-48": 14.0}
    assert costs.by_node == {"a": 26.0, "b": 4.0}
    assert costs.by_model == {"H100": 26.0, "H200": 4.0}
    assert costs.mean_hours_to_repair == 3.0
    assert costs.mean_hours_between_failures == pytest.approx(400 / 3, abs=0.001)


def test_only_the_part_of_a_fault_within_the_span_counts() -> None:
    fault = Fault("a", "H100", "xid-79", 2, 10 * HOUR, 20 * HOUR)
    assert fault_costs([fault], 1, 15 * HOUR, 16 * HOUR).lost_gpu_hours == 2.0
    assert fault_costs([fault], 1, 15 * HOUR, 16 * HOUR).faults == 0, "it was found before"
    after = fault_costs([fault], 1, 21 * HOUR, 30 * HOUR)
    assert (after.lost_gpu_hours, after.mean_hours_between_failures, after.mean_hours_to_repair) == (
        0.0,
        None,
        None,
    )
