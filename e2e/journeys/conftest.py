"""Fixtures: one installation of both charts for all journeys, and a namespace of users for each."""

import json
from collections.abc import Iterator

import pytest
from tests.scheduler.stage import POD_GROUPS_CRD
from tests.shim.nvml import State, machine, meshed, sliced, switched

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.system import System, Users

MACHINES: dict[str, State] = {
    "node-a": switched(8),
    "node-b": meshed((0, 1), (2, 3)),
    "node-m": sliced(machine(2), 0),
}
"""Eight H100 on an NVSwitch; four V100 in two islands; two H100, the first with MIG instances."""


@pytest.fixture(scope="package")
def system(cluster: Cluster, shared_fake_nodes: FakeNodes) -> Iterator[System]:
    """Install gpufleet and PodGroups on three nodes with GPUs and one without."""
    shared_fake_nodes.problems.clear()
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(POD_GROUPS_CRD))
    names = shared_fake_nodes.add(*MACHINES, "node-cpu")
    try:
        with System(cluster, shared_fake_nodes, MACHINES) as system:
            yield system
    finally:
        shared_fake_nodes.remove(*names)
        cluster.kubectl("delete", "crd", "podgroups.scheduling.x-k8s.io", "--wait=false")
    assert shared_fake_nodes.problems == []


@pytest.fixture
def users(system: System, namespace: str) -> Iterator[Users]:
    """Return the users of a new namespace; delete their pods afterwards and wait until every GPU is free."""
    users = Users(system.cluster, system.nodes, namespace)
    yield users
    users.clean_up()
    system.cluster.wait_for("free GPUs", lambda: not system.leases() and not system.gpus_in_use())
