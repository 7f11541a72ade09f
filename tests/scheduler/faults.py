"""Faults to plant in a scheduler, one at a time: the state machine must find each.

A fault is what a careless change might do: a missing step, a missing check, two steps in the wrong
order. It is patched into the scheduler of one process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.client.errors import Unanswered
from gpufleet.kubernetes.leases import LeaseHolder, read_lease, with_holders
from gpufleet.kubernetes.objects import Lease, Pod
from gpufleet.placement import Fits
from gpufleet.scheduler.leases.writer import PodRef, Reserved
from gpufleet.scheduler.scheduler import Scheduler

Plant = Callable[[Scheduler], None]


def leaves_leases_after_a_refused_binding(scheduler: Scheduler) -> None:
    """The undo is skipped."""

    async def skip(pod: Pod, version: str, node: str, reserved: Reserved, error: Exception) -> str:
        scheduler.ledger.release_hold(pod.metadata.uid)
        return str(error)

    _set(scheduler.binder, "_after_refusal", skip)


def treats_no_response_as_failure(scheduler: Scheduler) -> None:
    """A Binding without a response is undone without reading the pod."""

    async def undo(pod: Pod, node: str, fits: Fits | None, reserved: Reserved, error: Exception) -> str:
        await scheduler.lease_writer.unreserve(pod.metadata.uid, node, reserved.new, reserved.stamp)
        scheduler.ledger.release_hold(pod.metadata.uid)
        return str(error)

    _set(scheduler.binder, "_after_unanswered", undo)


def deletes_leases_without_precondition(scheduler: Scheduler) -> None:
    """Leases are deleted by name alone."""
    api: Any = scheduler._api

    async def delete(name: str, uid: str, resource_version: str) -> None:
        def act() -> None:
            api._world.remove("leases", "gpufleet", name)

        await api._call(f"delete lease {name}", act)

    _set(api, "delete_lease", delete)


def releases_any_stamp(scheduler: Scheduler) -> None:
    """An entry that was renewed meanwhile is released too."""
    original = scheduler.lease_writer.unreserve

    async def unreserve(uid: str, node: str, gpus: Sequence[int], stamp: str | None) -> bool:
        return await original(uid, node, gpus, None)

    _set(scheduler.lease_writer, "unreserve", unreserve)


def releases_what_it_only_renewed(scheduler: Scheduler) -> None:
    """A failed attempt releases leases that another process may be binding the pod with."""
    original = scheduler.lease_writer._acquire

    async def take(node: str, gpu: int, uid: str, part: LeaseHolder, renewed: set[int]) -> None:
        await original(node, gpu, uid, part, set())

    _set(scheduler.lease_writer, "_acquire", take)


def reclaims_without_changing_the_pod(scheduler: Scheduler) -> None:
    """Bindings in flight are not invalidated first."""

    async def reclaim(pod: Pod, leased: Any) -> bool:
        return await scheduler.lease_gc._release(pod.metadata.uid, leased, "not_bound", stamped=True)

    _set(scheduler.lease_gc, "reclaim", reclaim)


def binds_any_version(scheduler: Scheduler) -> None:
    """The Binding has no resource version."""
    api: Any = scheduler._api
    original = api.bind

    async def bind(
        namespace: str, pod: str, uid: str, version: str, node: str, notes: Mapping[str, str]
    ) -> None:
        await original(namespace, pod, uid, "", node, notes)

    _set(api, "bind", bind)


def binds_before_it_leases(scheduler: Scheduler) -> None:
    """The Binding is sent before the leases are written."""
    api: Any = scheduler._api
    reserve, bind = scheduler.lease_writer.reserve, api.bind
    late: dict[str, tuple[PodRef, Fits]] = {}

    async def later(pod: PodRef, fits: Fits) -> Reserved:
        late[pod.uid] = (pod, fits)
        return Reserved("", ())

    async def bind_first(
        namespace: str, pod: str, uid: str, version: str, node: str, notes: Mapping[str, str]
    ) -> None:
        await bind(namespace, pod, uid, version, node, notes)
        if uid in late:
            await reserve(*late.pop(uid))

    _set(scheduler.lease_writer, "reserve", later)
    _set(api, "bind", bind_first)


def does_not_hold_its_choice(scheduler: Scheduler) -> None:
    """The next pod gets the same GPUs."""
    _set(scheduler.ledger, "hold", lambda uid, hold: None)


def does_not_count_holds(scheduler: Scheduler) -> None:
    """Holds are stored but not counted."""
    original = scheduler.ledger._allocation

    def wanted(key: str, uid: str, node: str) -> Any:
        hold = scheduler.ledger.holds.pop(uid, None)
        try:
            return original(key, uid, node)
        finally:
            if hold is not None:
                scheduler.ledger.holds[uid] = hold

    _set(scheduler.ledger, "_allocation", wanted)


def overwrites_other_holders(scheduler: Scheduler) -> None:
    """A share of a GPU overwrites the shares of other pods."""
    api: Any = scheduler._api
    original = api.replace_lease

    async def replace(lease: Lease) -> Any:
        read = read_lease(lease)
        assert read is not None
        uid, holder = list(read.holders.items())[-1]
        return await original(with_holders(lease, {uid: holder}, scheduler._timing.now()))

    _set(api, "replace_lease", replace)


def treats_no_response_as_a_free_gpu(scheduler: Scheduler) -> None:
    """A lease that could not be read counts as missing."""
    original = scheduler.lease_writer._read

    async def read(name: str) -> Any:
        try:
            return await original(name)
        except Unanswered:
            return None

    async def force(lease: Lease) -> Lease:
        api: Any = scheduler._api

        def act() -> Any:
            return api._world.write("leases", lease)

        made: Lease = await api._call(f"create lease {lease.metadata.name}", act)
        return made

    _set(scheduler.lease_writer, "_read", read)
    _set(scheduler._api, "create_lease", force)


def forgets_leases_of_finished_pods(scheduler: Scheduler) -> None:
    """Only the leases of deleted pods are released, not those of finished pods."""
    original = scheduler.lease_gc._release

    async def release(uid: str, leased: Any, reason: str, *, stamped: bool = False) -> bool:
        return reason == "finished" or await original(uid, leased, reason, stamped=stamped)

    _set(scheduler.lease_gc, "_release", release)


def forgets_what_it_could_not_release(scheduler: Scheduler) -> None:
    """A failed release is not retried."""
    original = scheduler.lease_gc._reconcile_safely

    async def tend(uid: str) -> bool:
        await original(uid)
        return True

    _set(scheduler.lease_gc, "_reconcile_safely", tend)


def counts_a_pods_own_leases_against_it(scheduler: Scheduler) -> None:
    """A pod's own leases count against it."""
    _set(scheduler.planner._placement, "current", lambda uid, request, nodes: None)

    class Nothing:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    _set(scheduler.ledger, "excluding", lambda uid: Nothing())


