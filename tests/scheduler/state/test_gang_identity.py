"""Which gang a pod belongs to, and how many members the gang needs."""

from typing import Any

import pytest
from msgspec import convert

from gpufleet.kubernetes.annotations import GANG_MAX_SIZE, GANG_SIZE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import NativePodGroup, Pod, PodGroup
from gpufleet.scheduler.state import Ledger
from gpufleet.scheduler.state.gang_identity import NATIVE, Gang

LWS = {
    "leaderworkerset.sigs.k8s.io/group-key": "key-0",
    "leaderworkerset.sigs.k8s.io/name": "inference",
}
JOBSET = {"jobset.sigs.k8s.io/jobset-uid": "uid-of-jobset"}


def ledger(gang_ref: str = "run", annotations: dict[str, str] | None = None) -> Ledger:
    made = Ledger()
    meta = {"name": "c", "namespace": "ns", "annotations": annotations or {}}
    spec = {"devices": {"count": 1}, **({"gangRef": gang_ref} if gang_ref else {})}
    made.put_claim(convert({"metadata": meta, "spec": spec}, GpuClaim))
    return made


def pod(
    name: str = "p",
    owner: str = "",
    labels: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> Pod:
    owners = [{"kind": "Job", "name": "j", "uid": owner, "controller": True}] if owner else []
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "labels": labels or {},
        "annotations": {"gpu.scheduling/claim": "c"},
        "ownerReferences": owners,
    }
    return convert({"metadata": meta, "spec": spec or {}}, Pod)


def group(name: str, least: int) -> PodGroup:
    return convert({"metadata": {"name": name, "namespace": "ns"}, "spec": {"minMember": least}}, PodGroup)


@pytest.mark.parametrize(
    ("member", "gang"),
    [
        (pod(labels=JOBSET, spec={"schedulingGroup": {"podGroupName": "n"}}), Gang("ns", "n", NATIVE)),
        (pod(labels={"scheduling.x-k8s.io/pod-group": "x", **LWS}), Gang("ns", "x")),
        (pod(owner="u", labels=LWS), Gang("ns", "run", "key-0")),
        (pod(owner="u", labels=JOBSET), Gang("ns", "run", "uid-of-jobset")),
        (pod(owner="u"), Gang("ns", "run", "u")),
        (pod(), Gang("ns", "run")),
    ],
    ids=("native", "label", "leader worker set", "job set", "owner", "no owner"),
)
def test_the_most_specific_identity_wins(member: Pod, gang: Gang) -> None:
    assert ledger().gangs.of(member) == gang


def test_a_pod_without_any_reference_has_no_gang() -> None:
    assert ledger(gang_ref="").gangs.of(pod(owner="u", labels=LWS)) is None


def test_a_pod_group_joins_the_pods_of_several_owners() -> None:
    known = ledger()
    known.gangs.put_group(group("run", 2))
    assert known.gangs.of(pod(owner="u")) == known.gangs.of(pod(owner="v")) == Gang("ns", "run")


def test_two_runs_of_a_cron_job_are_two_gangs() -> None:
    known = ledger(annotations={GANG_SIZE: "2", GANG_MAX_SIZE: "3"})
    for name, owner in (("a", "u"), ("b", "u"), ("c", "v")):
        known.put_pod(pod(name, owner))
    assert known.gangs.named(("ns", "run")) == {Gang("ns", "run", "u"), Gang("ns", "run", "v")}
    assert [each.metadata.name for each in known.gangs.members(Gang("ns", "run", "u"))] == ["a", "b"]
    needs = known.gangs.requirements(Gang("ns", "run", "u"))
    assert needs is not None
    assert (needs.min_members, needs.max_members) == (2, 3)


def test_the_size_comes_from_the_native_group_the_pod_group_or_the_leader_worker_set() -> None:
    known = ledger(gang_ref="")
    native = {"schedulingPolicy": {"gang": {"minCount": 4}}}
    known.gangs.put_native_group(
        convert({"metadata": {"name": "n", "namespace": "ns"}, "spec": native}, NativePodGroup)
    )
    known.gangs.put_group(group("n", 7))
    known.put_pod(pod(spec={"schedulingGroup": {"podGroupName": "n"}}))
    needs = known.gangs.requirements(Gang("ns", "n", NATIVE))
    assert needs is not None
    assert needs.min_members == 4
    known = ledger()
    member = pod(labels=LWS)
    member.metadata.annotations["leaderworkerset.sigs.k8s.io/size"] = "5"  # type: ignore[index]
    known.put_pod(member)
    needs = known.gangs.requirements(Gang("ns", "run", "key-0"))
    assert needs is not None
    assert needs.min_members == 5
