"""Test that fleet, claims, ResourceClaims and bills count the same GPUs in mode `dra`, whichever process is killed."""

from tests.shim.nvml import switched

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.journeys.test_counting import check_through_kills
from e2e.node import resource_claims
from e2e.system import Observations, System, Users

NODES = ("node-a", "node-b")


def test_fleet_claims_devices_and_bills_count_the_same_gpus_through_kills(
    cluster: Cluster, fake_nodes: FakeNodes, namespace: str, observations: Observations
) -> None:
    fake_nodes.add(*NODES, "node-cpu")
    machines = {name: switched(8) for name in NODES}
    with System(cluster, fake_nodes, machines, scheduler_values={"delivery": "dra"}) as system:
        resource_claims.publish_reported(cluster, *NODES)
        users = Users(cluster, fake_nodes, namespace)
        try:
            check_through_kills(system, users, observations)
        finally:
            users.clean_up()
            resource_claims.unpublish(cluster, *NODES)