def binds_members_alone(scheduler: Scheduler) -> None:
    """Binds of a gang don't wait for each other."""

    async def permit(uid: str, gang: Any, timeout_s: float) -> bool:
        return True

    _set(scheduler.gangs, "permit", permit)


def trusts_leases_from_before_a_change_of_the_pod(scheduler: Scheduler) -> None:
    """A member is bound with the leases of its gang although the pod has changed since they were written."""
    original = scheduler.binder._gang_leases

    def trust(pod: Pod, fits: Fits) -> Reserved | None:
        known = scheduler.gangs.plans.leases_of(pod.metadata.uid)
        if known is not None:
            scheduler.gangs.plans.pod_changed(
                pod.metadata.uid, known.pod_version, pod.metadata.resource_version
            )
        return original(pod, fits)

    _set(scheduler.binder, "_gang_leases", trust)


def keeps_part_of_a_gang_on_timeout(scheduler: Scheduler) -> None:
    """One member's leases are forgotten when a plan is dropped."""
    original = scheduler.gangs._reclaim_members

    async def give_up(plan: Any, members: list[Pod]) -> None:
        await original(plan, members[:-1])

    _set(scheduler.gangs, "_reclaim_members", give_up)


def reserves_part_of_a_gang(scheduler: Scheduler) -> None:
    """A gang continues without the members that could not be reserved."""

    async def reserve_some(gang: Any, pods: list[Pod], places: Sequence[Fits]) -> bool:
        for pod, fits in list(zip(pods, places, strict=True))[:1]:
            meta = pod.metadata
            name = PodRef(meta.uid, meta.namespace, meta.name, meta.annotations[CLAIM])
            await scheduler.lease_writer.reserve(name, fits)
        return True

    _set(scheduler.gangs, "_reserve_all", reserve_some)


def accepts_old_watch_events(scheduler: Scheduler) -> None:
    """A late watch event replaces a newer response."""
    original = scheduler.ledger.put_lease

    def put(lease: Lease) -> None:
        scheduler.ledger.leases.pop(lease.metadata.name, None)
        original(structs.replace(lease))

    _set(scheduler.ledger, "put_lease", put)


def does_not_retry_status_writes(scheduler: Scheduler) -> None:
    """A failed status write is not retried."""
    original = scheduler.statuses._write

    async def write(key: Any) -> None:
        await original(key)

    _set(scheduler.statuses, "_write", write)


def _set(part: Any, name: str, act: Any) -> None:
    assert hasattr(part, name), f"{type(part).__name__} has no {name} any more"
    setattr(part, name, act)


FAULTS: tuple[Plant, ...] = (
    leaves_leases_after_a_refused_binding,
    treats_no_response_as_failure,
    reclaims_without_changing_the_pod,
    binds_before_it_leases,
    does_not_hold_its_choice,
    does_not_count_holds,
    overwrites_other_holders,
    treats_no_response_as_a_free_gpu,
    forgets_leases_of_finished_pods,
    counts_a_pods_own_leases_against_it,
    binds_members_alone,
)

RARE: tuple[Plant, ...] = (
    deletes_leases_without_precondition,
    releases_any_stamp,
    keeps_part_of_a_gang_on_timeout,
    binds_any_version,
    forgets_what_it_could_not_release,
)
"""Found in long sequences of small steps."""

VERY_RARE: tuple[Plant, ...] = (
    reserves_part_of_a_gang,
    accepts_old_watch_events,
    does_not_retry_status_writes,
    trusts_leases_from_before_a_change_of_the_pod,
    releases_what_it_only_renewed,
)
"""Found late, or not in every run: `GPUFLEET_EXAMPLES=500` tests these too."""
