"""Measure planning with a full cluster: 500 nodes, 50 waiting gangs of 8 and 2,000 waiting pods.

Half of the gangs have a higher priority than the running pods and search for victims. kube-scheduler tries the
pods while the gangs are planned, and pods end one after the other. The API answers at once and evicts no pod. A
stall is the longest CPU time that the loop's thread spent in one callback.
"""

import asyncio
import gc
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import uvloop

from bench.loop_lag import LoopMonitor
from bench.result import Result
from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.kubernetes.objects import (
    Container,
    Lease,
    Node,
    NodeStatusFields,
    ObjectMeta,
    ObjectReference,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PodStatus,
    Resources,
)
from gpufleet.kubernetes.resource_claims import ResourceClaim
from gpufleet.runtime.logs import configure_logs
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.filtering import Unschedulable
from gpufleet.scheduler.scheduler import Scheduler

NODES, GPUS, GANGS, MEMBERS, PODS, ENDS = 500, 8, 50, 8, 2_000, 40
START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_STALL, MAX_FILTER = 50.0, 5.0
"""Milliseconds."""


class IdleApi:
    """Answers every call at once and changes nothing."""

    async def read_lease(self, name: str) -> Lease | None:
        return None

    async def create_lease(self, lease: Lease) -> Lease:
        return lease

    async def replace_lease(self, lease: Lease) -> Lease:
        return lease

    async def delete_lease(self, name: str, uid: str, resource_version: str) -> None: ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        return None

    async def bind(self, *arguments: Any) -> None: ...

    async def nudge(self, namespace: str, pod: str, uid: str, value: str) -> Pod | None:
        return None

    async def remove_gate(self, pod: Pod, gate: str) -> None: ...

    async def evict(self, namespace: str, pod: str, uid: str) -> None: ...

    async def read_claim(self, claim: ResourceClaim) -> ResourceClaim | None:
        return None

    async def write_claim(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        return claim

    async def touch_claim(self, claim: ResourceClaim, value: str) -> ResourceClaim | None:
        return None

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str]) -> Pod | None:
        return None

    async def write_status(self, namespace: str, claim: str, status: Mapping[str, Any]) -> None: ...

    async def record_event(
        self, regarding: ObjectReference, reason: str, note: str, type: Literal["Normal", "Warning"]
    ) -> None: ...


def measure() -> Iterable[Result]:
    configure_logs("error", "json")
    found = uvloop.run(_measure())
    setup = f"{NODES} full nodes, {GANGS} gangs of {MEMBERS}, {PODS:,} pods"
    for name, value in found.items():
        budget = MAX_FILTER if "filter" in name else MAX_STALL if "stall" in name else None
        yield Result(f"scheduler queue: {name}", value, "ms", at_most=budget, note=setup)


async def _measure() -> dict[str, float]:
    scheduler = Scheduler(IdleApi(), SchedulerSettings(), "default")
    _fill(scheduler)
    gc.freeze()  # as the scheduler does when it has listed the cluster
    names, waiting = (
        sorted(scheduler.ledger.nodes),
        [_pod(f"w{at:04d}", "one", at + 1000) for at in range(PODS)],
    )
    _put(scheduler.watch_events.on_pods, waiting)
    filters: list[float] = []
    found: dict[str, float] = {}
    monitor = LoopMonitor()
    await asyncio.sleep(0.1)
    monitor.longest()
    started = time.perf_counter()
    await scheduler.plan_step()
    found["stall of the first cycle"] = monitor.longest()
    found["first cycle"] = (time.perf_counter() - started) * 1000
    for pod in waiting:
        await _filter(scheduler, pod, names, filters)
    found["p99 of a refused filter"] = _quantile(filters, 0.99) * 1000
    found["stall while all pods are tried"] = monitor.longest()
    await scheduler.plan_step()
    monitor.longest()
    filters.clear()
    started = time.perf_counter()
    for at in range(ENDS):
        # From the end: the first nodes are nominated for the gangs that preempt.
        _end(scheduler, at)
        planning = asyncio.ensure_future(scheduler.plan_step())
        for pod in waiting[-5:]:
            await _filter(scheduler, pod, names, filters)
        await planning
    found["mean time to plan a freed GPU"] = (time.perf_counter() - started) * 1000 / ENDS
    found["stall while pods end"] = monitor.longest()
    found["p99 of a refused filter while pods end"] = _quantile(filters, 0.99) * 1000
    return found


