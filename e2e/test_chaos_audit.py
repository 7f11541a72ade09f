"""Test that the check of the audit log finds GPUs that were held twice, and only those."""

import json
from typing import Any

from e2e.chaos.audit import check_log
from e2e.cluster.cluster import audit_entry
from gpufleet.kubernetes.annotations import HOLDERS


def event(
    verb: str, resource: str, name: str, at: int, sub: str | None = None, **more: Any
) -> dict[str, Any]:
    target = {"resource": resource, "namespace": "users", "name": name}
    moment = f"2026-01-01T00:00:{at:02d}.000000Z"
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "objectRef": {**target, "subresource": sub} if sub else target,
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": moment,
        "stageTimestamp": moment,
        **more,
    }


def bound(name: str, gpus: str, at: int) -> dict[str, Any]:
    meta = {"uid": f"uid-{name}", "annotations": {"gpu.scheduling/allocated": gpus}}
    return event("create", "pods", name, at, "binding", requestObject={"metadata": meta})


def allocated(claim: str, pod: str, device: str, at: int, version: int = 1) -> dict[str, Any]:
    """Return the write of an allocation; without a device it clears the allocation."""
    results = [{"pool": "a", "device": device}] if device else []
    owner = {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"}
    body = {
        "metadata": {
            "name": claim,
            "uid": f"uid-{claim}",
            "resourceVersion": str(version),
            "ownerReferences": [owner],
        },
        "status": {"allocation": {"devices": {"results": results}}} if device else {},
    }
    return event("patch", "resourceclaims", claim, at, "status", responseObject=body)


def leased(*uids: str, at: int, milli: int = 1000) -> dict[str, Any]:
    holders = json.dumps({uid: {"namespace": "users", "milli": milli, "stamp": "s"} for uid in uids})
    body = {
        "metadata": {"name": "gpu-a-0", "annotations": {HOLDERS: holders}},
        "spec": {"holderIdentity": ",".join(uids)},
    }
    return event("create", "leases", "gpu-a-0", at, responseObject=body)


def ended(name: str, at: int) -> dict[str, Any]:
    pod = {"metadata": {"uid": f"uid-{name}"}, "status": {"phase": "Succeeded"}}
    return event("patch", "pods", name, at, "status", responseObject=pod)


def test_two_pods_on_one_gpu_at_the_same_time_are_found() -> None:
    log = [bound("p", "a:0,1", 1), bound("q", "a:1", 2), ended("p", 3), ended("q", 4)]
    [fault] = check_log(log, {}, set()).faults
    assert fault.startswith("a:1 was held by p, q")


def test_pods_that_hold_a_gpu_one_after_the_other_are_no_fault() -> None:
    log = [bound("p", "a:0", 1), ended("p", 2), bound("q", "a:0", 3), event("delete", "pods", "q", 4)]
    verdict = check_log([*log, bound("r", "a:0", 5)], {}, {"uid-r"})
    assert (verdict.faults, verdict.bindings, verdict.unrecorded_ends) == ([], 3, 0)


def test_two_halves_share_a_gpu_but_three_do_not() -> None:
    shares = {f"uid-{name}": 500 for name in "pqr"}
    log = [bound("p", "a:0", 1), bound("q", "a:0", 2)]
    alive = set(shares)
    assert check_log(log, shares, alive).faults == []
    assert len(check_log([*log, bound("r", "a:0", 3)], shares, alive).faults) == 1


def test_leases_tell_the_shares_of_pods() -> None:
    log = [leased("uid-p", at=1, milli=500), bound("p", "a:0", 2), leased("uid-p", "uid-q", at=3, milli=500)]
    assert check_log(log, {}, {"uid-p", "uid-q"}).faults == []


def test_a_pod_without_a_logged_end_is_counted_separately() -> None:
    verdict = check_log([bound("p", "a:0", 1), bound("q", "a:0", 9)], {}, {"uid-q"})
    assert (verdict.faults, verdict.unrecorded_ends) == ([], 1)


def test_a_lease_deleted_without_preconditions_is_found() -> None:
    unconditional = event("delete", "leases", "gpu-a-0", 1, requestObject={})
    conditional = event(
        "delete",
        "leases",
        "gpu-a-0",
        2,
        requestObject={"preconditions": {"uid": "u", "resourceVersion": "7"}},
    )
    assert check_log([unconditional, conditional], {}, set()).faults == [
        "gpu-a-0 was deleted without preconditions"
    ]


def test_a_device_in_two_allocations_is_found() -> None:
    log = [
        allocated("p-claim", "p", "gpu-0", 1),
        bound("p", "", 2),
        allocated("q-claim", "q", "gpu-0", 3),
        ended("p", 4),
        event("delete", "resourceclaims", "p-claim", 5),
        event("delete", "resourceclaims", "q-claim", 6),
    ]
    verdict = check_log(log, {}, set())
    [fault] = verdict.faults
    assert fault.startswith("a:0 was held by ResourceClaim p-claim, ResourceClaim q-claim")
    assert verdict.allocations == 2
    assert check_log(log, {"uid-p": 500, "uid-q": 500}, set()).faults == []


def test_a_device_that_is_allocated_again_after_it_was_cleared_is_no_fault() -> None:
    log = [
        allocated("p-claim", "p", "gpu-0", 1, version=1),
        allocated("p-claim", "p", "", 3, version=3),
        allocated("p-claim", "p", "gpu-0", 3, version=2),  # logged late
        allocated("q-claim", "q", "gpu-0", 4),
    ]
    assert check_log(log, {}, {"uid-p", "uid-q"}).faults == []


def test_a_claim_with_a_finalizer_keeps_its_device_when_it_is_deleted() -> None:
    deleted = {"metadata": {"name": "p-claim", "finalizers": ["resource.kubernetes.io/delete-protection"]}}
    log = [
        allocated("p-claim", "p", "gpu-0", 1),
        event("delete", "resourceclaims", "p-claim", 2, responseObject=deleted),
        allocated("q-claim", "q", "gpu-0", 3),
        event("delete", "resourceclaims", "p-claim", 4),
    ]
    assert len(check_log(log, {}, {"uid-q"}).faults) == 1


def test_a_device_in_the_allocation_of_one_pod_and_a_lease_of_another_is_found() -> None:
    mirror = [allocated("p-claim", "p", "gpu-0", 1), bound("p", "", 2), leased("uid-p", at=3)]
    assert check_log(mirror, {}, {"uid-p"}).faults == []
    lost = [*mirror, allocated("q-claim", "q", "gpu-0", 5)]
    assert len(check_log(lost, {}, {"uid-p", "uid-q"}).faults) == 1
    # The claim is deleted under the running pod, and only the lease is left.
    deleted = [*mirror, event("delete", "resourceclaims", "p-claim", 4), lost[-1]]
    faults = check_log(deleted, {}, {"uid-p", "uid-q"}).faults
    assert [fault.partition(" at ")[0] for fault in faults] == [
        "ResourceClaim p-claim was cleared",
        "a:0 was held by lease gpu-a-0 of uid-p, ResourceClaim q-claim",
    ]


def test_the_lease_of_an_ended_pod_is_no_holder() -> None:
    log = [
        allocated("p-claim", "p", "gpu-0", 1),
        bound("p", "", 2),
        leased("uid-p", at=3),
        ended("p", 4),
        event("delete", "resourceclaims", "p-claim", 5),
        allocated("q-claim", "q", "gpu-0", 6),
    ]
    assert check_log(log, {}, {"uid-p", "uid-q"}).faults == []


def test_an_entry_that_a_killed_api_server_did_not_finish_does_not_hide_the_next_one() -> None:
    whole = b'{"kind":"Event","verb":"create"}\n'
    assert audit_entry(b'{"kind":"Event","verb":"upd' + whole) == audit_entry(whole)
