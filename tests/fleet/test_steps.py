"""Working in steps gives the same result as working in one go, whatever changes in between."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.workload import FleetPod, Status

NODES, PODS = 200, 300
"""More than fit into one step."""


def pod(number: int, **changes: object) -> FleetPod:
    facts: dict[str, object] = {
        "name": f"p{number}",
        "namespace": "ml",
        "node": f"n{number % NODES}",
        "gpus": 1,
        "bound": 500.0 + number,
    }
    return FleetPod(uid=f"p{number}", **{**facts, "phase": Status.RUNNING, **changes})  # type: ignore[arg-type]


def full() -> Fleet:
    fleet = Fleet("test", clock=lambda: 10_000.0)
    for number in range(NODES):
        fleet.put_node(FleetNode(name=f"n{number}", gpu_count=4, created=100.0 + number))
    for number in range(PODS):
        fleet.put_pod(pod(number))
    fleet.refresh()
    return fleet


def happen(fleet: Fleet, what: str, number: int) -> None:
    if what == "finish":
        fleet.put_pod(pod(number, phase=Status.COMPLETED, ended=9_000.0))
    elif what == "delete":
        fleet.drop_pod(f"p{number}")
    elif what == "shrink":
        fleet.put_node(FleetNode(name=f"n{number % NODES}", gpu_count=2, created=100.0 + number % NODES))
    elif what == "new":
        fleet.put_pod(pod(PODS + number))
    else:
        fleet.drop_node(f"n{number % NODES}")
    fleet.refresh()


events = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["finish", "delete", "shrink", "new", "drop"]),
        st.integers(0, PODS - 1),
    ),
    max_size=12,
)


def recorded(fleet: Fleet) -> tuple[list[AllocationPeriod], list[CapacityPeriod]]:
    """Return every period that is not empty."""
    held = [p for p in fleet.allocation_periods.drain() if p.end != p.start]
    had = [p for p in fleet.capacity_periods.drain() if p.end != p.start]
    return (
        sorted(held, key=lambda p: (p.pod_uid, p.start)),
        sorted(had, key=lambda p: (p.node, p.start)),
    )


@settings(max_examples=40, deadline=None)
@given(events)
def test_accounting_started_in_steps_records_the_same_as_in_one_go(
    happened: list[tuple[int, str, int]],
) -> None:
    in_steps, in_one_go = full(), full()
    in_one_go.start_accounting()
    steps = in_steps.start_accounting_steps()
    waiting = sorted(happened, key=lambda event: event[0])
    for number, _ in enumerate(steps):
        assert not in_steps.accounting_started
        while waiting and waiting[0][0] <= number:
            happen(in_steps, *waiting.pop(0)[1:])
    for event in waiting:
        happen(in_steps, *event[1:])
    assert in_steps.accounting_started
    for event in sorted(happened, key=lambda event: event[0]):
        happen(in_one_go, *event[1:])
    held, had = recorded(in_steps)
    assert (held, had) == recorded(in_one_go)
    assert len(held) >= PODS - len(happened)
