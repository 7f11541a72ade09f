"""Orders that are updated incrementally equal a full sort."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Filter, Listing
from gpufleet.model.node import FleetNode
from gpufleet.model.workload import JOB_ID, FleetOwner, FleetPod, OwnerRef, Status

changes = st.lists(
    st.tuples(
        st.sampled_from(("put", "end", "drop", "look")),
        st.integers(0, 7),
        st.integers(0, 4),
        st.integers(1, 5),
    ),
    max_size=40,
)


def names(fleet: Fleet, order: str) -> list[str]:
    """Every workload in order, by a full sort."""
    everyone = {uid: ended.workload for uid, ended in fleet.ended().items()} | dict(fleet.workloads())
    if order == "consumers":
        consumers = [w for w in fleet.workloads().values() if w.gpus > 0 and not w.status.ended]
        return [w.uid for w in sorted(consumers, key=lambda w: (-w.gpus, w.name, w.namespace, w.uid))]
    ends = order == "end_at"
    newest = sorted(everyone.values(), key=lambda w: (-(w.ended if ends else w.started), w.uid))
    return [w.uid for w in newest]


@given(changes)
@settings(max_examples=80, deadline=None)
def test_incremental_orders_equal_a_full_sort(changed: list[tuple[str, int, int, int]]) -> None:
    fleet = Fleet("c", clock=lambda: 1000.0, keep_ended=3)
    fleet.put_node(FleetNode(name="n", gpu_count=64))
    listing = Listing(fleet, max_staleness=0)
    for what, number, gpus, start in changed:
        uid = f"w{number}"
        if what == "drop":
            fleet.drop_pod(f"p{number}", 900.0 + start)
            fleet.drop_owner(uid)
        elif what in ("put", "end"):
            status = Status.COMPLETED if what == "end" else Status.RUNNING
            fleet.put_owner(FleetOwner(uid=uid, kind="Job", name=f"job-{number % 3}", status=status))
            fleet.put_pod(
                FleetPod(
                    uid=f"p{number}",
                    name=uid,
                    node="n",
                    gpus=gpus + 1,
                    phase=status,
                    bound=float(start),
                    started=float(start),
                    ended=500.0 + start if what == "end" else 0.0,
                    owner=OwnerRef(uid, "Job", f"job-{number % 3}"),
                )
            )
        if what == "look":
            continue
        for order in ("start_at", "end_at"):
            page = listing.workloads(Filter(), order, 1, 100)
            assert [row.uid for row in page.rows] == names(fleet, order)
            assert page.total == len(page.rows)
        assert [row.uid for row in listing.consumers(1, 100).rows] == names(fleet, "consumers")
        some = listing.workloads(Filter(name="JOB-1"), "start_at", 1, 100)
        assert [row.uid for row in some.rows] == [
            uid for uid in names(fleet, "start_at") if int(uid[1:]) % 3 == 1
        ]


def test_many_changes_at_once_are_sorted_in_one_go() -> None:
    fleet = Fleet("c")
    listing = Listing(fleet)
    for number in range(1500):
        fleet.put_pod(
            FleetPod(uid=f"p{number}", name=f"p{number}", node="n", gpus=number % 7 + 1, phase=Status.RUNNING)
        )
    rows = listing.consumers(1, 2000).rows
    assert [row.uid for row in rows] == names(fleet, "consumers")
    assert len(rows) == 1500


def test_a_slurm_job_is_found_by_its_id() -> None:
    fleet = Fleet("c")
    for number in (712, 7120):
        job = FleetOwner(
            uid=f"slurm-{number}", kind="SlurmJob", name="train", annotations={JOB_ID: str(number)}
        )
        fleet.put_owner(job)
        fleet.put_pod(
            FleetPod(uid=f"p{number}", name=str(number), gpus=1, owner=OwnerRef(job.uid, "SlurmJob", "train"))
        )
    page = Listing(fleet).workloads(Filter(name="712"), "start_at", 1, 100)
    assert [row.uid for row in page.rows] == ["slurm-712"]
