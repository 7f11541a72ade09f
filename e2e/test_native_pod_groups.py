"""Test gangs that native PodGroups (scheduling.k8s.io) define, with their feature gate on."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.test_queue_order import Gangs
from e2e.test_scheduler import Scheduler, running_scheduler

VERSION = "scheduling.k8s.io/v1alpha2"


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster) -> Iterator[Scheduler]:
    """Run the scheduler on a cluster with native PodGroups and without those of scheduling.x-k8s.io."""
    with cluster.feature_gates(["GenericWorkload"], [VERSION]), running_scheduler(cluster) as scheduler:
        yield scheduler


class NativeGangs(Gangs):
    """Users whose gangs are native PodGroups."""

    def group(self, name: str, least: int, seconds: int = 30) -> None:
        body = {
            "apiVersion": VERSION,
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
        }
        self.cluster.api.create(f"/apis/{VERSION}/namespaces/{self.namespace}/podgroups", body)

    def member(self, name: str, group: str, claim: str, **spec: Any) -> None:
        self.pod(name, claim, schedulingGroup={"podGroupName": group}, **spec)


@pytest.fixture
def users(
    scheduler: Scheduler, cluster: Cluster, fake_nodes: FakeNodes, namespace: str
) -> Iterator[NativeGangs]:
    users = NativeGangs(cluster, fake_nodes, namespace)
    yield users
    users.clean_up()
    cluster.wait_for("released leases", lambda: not users.leases())
    users.remove_reports()


def test_a_native_pod_group_is_planned_as_one_gang(users: NativeGangs, cluster: Cluster) -> None:
    users.add_nodes("node-a", "node-b", gpus=2)
    users.claim("one")
    users.claim("two", 2)
    users.pod("first", "one")
    users.running("first")
    users.group("g", 2)
    users.member("g-0", "g", "two")
    users.waits("two", "gang g: 1 of 2 members exist")
    users.member("g-1", "g", "two")
    users.waits("two", "gang g: 1 of 2 members fit")
    assert len(users.leases()) == 1, "half a gang holds no GPUs"
    users.delete("first")
    users.running("g-0", "g-1")
    log = (cluster.logs / "gpufleet-scheduler.log").read_text()
    assert "could not find the requested resource" not in log, "a kind that is not served is no warning"
