"""Chains of controller references: which count, how deep they are followed, and what changes move."""

import itertools
import random
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.hierarchy import objects_of
from gpufleet.fleet.workloads.ownership import MAX_DEPTH
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status

NAMES = {"team": "robotics"}


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet("test", clock=lambda: 1000.0)
    fleet.start_accounting()
    return fleet


def pod(uid: str, owner: OwnerRef | None = None, namespace: str = "ml") -> FleetPod:
    return FleetPod(
        uid=uid,
        name=uid,
        namespace=namespace,
        node="a",
        gpus=1,
        phase=Status.RUNNING,
        bound=900.0,
        owner=owner,
    )


def chain(length: int) -> list[FleetPod]:
    return [
        pod(f"p{number}", OwnerRef(f"p{number - 1}", "Pod", f"p{number - 1}") if number else None)
        for number in range(length)
    ]


def job(uid: str, namespace: str, parent: OwnerRef | None = None) -> FleetOwner:
    return FleetOwner(uid=uid, kind="Job", name=uid, namespace=namespace, parent=parent, labels=NAMES)


def ref(uid: str, kind: str = "Job") -> OwnerRef:
    return OwnerRef(uid, kind, uid)


def roots(fleet: Fleet) -> dict[str, str]:
    return {each.uid: workload.uid for workload in fleet.workloads().values() for each in workload.pods}


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_is_followed_to_its_limit_in_whatever_order_its_pods_arrive(fleet: Fleet, seed: int) -> None:
    pods = chain(40)
    random.Random(seed).shuffle(pods)
    for each in pods:
        fleet.put_pod(each)
    expected = {f"p{n}": "p0" if n <= MAX_DEPTH else f"p{n}" for n in range(40)}
    assert roots(fleet) == expected
    assert {each.pod_uid: each.workload_uid for each in fleet.allocation_periods.open()} == expected
    assert len(list(objects_of(fleet.object_tree("p0")))) == MAX_DEPTH + 1
    assert fleet.object_tree("p20").children == ()


def test_a_chain_that_is_cut_is_logged_once_for_its_namespace(fleet: Fleet) -> None:
    with capture_logs() as logs:
        for each in chain(60):
            fleet.put_pod(each)
    (entry,) = [each for each in logs if each["event"] == "owner_chain_cut"]
    assert (entry["namespace"], entry["name"]) == ("ml", f"p{MAX_DEPTH + 1}")


def test_a_long_chain_that_is_deleted_leaves_nothing(fleet: Fleet) -> None:
    for each in chain(60):
        fleet.put_pod(each)
    for number in (30, 0, 5, *range(60)):
        fleet.drop_pod(f"p{number}")
        fleet.refresh()
    assert fleet.workloads() == {}
    ownership = fleet.ownership
    assert not any(each for each in vars(ownership).values() if each is not ownership._logged)


def test_the_pods_below_a_cycle_of_owners_are_shown(fleet: Fleet) -> None:
    fleet.put_owner(job("x", "ml", ref("y")))
    fleet.put_owner(job("y", "ml", ref("x")))
    fleet.put_pod(pod("p", ref("y")))
    fleet.put_pod(pod("q", ref("q", "Pod")))
    assert roots(fleet) == {"p": "p", "q": "q"}


def test_a_fork_below_a_cycle_costs_and_breaks_nothing(fleet: Fleet) -> None:
    for number in range(30):
        fleet.put_pod(pod(f"a{number}", ref("b", "Pod")))
    fleet.put_pod(pod("b", ref("a0", "Pod")))
    assert len(roots(fleet)) == 31


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (OwnerRef("victim", "Job", "victim"), "it is in another namespace"),
        (OwnerRef("victim", "Bogus", "victim"), "the kind differs"),
        (OwnerRef("victim", "Job", "other"), "the name differs"),
    ],
)
@pytest.mark.parametrize("owner_first", [True, False])
def test_a_forged_reference_shows_nothing_of_its_owner(
    fleet: Fleet, forged: OwnerRef, why: str, owner_first: bool
) -> None:
    events: list[Callable[[], None]] = [
        lambda: fleet.put_owner(job("victim", "robotics")),
        lambda: fleet.put_pod(pod("real", ref("victim"), "robotics")),
        lambda: fleet.put_pod(pod("forged", forged, "vision")),
    ]
    for event in events if owner_first else reversed(events):
        event()
    assert roots(fleet) == {"real": "victim", "forged": "victim@vision"}, why
    workload = fleet.workloads()["victim@vision"]
    assert (workload.namespace, workload.labels, workload.annotations) == ("vision", {}, {})
    periods = {each.pod_uid: each for each in fleet.allocation_periods.open()}
    assert (periods["forged"].workload_uid, periods["forged"].labels) == ("victim@vision", {})
    assert (periods["real"].workload_uid, periods["real"].labels) == ("victim", NAMES)


def test_a_kind_or_name_that_differs_does_not_count_in_the_same_namespace_either(fleet: Fleet) -> None:
    fleet.put_owner(job("j", "ml"))
    fleet.put_pod(pod("p", OwnerRef("j", "Bogus", "j")))
    assert roots(fleet) == {"p": "j@ml"}


def test_pods_of_one_unread_owner_are_one_workload_in_each_namespace(fleet: Fleet) -> None:
    for number, namespace in enumerate(("ml", "ml", "vision")):
        fleet.put_pod(pod(f"p{number}", OwnerRef("x", "RayJob", "tune"), namespace))
    assert roots(fleet) == {"p0": "x@ml", "p1": "x@ml", "p2": "x@vision"}
    assert [each.name for each in fleet.workloads().values()] == ["tune", "tune"]


def test_an_owner_outside_namespaces_owns_pods_of_any(fleet: Fleet) -> None:
    fleet.put_owner(job("j", ""))
    for number, namespace in enumerate(("ml", "vision")):
        fleet.put_pod(pod(f"p{number}", ref("j"), namespace))
    assert roots(fleet) == {"p0": "j", "p1": "j"}


def test_pods_seen_before_their_owners_are_accounted_to_them(fleet: Fleet) -> None:
    events: list[Callable[[], None]] = [
        lambda: fleet.put_pod(pod("p", ref("inner"))),
        lambda: fleet.put_owner(job("inner", "ml", ref("outer"))),
        lambda: fleet.put_owner(job("outer", "ml")),
    ]
    for order in itertools.permutations(events):
        fresh = Fleet("test", clock=lambda: 1000.0)
        fresh.start_accounting()
        fleet.ownership, fleet = fresh.ownership, fresh
        for event in order:
            event()
        (period,) = fleet.allocation_periods.open()
        assert (period.workload_uid, period.labels) == ("outer", NAMES)
        assert [each.workload_uid for each in fleet.allocation_periods.drain()] == ["outer"]


def test_running_work_keeps_its_owner_after_the_owner_is_deleted(fleet: Fleet) -> None:
    fleet.put_owner(job("outer", "ml"))
    fleet.put_owner(job("inner", "ml", ref("outer")))
    fleet.put_pod(pod("p", ref("inner")))
    fleet.allocation_periods.drain()
    for uid in ("outer", "inner"):
        fleet.drop_owner(uid)
        fleet.refresh()
    fleet.put_pod(pod("p", ref("inner")))
    fleet.put_pod(pod("q", ref("inner")))
    assert roots(fleet) == {"p": "outer", "q": "outer"}
    assert [each.pod_uid for each in fleet.allocation_periods.drain()] == ["q"]
