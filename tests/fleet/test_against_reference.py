"""After any sequence of events the live state equals a full recomputation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleet.reference import Reference

from gpufleet.fleet.overview import overview
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status

NODES = ["n0", "n1", "n2"]
OWNERS = ["o0", "o1", "o2"]
PODS = [f"p{i}" for i in range(6)]

nodes = st.builds(
    FleetNode,
    name=st.sampled_from(NODES),
    ready=st.booleans(),
    cordoned=st.booleans(),
    fault=st.sampled_from(["", "", "tainted"]),
    gpu_count=st.integers(0, 4),
)
gpus = st.builds(
    FleetGpu,
    index=st.integers(0, 3),
    health=st.sampled_from([Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN]),
    in_use_by=st.lists(st.sampled_from(PODS), max_size=2, unique=True).map(tuple),
)
devices = st.builds(
    lambda node, found: NodeDevices(node=node, gpus=tuple(found), total=len(found)),
    st.sampled_from(NODES),
    st.lists(gpus, max_size=4, unique_by=lambda gpu: gpu.index),
)
references = st.none() | st.builds(
    OwnerRef, st.sampled_from(OWNERS), st.just("Job"), st.sampled_from(["o", "o", "other"])
)
namespaces = st.sampled_from(["a", "a", "b", ""])
owners = st.builds(
    FleetOwner,
    uid=st.sampled_from(OWNERS),
    kind=st.just("Job"),
    name=st.just("o"),
    namespace=namespaces,
    parent=references,
)
pods = st.builds(
    FleetPod,
    uid=st.sampled_from(PODS),
    name=st.just("p"),
    namespace=namespaces,
    node=st.sampled_from(["", *NODES]),
    phase=st.sampled_from(list(Status)),
    owner=references,
    gpus=st.integers(0, 3),
    share=st.sampled_from([1.0, 1.0, 0.5, 0.1]),
)
events = st.one_of(
    st.tuples(st.just("put_node"), nodes),
    st.tuples(st.just("drop_node"), st.sampled_from(NODES)),
    st.tuples(st.just("put_devices"), devices),
    st.tuples(st.just("drop_devices"), st.sampled_from(NODES)),
    st.tuples(
        st.just("put_leases"),
        st.sampled_from(NODES),
        st.dictionaries(st.integers(0, 3), st.just(("p1", "p2"))),
    ),
    st.tuples(st.just("put_owner"), owners),
    st.tuples(st.just("put_pod"), pods),
    st.tuples(st.just("drop_pod"), st.sampled_from(PODS)),
    st.tuples(
        st.just("readings"),
        st.dictionaries(st.tuples(st.sampled_from(NODES), st.integers(0, 3)), st.floats(0, 100)),
    ),
    st.tuples(st.just("look")),
)


def apply(fleet: Fleet, reference: Reference, event: tuple) -> None:  # type: ignore[type-arg]
    match event:
        case ("put_node", node):
            fleet.put_node(node)
            reference.nodes[node.name] = node
        case ("drop_node", name):
            fleet.drop_node(name)
            reference.nodes.pop(name, None)
        case ("put_devices", found):
            fleet.put_devices(found)
            reference.devices[found.node] = found
        case ("drop_devices", name):
            fleet.drop_devices(name)
            reference.devices.pop(name, None)
        case ("put_leases", name, holders):
            fleet.put_leases(name, holders)
            reference.leases[name] = holders
        case ("put_owner", owner):
            fleet.put_owner(owner)
            reference.owners[owner.uid] = owner
        case ("put_pod", pod):
            fleet.put_pod(pod)
            reference.pods[pod.uid] = pod
        case ("drop_pod", uid):
            fleet.drop_pod(uid)
            reference.pods.pop(uid, None)
        case ("readings", values):
            reference.utilization = values
        case _:
            fleet.refresh()


def read(fleet: Fleet, values: dict[tuple[str, int], float]) -> None:
    known = {
        (name, gpu.index): values[name, gpu.index]
        for name, view in fleet.views().items()
        for gpu in view.gpus
        if (name, gpu.index) in values
    }
    keys = sorted(known)
    column = np.array([known[key] for key in keys])
    fleet.put_readings(
        Readings(
            taken_at=1.0,
            gpus=tuple(GpuIdentity(GpuRef(*key)) for key in keys),
            values={Quantity.UTILIZATION: column},
            times={Quantity.UTILIZATION: np.ones(len(keys))},
        )
    )


@settings(max_examples=250, deadline=None)
@given(st.lists(events, max_size=40))
def test_the_live_state_equals_a_full_recomputation(history: list[tuple]) -> None:  # type: ignore[type-arg]
    fleet, reference = Fleet("c", clock=lambda: 1000.0), Reference()
    for event in history:
        apply(fleet, reference, event)
    read(fleet, reference.utilization)
    seen = overview(fleet)
    states = reference.states()
    assert (seen.faulty, seen.idle, seen.partial, seen.busy) == (
        states["faulty"],
        states["idle"],
        states["partial"],
        states["busy"],
    )
    assert seen.healthy + seen.faulty == seen.nodes == sum(states.values())
    assert seen.allocated == sum(reference.allocated(node) for node in reference.nodes)
    expected = reference.mean_utilization()
    if expected is None:
        assert seen.utilization is None
    else:
        assert seen.utilization == pytest.approx(expected)
    consumers = Listing(fleet, max_staleness=0).consumers(1, 100).rows
    assert sorted((row.uid, row.gpus) for row in consumers if row.gpus) == reference.consumers()
