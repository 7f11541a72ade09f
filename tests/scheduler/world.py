"""A model of the API server that can fail in every way an API server can fail.

Every call waits until the test decides its outcome: done and answered, done with the response
lost, failed, rejected, or executed later, after the caller has given up; or the caller is killed
just before or after it. Watches deliver events in order, as late as the test decides. `Process`
is a scheduler that can be killed between any two calls and can lose leadership.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from msgspec import convert, structs, to_builtins

from gpufleet.kubernetes import CacheChange, Timing
from gpufleet.kubernetes.annotations import CLAIM, NUDGE
from gpufleet.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    ObjectNotFound,
    ServerFault,
    Status,
    TooManyRequests,
    Unanswered,
)
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, ClaimStatus, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import (
    KubeObject,
    Lease,
    Node,
    ObjectMeta,
    ObjectReference,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodStatus,
    SchedulingGate,
)
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceClaimStatus
from gpufleet.placement import Fits
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.scheduler import Scheduler, Waits
from gpufleet.scheduler.watched_pods import WatchedSpec

Outcome = Literal["done", "answer lost", "failed", "refused", "late", "killed before", "killed after"]
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Call:
    """A call in flight: its effect, and the future that waits for the response."""

    name: str
    act: Callable[[], Any]
    answer: "asyncio.Future[Any]"
    process: "Process"


@dataclass
class World:
    """The objects, their history, and the calls in flight."""

    nodes: Mapping[str, int]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    objects: dict[tuple[str, str, str], KubeObject] = field(default_factory=dict)
    history: list[tuple[str, KubeObject | None, KubeObject | None]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    late: list[Callable[[], Any]] = field(default_factory=list)
    bind_called: set[str] = field(default_factory=set)
    """UIDs of the pods whose bind has been called."""
    renewed: set[tuple[str, str]] = field(default_factory=set)
    """Leases, by name and holder, that a later attempt has renewed."""
    version: int = 0
    now: float = 0.0
    some_bound_directly: bool = False
    """Whether every second pod may be bound directly; otherwise all wait for kube-scheduler."""

    def __post_init__(self) -> None:
        for name, gpus in self.nodes.items():
            self.write("nodes", Node(ObjectMeta(name=name)))
            devices = tuple(DeviceStatus(at, health="Healthy") for at in range(gpus))
            report = GpuNodeStatus(
                metadata=ObjectMeta(name=name), spec=NodeGpusSpec(name), status=NodeGpus(devices, gpus)
            )
            self.write("reports", report)

    # -- objects ---------------------------------------------------------------------------

    def write(self, kind: str, item: Any) -> Any:
        """Store a new state of an object."""
        self.version += 1
        meta = item.metadata
        key = (kind, meta.namespace, meta.name)
        before = self.objects.get(key)
        uid = meta.uid or f"{kind}-{meta.name}-{self.version}"
        item = structs.replace(
            item, metadata=structs.replace(meta, uid=uid, resource_version=str(self.version))
        )
        if isinstance(item, Lease):
            self._note_renewals(before, item)
        self.objects[key] = item
        self.history.append((kind, before, item))
        return item

    def _note_renewals(self, before: Any, lease: Lease) -> None:
        old, new = (read_lease(each).holders if each else {} for each in (before, lease))  # type: ignore[union-attr]
        for uid, holder in new.items():
            if uid in old and old[uid].stamp != holder.stamp:
                self.renewed.add((lease.metadata.name, uid))
            elif uid not in old:
                self.renewed.discard((lease.metadata.name, uid))

    def remove(self, kind: str, namespace: str, name: str) -> None:
        before = self.objects.pop((kind, namespace, name), None)
        if before is not None:
            self.history.append((kind, before, None))

    def all(self, kind: str) -> list[Any]:
        return [item for (of, _, _), item in self.objects.items() if of == kind]

    def pod(self, name: str, namespace: str = "ns") -> Pod | None:
        found = self.objects.get(("pods", namespace, name))
        return found if isinstance(found, Pod) else None

    def add_claim(self, name: str, gang: str = "", **devices: Any) -> None:
        spec = ClaimSpec(ClaimDevices(**devices), gang_ref=gang)
        self.write("claims", GpuClaim(metadata=ObjectMeta(name=name, namespace="ns"), spec=spec))

    def add_group(self, name: str, least: int, seconds: int) -> None:
        self.write("groups", PodGroup(ObjectMeta(name=name, namespace="ns"), PodGroupSpec(least, seconds)))

    def add_pod(self, name: str, claim: str, gates: tuple[str, ...] = (), priority: int = 0) -> Pod:
        meta = ObjectMeta(
            name=name,
            namespace="ns",
            annotations={CLAIM: claim},
            creation_timestamp=START + timedelta(seconds=self.version),
        )
        spec = WatchedSpec(
            scheduler_name="gpu-scheduler",
            scheduling_gates=tuple(SchedulingGate(gate) for gate in gates),
            priority=priority,
            needs_kube_scheduler=not self.some_bound_directly or self.version % 2 == 1,
        )
        pod: Pod = self.write("pods", Pod(meta, spec))
        return pod

    def finish(self, pod: Pod) -> None:
        self.write("pods", structs.replace(pod, status=PodStatus(phase="Succeeded")))

    def delete(self, pod: Pod) -> None:
        """Delete a pod as the server does: a running pod terminates gracefully, others immediately."""
        meta = pod.metadata
        if pod.spec.node_name and not pod.finished and meta.deletion_timestamp is None:
            leaving = structs.replace(meta, deletion_timestamp=START + timedelta(seconds=self.version))
            self.write("pods", structs.replace(pod, metadata=leaving))
        else:
            self.remove("pods", meta.namespace, meta.name)

    # -- calls -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Run all processes until each waits for a response."""
        self.loop.run_until_complete(_until_all_wait(self.loop))

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Decide the outcome of a call."""
        self.calls.remove(call)
        lost = Unanswered(f"{call.name}: no answer")
        if outcome != "done" and not call.name.startswith("bind"):
            call.process.excuse()
        if outcome == "failed":
            self._fail(call, ServerFault(f"{call.name}: etcd is away", Status(code=500)))
        elif outcome == "refused":
            self._fail(call, TooManyRequests(f"{call.name}: later", Status(code=429)))
        elif outcome == "killed before":
            call.process.kill()
        elif outcome == "killed after":
            self._do(call.act)
            call.process.kill()
        elif outcome == "late":
            self.late.append(call.act)
            self._fail(call, lost)
        else:
            try:
                result = call.act()
            except (ObjectNotFound, Conflict) as refusal:
                self._fail(call, lost if outcome == "answer lost" else refusal)
            else:
                if outcome == "answer lost":
                    self._fail(call, lost)
                elif not call.answer.done():
                    call.answer.set_result(result)
        self.settle()

    def arrive_late(self, at: int) -> None:
        """Execute a request whose caller has given up."""
        self._do(self.late.pop(at))

    @staticmethod
    def _do(act: Callable[[], Any]) -> None:
        with suppress(ObjectNotFound, Conflict):
            act()

    @staticmethod
    def _fail(call: Call, error: Exception) -> None:
        if not call.answer.done():
            call.answer.set_exception(error)


async def _until_all_wait(loop: asyncio.AbstractEventLoop) -> None:
    # Checks the loop's own queue: a fixed number of turns would have to be ten times as many.
    for _ in range(10_000):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            return
    raise AssertionError("the processes never become idle")


def conflict(what: str) -> Conflict:
    return Conflict(what, Status(code=409, reason="Conflict"))


def missing(what: str) -> ObjectNotFound:
    return ObjectNotFound(what, Status(code=404, reason="NotFound"))


class ModelApi:
    """`SchedulerApi` of one process; the world decides the outcome of every call."""

    def __init__(self, world: World, process: "Process") -> None:
        self._world = world
        self._process = process

    async def _call(self, name: str, act: Callable[[], Any]) -> Any:
        call = Call(name, act, self._world.loop.create_future(), self._process)
        self._world.calls.append(call)
        return await call.answer

    def _lease(self, name: str) -> Any:
        return self._world.objects.get(("leases", "gpufleet", name))

    async def read_lease(self, name: str) -> Lease | None:
        found: Lease | None = await self._call(f"read lease {name}", lambda: self._lease(name))
        return found

    async def create_lease(self, lease: Lease) -> Lease:
        def act() -> Any:
            if self._lease(lease.metadata.name):
                raise AlreadyExists("there", Status(code=409, reason="AlreadyExists"))
            return self._world.write("leases", lease)

        made: Lease = await self._call(f"create lease {lease.metadata.name}", act)
        return made

    async def replace_lease(self, lease: Lease) -> Lease:
        def act() -> Any:
            known = self._lease(lease.metadata.name)
            if known is None:
                raise missing("no lease")
            if known.metadata.resource_version != lease.metadata.resource_version:
                raise conflict("changed")
            return self._world.write("leases", lease)

        made: Lease = await self._call(f"replace lease {lease.metadata.name}", act)
        return made

    async def delete_lease(self, name: str, uid: str, resource_version: str) -> None:
        def act() -> None:
            known = self._lease(name)
            if known is None:
                raise missing("no lease")
            if (known.metadata.uid, known.metadata.resource_version) != (uid, resource_version):
                raise conflict("changed")
            self._world.remove("leases", "gpufleet", name)

        await self._call(f"delete lease {name}", act)

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        found: Pod | None = await self._call(f"read pod {name}", lambda: self._world.pod(name, namespace))
        return found

    async def bind(
        self,
        namespace: str,
        pod: str,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
    ) -> None:
        def act() -> None:
            known = self._world.pod(pod, namespace)
            if known is None:
                raise missing("no pod")
            meta = known.metadata
            if meta.uid != uid or resource_version not in ("", meta.resource_version):
                raise conflict("precondition")
            if known.spec.node_name or known.spec.scheduling_gates or meta.deletion_timestamp:
                raise conflict("already assigned, gated, or leaving")
            noted = structs.replace(meta, annotations={**meta.annotations, **annotations})
            self._world.write(
                "pods",
                structs.replace(known, metadata=noted, spec=structs.replace(known.spec, node_name=node)),
            )

        await self._call(f"bind {pod} to {node}", act)

    async def nudge(self, namespace: str, pod: str, uid: str, nudge_value: str) -> Pod | None:
        def act() -> Any:
            known = self._world.pod(pod, namespace)
            if known is None or known.metadata.uid != uid:
                return None
            meta = known.metadata
            noted = structs.replace(meta, annotations={**meta.annotations, NUDGE: nudge_value})
            return self._world.write("pods", structs.replace(known, metadata=noted))

        found: Pod | None = await self._call(f"nudge {pod}", act)
        return found

    async def remove_gate(self, pod: Pod, gate: str) -> Pod | None:
        def act() -> Any:
            known = self._world.pod(pod.metadata.name, pod.metadata.namespace)
            if known is None or known.metadata.uid != pod.metadata.uid:
                return None
            left = tuple(each for each in known.spec.scheduling_gates if each.name != gate)
            spec = structs.replace(known.spec, scheduling_gates=left)
            opened = self._world.write("pods", structs.replace(known, spec=spec))
            return opened if known.metadata.resource_version == pod.metadata.resource_version else None

        found: Pod | None = await self._call(f"open gate of {pod.metadata.name}", act)
        return found

    async def evict(self, namespace: str, pod: str, uid: str, grace: float | None = None) -> None:
        def act() -> None:
            known = self._world.pod(pod, namespace)
            if known is not None and known.metadata.uid == uid:
                self._world.delete(known)

        await self._call(f"evict {pod}", act)

    def _resource_claim(self, claim: ResourceClaim) -> ResourceClaim | None:
        meta = claim.metadata
        known: Any = self._world.objects.get(("resource_claims", meta.namespace, meta.name))
        return known if known is not None and known.metadata.uid == meta.uid else None

    async def read_claim(self, claim: ResourceClaim) -> ResourceClaim | None:
        name = f"read resource claim {claim.metadata.name}"
        found: ResourceClaim | None = await self._call(name, lambda: self._resource_claim(claim))
        return found

    async def write_claim(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        def act() -> Any:
            known = self._resource_claim(claim)
            if known is None or known.metadata.resource_version != claim.metadata.resource_version:
                raise conflict("changed")
            if known.status.allocation is not None and status.get("allocation"):
                raise conflict("immutable")
            before = to_builtins(known.status)
            after = {key: value for key, value in {**before, **status}.items() if value is not None}
            if after.get("reservedFor") and not after.get("allocation"):
                raise conflict("reserved without an allocation")
            written = convert(after, ResourceClaimStatus, strict=False)
            return self._world.write("resource_claims", structs.replace(known, status=written))

        name = f"write {', '.join(status)} of resource claim {claim.metadata.name}"
        made: ResourceClaim = await self._call(name, act)
        return made

    async def touch_claim(self, claim: ResourceClaim, value: str) -> ResourceClaim | None:
        def act() -> Any:
            known = self._resource_claim(claim)
            if known is None:
                return None
            meta = structs.replace(known.metadata, annotations={NUDGE: value})
            return self._world.write("resource_claims", structs.replace(known, metadata=meta))

        found: ResourceClaim | None = await self._call(f"touch resource claim {claim.metadata.name}", act)
        return found

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str]) -> Pod | None:
        def act() -> Any:
            known = self._world.pod(pod.metadata.name, pod.metadata.namespace)
            if known is None or known.metadata.uid != pod.metadata.uid:
                return None
            meta = structs.replace(known.metadata, annotations={**known.metadata.annotations, **annotations})
            return self._world.write("pods", structs.replace(known, metadata=meta))

        found: Pod | None = await self._call(f"annotate {pod.metadata.name}", act)
        return found

    async def write_queue_status(self, queue: str, status: Mapping[str, Any]) -> None:
        """There are no GpuQueues in this world."""

    async def write_status(self, namespace: str, claim: str, status: Mapping[str, Any]) -> None:
        def act() -> None:
            known: Any = self._world.objects.get(("claims", namespace, claim))
            given = {key: value for key, value in status.items() if value is not None}
            self._world.write("claims", structs.replace(known, status=convert(given, ClaimStatus)))

        await self._call(f"write status of {claim}", act)

    async def record_event(
        self, about: ObjectReference, reason: str, note: str, type: Literal["Normal", "Warning"]
    ) -> None:
        return


class Process:
    """One scheduler process and the position of its watch; `plant` may put a fault into it."""

    _names = 0
    kinds: tuple[str, ...] = ("leases", "nodes", "reports", "claims", "groups", "pods")
    """The kinds of objects that it watches, in the order in which they are listed."""

    def __init__(
        self,
        world: World,
        plant: Callable[[Scheduler], None] = lambda scheduler: None,
        **settings: Any,
    ) -> None:
        Process._names += 1
        self.world = world
        self.name = f"s{Process._names}"
        self.alive = True
        self.stamps = 0
        self.excused = 0
        """Stamps up to this one may leave leases, because a call other than a Binding has failed."""
        self.choices: dict[str, Fits] = {}
        timing = Timing(
            now=lambda: START + timedelta(seconds=world.now, microseconds=world.version + 1),
            monotonic=lambda: world.now,
            random=lambda: 0.5,
        )
        chosen = SchedulerSettings(**{"hold": 5.0, **settings})
        self.scheduler = Scheduler(
            ModelApi(world, self),
            chosen,
            "gpufleet",
            timing=timing,
            new_stamp=self._stamp,
            waits=Waits(10.0, 0.0),
        )
        self.scheduler.direct.most_left = 0
        plant(self.scheduler)
        self.tasks: dict[asyncio.Task[Any], str] = {}
        self.rounds: dict[str, asyncio.Task[Any]] = {}
        self.seen = len(world.history)
        for kind in self.kinds:
            self._deliver(kind, [CacheChange(None, item) for item in world.all(kind)])
        self.start_leading()

    def _stamp(self) -> str:
        self.stamps += 1
        return f"{self.name}-{self.stamps}"

    def excuse(self) -> None:
        """Excuse all attempts so far from the check for leases left behind."""
        self.excused = self.stamps

    def _deliver(self, kind: str, changes: list[CacheChange[Any]]) -> None:
        getattr(self.scheduler.watch_events, f"on_{kind}")(changes)

    def watch(self, events: int = 1_000_000) -> None:
        """Deliver the next watch events."""
        for kind, before, after in self.world.history[self.seen : self.seen + events]:
            self._deliver(kind, [CacheChange(before, after)])
        self.seen = min(len(self.world.history), self.seen + events)
        self.world.settle()

    def start_leading(self) -> None:
        """Start to lead and reconcile everything from scratch."""
        self.leading = True
        self.scheduler.lease_gc.enqueue_all()
        self.scheduler.gangs.enqueue_all()
        self.scheduler.statuses.enqueue_all()
        self.scheduler.mirror.enqueue_all()

    def stop_leading(self) -> None:
        """Stop leading: cancel the reconcile loops; verbs in flight continue."""
        self.leading = False
        for task in self.rounds.values():
            task.cancel()
        self.excuse()
        self.world.settle()
        self.rounds.clear()
        self.world.calls = [call for call in self.world.calls if not call.answer.cancelled()]

    def reconcile_with(self, part: Literal["lease_gc", "plan", "statuses", "allocator", "mirror"]) -> None:
        """Run one step of a component, unless one is running."""
        task = self.rounds.get(part)
        if task is None or task.done():
            if task is not None:
                task.result()
            step = self.scheduler.plan_step if part == "plan" else getattr(self.scheduler, part).step
            self.rounds[part] = self._start(step())
            self.world.settle()

    def schedule(self, pod: Pod) -> bool:
        """Filter, and bind if a node was found, as kube-scheduler does."""
        if pod.spec.node_name or pod.spec.scheduling_gates or pod.finished:
            return False

        async def ask() -> Any:
            return self.scheduler.filter(pod, sorted(self.world.nodes))

        choice = self.world.loop.run_until_complete(ask())
        self.world.settle()
        meta = pod.metadata
        if not isinstance(choice, Fits):
            self.choices.pop(meta.uid, None)
            return False
        self.choices[meta.uid] = choice
        self.world.bind_called.add(meta.uid)
        task = self._start(self.scheduler.bind(meta.namespace, meta.name, meta.uid, choice.node))
        self.tasks[task] = meta.uid
        self.world.settle()
        return True

    def _start(self, work: Any) -> "asyncio.Task[Any]":
        return self.world.loop.create_task(work)

    def check_tasks(self) -> None:
        """Check that no finished task has raised: errors are returned."""
        for task in [task for task in self.tasks if task.done()]:
            uid = self.tasks.pop(task)
            task.result()
            if uid not in self.tasks.values():
                self.choices.pop(uid, None)
        for reconcile_with in self.rounds.values():
            if reconcile_with.done():
                reconcile_with.result()

    @property
    def idle(self) -> bool:
        """Return whether no task is running."""
        works = (*self.tasks, *self.rounds.values(), *self.scheduler.tasks)
        return self.alive and all(task.done() for task in works)

    def kill(self) -> None:
        """Kill the process; requests that it has sent may still be executed."""
        self.alive = False
        for call in [call for call in self.world.calls if call.process is self]:
            self.world.calls.remove(call)
        for task in (*self.tasks, *self.rounds.values(), *self.scheduler.tasks):
            task.cancel()
        self.world.settle()
        self.tasks.clear()
        self.rounds.clear()
