"""Run pods for given times on the real planner with a simulated clock, without an API server.

What the planner places is bound at once, and pods end when their run time is over, so a simulation
shows the planner's own decisions. Time advances from one arrival or end to the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec import structs

from gpufleet.kubernetes import CacheChange, Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.kubernetes.objects import Node, ObjectMeta, Pod, PodGroup, PodGroupSpec, PodSpec, PodStatus
from gpufleet.placement import Fits
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.planning.plan import Placed
from gpufleet.scheduler.scheduler import Scheduler

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Unit:
    """A pod, or a gang of `size` pods, that arrives at some time and runs for `runtime` seconds."""

    arrives: int
    gpus: int
    runtime: int
    size: int = 1
    declared: int | None = None
    """The run time that its pods declare."""
    namespace: str = "ns"

    @property
    def longest(self) -> int:
        """Return the longest time that it may run, as far as it says."""
        return self.declared or self.runtime


@dataclass
class Simulation:
    """A cluster and its planner; `started` and `ended` have the times of each unit by its number."""

    nodes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    units: list[Unit] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    """When running pods end, by UID."""

    def __post_init__(self) -> None:
        timing = Timing(now=self.clock, monotonic=lambda: self.now, random=lambda: 0.5)
        # The planner does no I/O: no call of the API is ever made.
        api = cast(SchedulerApi, None)
        self.scheduler = Scheduler(api, SchedulerSettings(**self.settings), "gpufleet", timing=timing)
        self._version = 0
        for name, gpus in self.nodes.items():
            self.scheduler.watch_events.on_nodes([self._new(Node(ObjectMeta(name=name)))])
            devices = tuple(DeviceStatus(at, health="Healthy") for at in range(gpus))
            report = GpuNodeStatus(
                metadata=ObjectMeta(name=name), spec=NodeGpusSpec(name), status=NodeGpus(devices, gpus)
            )
            self.scheduler.watch_events.on_reports([self._new(report)])

    def clock(self) -> datetime:
        """Return the time of day."""
        return START + timedelta(seconds=self.now)

    def run(self, units: Iterable[Unit]) -> None:
        """Let these units arrive and run to their ends."""
        coming = sorted(units, key=lambda unit: unit.arrives)
        at = 0
        while at < len(coming) or self.ends:
            self.now = min([*self.ends.values(), *(unit.arrives for unit in coming[at : at + 1])])
            for uid in [uid for uid, end in self.ends.items() if end <= self.now]:
                self._end(uid)
            while at < len(coming) and coming[at].arrives <= self.now:
                self.arrive(coming[at])
                at += 1
            self.plan()
        assert len(self.started) == len(coming), f"{set(range(len(coming))) - set(self.started)} never start"

    def plan(self) -> None:
        """Plan everything that is due and bind what was placed."""
        while True:
            complete = self.scheduler.planner.advance(1.0)
            self._act()
            if complete:
                return

    def arrive(self, unit: Unit) -> None:
        """Create the objects of a unit; a pod asks for a place at once."""
        number = len(self.units)
        self.units.append(unit)
        name, namespace = f"u{number:05d}", unit.namespace
        gang = name if unit.size > 1 else ""
        claim = GpuClaim(
            metadata=ObjectMeta(name=name, namespace=namespace),
            spec=ClaimSpec(ClaimDevices(count=unit.gpus), gang_ref=gang),
        )
        self.scheduler.watch_events.on_claims([self._new(claim)])
        if gang:
            group = PodGroup(ObjectMeta(name=gang, namespace=namespace), PodGroupSpec(unit.size, 60))
            self.scheduler.watch_events.on_groups([self._new(group)])
        # Many units may arrive in one second; their names keep the order within it.
        created = START + timedelta(seconds=self.now)
        pods = []
        for member in range(unit.size):
            meta = ObjectMeta(
                name=f"{name}-{member}",
                namespace=namespace,
                annotations={CLAIM: name},
                creation_timestamp=created,
            )
            pods.append(self._new(Pod(meta, self.pod_spec(unit))))
        self.scheduler.watch_events.on_pods(pods)
        if not gang:
            self.ask(pods[0].object)

    def pod_spec(self, unit: Unit) -> PodSpec:
        """Return the spec of a unit's pods."""
        return PodSpec(active_deadline_seconds=unit.declared)

    def offered(self, pod: Pod) -> list[str]:
        """Return the nodes that kube-scheduler offers for a pod."""
        return sorted(self.nodes)

    def ask(self, pod: Pod) -> None:
        """Ask for a place as kube-scheduler does."""
        decision = self.scheduler.planner.plan_pod(pod, self.offered(pod))
        self._act()
        if isinstance(decision, Placed):
            self._bind(pod, decision.members[pod.metadata.uid])

    def _act(self) -> None:
        for each in self.scheduler._decisions.take():
            if isinstance(each.decision, Placed):
                for pod in each.pods:
                    self._bind(pod, each.decision.members[pod.metadata.uid])

    def _bind(self, pod: Pod, fits: Fits) -> None:
        meta = pod.metadata
        number = number_of(pod)
        self.started[number] = self.now
        self.ends[meta.uid] = self.now + self.units[number].runtime
        for gpu in fits.gpus:
            assert not self.scheduler.ledger.leases.get(f"gpu-{fits.node}-{gpu}"), "two pods share a GPU"
            holder = LeaseHolder(meta.namespace, meta.name, "", fits.request.milli_per_gpu, stamp="s")
            lease = new_lease("gpufleet", fits.node, gpu, {meta.uid: holder}, "", START)
            self.scheduler.watch_events.on_leases([self._new(lease)])
        spec = structs.replace(pod.spec, node_name=fits.node)
        status = PodStatus(phase="Running", start_time=START + timedelta(seconds=self.now))
        self.scheduler.watch_events.on_pods([CacheChange(pod, self._versioned(Pod(meta, spec, status)))])
        self.scheduler.ledger.release_hold(meta.uid)

    def _end(self, uid: str) -> None:
        del self.ends[uid]
        ledger = self.scheduler.ledger
        for node, gpus in list(ledger.leases_of(uid).items()):
            for gpu in list(gpus):
                lease = ledger.leases[f"gpu-{node}-{gpu}"].object
                self.scheduler.watch_events.on_leases([CacheChange(lease, None)])
        self.scheduler.watch_events.on_pods([CacheChange(ledger.pods[uid], None)])

    def _new(self, item: Any) -> CacheChange[Any]:
        uid = f"{type(item).__name__}-{item.metadata.name}-{self._version}"
        meta = structs.replace(item.metadata, uid=uid)
        return CacheChange(None, self._versioned(structs.replace(item, metadata=meta)))

    def _versioned(self, item: Any) -> Any:
        self._version += 1
        return structs.replace(
            item, metadata=structs.replace(item.metadata, resource_version=str(self._version))
        )


def number_of(pod: Pod) -> int:
    """Return the number of the unit that a pod belongs to."""
    return int(pod.metadata.name[1:6])
