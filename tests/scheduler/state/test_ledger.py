"""The ledger with objects that arrive late, change or are deleted."""

from datetime import UTC, datetime

from msgspec import structs

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.kubernetes.objects import (
    Condition,
    Node,
    NodeSpec,
    NodeStatusFields,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PodStatus,
    Taint,
)
from gpufleet.scheduler.explain import explain
from gpufleet.scheduler.state import Ledger


def pod(version: int, claim: str = "one", node: str = "") -> Pod:
    meta = ObjectMeta(
        name="p", namespace="ns", uid="u", resource_version=str(version), annotations={CLAIM: claim}
    )
    return Pod(meta, PodSpec(node_name=node))


def report(*users: str) -> GpuNodeStatus:
    gpus = NodeGpus((DeviceStatus(0, users, "Healthy"),), 1)
    return GpuNodeStatus(metadata=ObjectMeta(name="a"), spec=NodeGpusSpec("a"), status=gpus)


def test_a_pod_that_changes_its_claim_leaves_the_first() -> None:
    ledger = Ledger()
    ledger.put_pod(pod(1, "one"))
    ledger.put_pod(pod(2, "two"))
    assert ledger.pods_of("ns", "one") == []
    assert [each.metadata.uid for each in ledger.pods_of("ns", "two")] == ["u"]
    ledger.drop_pod("u")
    assert ledger.pods_of("ns", "one") == ledger.pods_of("ns", "two") == []


def test_a_late_response_does_not_bring_a_deleted_pod_back() -> None:
    ledger = Ledger()
    ledger.put_pod(pod(1))
    ledger.drop_pod("u")
    ledger.put_pod(pod(2, node="a"))
    assert ledger.pods == {}
    assert ledger.pods_of("ns", "one") == []


def test_pods_missing_from_new_reports_are_forgotten() -> None:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    for at in range(100):
        ledger.put_report(report(f"pod-{at}"))
    assert len(ledger._reported) == 1
    assert "pod-99" in ledger._reported
    ledger.drop_report("a")
    assert len(ledger._reported) == 0


def test_heartbeats_of_a_node_are_no_relevant_changes() -> None:
    ledger = Ledger()
    assert ledger.put_node(Node(ObjectMeta(name="a", resource_version="1")))
    assert ledger.put_report(report())
    alive = NodeStatusFields(conditions=(Condition("Ready", "True"),))
    assert not ledger.put_node(Node(ObjectMeta(name="a", resource_version="2"), status=alive))
    assert not ledger.put_report(report("somebody"))
    lost = NodeStatusFields(conditions=(Condition("Ready", "Unknown"),))
    assert ledger.put_node(Node(ObjectMeta(name="a", resource_version="3"), status=lost))
    assert ledger.put_node(Node(ObjectMeta(name="a", resource_version="4"), status=alive))
    tainted = NodeSpec(taints=(Taint("key", "", "NoSchedule"),))
    assert ledger.put_node(Node(ObjectMeta(name="a", resource_version="5"), tainted, alive))
    assert ledger.put_node(Node(ObjectMeta(name="a", resource_version="6"), status=alive))
    labelled = ObjectMeta(name="a", resource_version="7", labels={"gpu-type": "a100"})
    assert ledger.put_node(Node(labelled, status=alive))


def test_a_gpu_left_by_a_pod_without_a_lease_counts_as_freed() -> None:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    ledger.put_pod(pod(1, claim="", node="a"))
    ledger.put_report(report("u"))

    def taken() -> bool:
        return ledger.cluster.nodes["a"].gpus[0].taken

    assert taken()
    freed = ledger.freed
    ledger.put_pod(pod(2, claim="", node="a"))
    assert ledger.freed == freed
    ledger.put_pod(structs.replace(pod(3, claim="", node="a"), status=PodStatus(phase="Succeeded")))
    assert not taken()
    assert ledger.freed > freed


def test_a_gpu_of_a_pod_that_vanished_while_it_ran_is_draining_until_the_agent_sees_it_idle() -> None:
    """Such as a pod that was deleted by force."""
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    ledger.put_pod(pod(1, claim="", node="a"))
    ledger.put_report(report("u"))

    def taken() -> bool:
        return ledger.cluster.nodes["a"].gpus[0].taken

    ledger.drop_pod("u")
    assert taken()
    assert ledger.draining() == ["a:0"]
    ledger.put_report(report("u"))
    assert taken()
    used = DeviceStatus(0, health="Healthy", draining_pods=("u",))
    ledger.put_report(structs.replace(report(), status=NodeGpus((used,), 1)))
    assert ledger.draining() == ["a:0"]
    freed = ledger.freed
    assert ledger.put_report(report())
    assert not taken()
    assert (ledger.draining(), ledger.freed > freed) == ([], True)


def test_the_gpus_of_a_gang_are_available_to_it() -> None:
    ledger = Ledger()
    ledger.put_node(Node(ObjectMeta(name="a")))
    ledger.put_report(report())
    spec = ClaimSpec(ClaimDevices(1), gang_ref="g")
    claim = GpuClaim(metadata=ObjectMeta(name="one", namespace="ns"), spec=spec)
    ledger.put_claim(claim)
    ledger.gangs.put_group(PodGroup(ObjectMeta(name="g", namespace="ns"), PodGroupSpec(1)))
    ledger.put_pod(pod(1))
    holder = {"u": LeaseHolder("ns", "p", "one", 1000, (), "stamp")}
    ledger.put_lease(new_lease("default", "a", 0, holder, "", datetime.now(UTC)))
    why = explain(ledger, "ns", "one")
    assert "gang g fits" in why.sentence