async def _filter(scheduler: Scheduler, pod: Pod, names: list[str], filters: list[float]) -> None:
    started = time.thread_time()
    choice = scheduler.filter(pod, names)
    if isinstance(choice, Unschedulable):
        filters.append(time.thread_time() - started)
    await asyncio.sleep(0)


def _fill(scheduler: Scheduler) -> None:
    allocatable = {"cpu": "128", "memory": "1024Gi", "pods": "110"}
    for at in range(NODES):
        name = f"node-{at:03d}"
        devices = tuple(DeviceStatus(gpu, health="Healthy", island="i0") for gpu in range(GPUS))
        report = GpuNodeStatus(
            metadata=ObjectMeta(name=name), spec=NodeGpusSpec(name), status=NodeGpus(devices, GPUS)
        )
        _put(
            scheduler.watch_events.on_nodes,
            [Node(ObjectMeta(name=name), status=NodeStatusFields(allocatable=allocatable))],
        )
        _put(scheduler.watch_events.on_reports, [report])
    _put(scheduler.watch_events.on_claims, [_claim("one", 1)])
    for at in range(NODES * GPUS):
        node, gpu = f"node-{at // GPUS:03d}", at % GPUS
        pod = _pod(f"r{at:04d}", "one", 0, node=node, gpu=gpu)
        holder = {pod.metadata.uid: LeaseHolder("ns", pod.metadata.name, "one", 1000, (), "stamp")}
        _put(scheduler.watch_events.on_leases, [new_lease("default", node, gpu, holder, "", START)])
        _put(scheduler.watch_events.on_pods, [pod])
    for at in range(GANGS):
        name = f"gang-{at:02d}"
        _put(scheduler.watch_events.on_claims, [_claim(f"of-{name}", 4, gang=name)])
        _put(
            scheduler.watch_events.on_groups,
            [PodGroup(ObjectMeta(name=name, namespace="ns"), PodGroupSpec(MEMBERS))],
        )
        priority = 100 if at % 2 else 0
        members = [
            _pod(f"{name}-{each}", f"of-{name}", 10 + at, priority=priority) for each in range(MEMBERS)
        ]
        _put(scheduler.watch_events.on_pods, members)


def _claim(name: str, count: int, gang: str = "") -> GpuClaim:
    return GpuClaim(
        metadata=ObjectMeta(name=name, namespace="ns", uid=name),
        spec=ClaimSpec(ClaimDevices(count), gang_ref=gang),
    )


def _pod(name: str, claim: str, age: int, *, node: str = "", gpu: int = 0, priority: int = 0) -> Pod:
    notes = {CLAIM: claim, ALLOCATED: f"{node}:{gpu}"} if node else {CLAIM: claim}
    created = START + timedelta(seconds=age)
    meta = ObjectMeta(
        name=name, namespace="ns", uid=f"uid-{name}", annotations=notes, creation_timestamp=created
    )
    containers = (Container(resources=Resources({"cpu": "4", "memory": "16Gi"})),)
    return Pod(meta, PodSpec(node_name=node, containers=containers, priority=priority))


def _end(scheduler: Scheduler, at: int) -> None:
    """End one of the pods that run on the last nodes."""
    name = f"r{NODES * GPUS - 1 - at * GPUS:04d}"
    pod = scheduler.ledger.pods[f"uid-{name}"]
    done = Pod(pod.metadata, pod.spec, PodStatus(phase="Succeeded"))
    _put(scheduler.watch_events.on_pods, [done])
    for node, gpus in dict(scheduler.ledger.leases_of(pod.metadata.uid)).items():
        for gpu in list(gpus):
            scheduler.ledger.drop_lease(f"gpu-{node}-{gpu}")


def _put(handle: Any, items: list[Any]) -> None:
    handle([CacheChange(None, item) for item in items])


def _quantile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]
