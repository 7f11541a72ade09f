"""Test that the check of the audit log finds GPUs that were held twice, and only those."""

from typing import Any

from e2e.chaos.audit import check_log


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
