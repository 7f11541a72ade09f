"""Follows a Kubernetes API and tells the fleet.

One reflector a kind. Owners are of any kind: the common ones are followed from the start, others
from the moment a pod or owner names one, by discovery. A kind that can't be read (no rights, no
such CRD) is reported and costs only itself: its objects are then known from the references of
those below them.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.errors import GpufleetError
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    POD_GROUPS,
    PODS,
    CacheChange,
    Discovery,
    KubeClient,
    Reflector,
    Resource,
    Selection,
    WatchTimings,
)
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.objects import Node, OwnerReference, Pod
from gpufleet.kubernetes.objects import Owner as KubeOwner
from gpufleet.model.workload import FleetPod
from gpufleet.runtime.logs import get_logger
from gpufleet.sources.kubernetes.leases import LeasesByNode
from gpufleet.sources.kubernetes.nodes import devices_from, node_from, time_slices
from gpufleet.sources.kubernetes.owners import owner_from
from gpufleet.sources.kubernetes.pods import pod_from

_log = get_logger("sources.kubernetes")

COMMON_OWNERS = tuple(
    Resource(group, version, plural, kind, KubeOwner)
    for group, version, plural, kind in (
        ("apps", "v1", "deployments", "Deployment"),
        ("apps", "v1", "replicasets", "ReplicaSet"),
        ("apps", "v1", "statefulsets", "StatefulSet"),
        ("apps", "v1", "daemonsets", "DaemonSet"),
        ("batch", "v1", "jobs", "Job"),
        ("batch", "v1", "cronjobs", "CronJob"),
    )
)
RETRY_KIND = 60.0
"""Seconds after which a kind that could not be found is looked for again."""
MOST_KINDS = 64
"""Kinds of owners that are followed; a client can't make us watch without end."""


Kind = tuple[str, str]
"""The `apiVersion` and the kind: several groups may have a Job."""


@dataclass(frozen=True)
class KindState:
    """How one kind is followed."""

    objects: int
    lag: float
    error: str
    """Why it is not; of a right that is missing it says which, and who should give it."""


class KubernetesSource:
    """Keeps a fleet as the API shows it; `run` it in a task of its own."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        *,
        lease_namespace: str = "default",
        fault_taints: tuple[str, ...] = (),
        timings: WatchTimings = WatchTimings(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.time,
        retry_kind: float = RETRY_KIND,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._fault_taints = fault_taints
        self._timings = timings
        self._clock = clock
        self._retry_kind = retry_kind
        self._discovery = Discovery(client)
        self.nodes = Reflector(client, NODES, timings=timings)
        self.pods = Reflector(client, PODS, timings=timings, freeze=True)
        self.claims = Reflector(client, GPU_CLAIMS, timings=timings)
        self.node_statuses = Reflector(client, GPU_NODE_STATUSES, timings=timings)
        self.leases = Reflector(client, LEASES, Selection(namespace=lease_namespace), timings=timings)
        self.pod_groups = Reflector(client, POD_GROUPS, timings=timings)
        self._lease_book = LeasesByNode(fleet)
        self._owners: dict[Kind, Reflector[KubeOwner]] = {}
        self._wanted: asyncio.Queue[Kind] = asyncio.Queue()
        self._asked_for: set[Kind] = set()
        self._problems: dict[Kind, str] = {}
        self._by_claim: dict[tuple[str, str], set[str]] = {}
        self._synced = asyncio.Event()
        self.nodes.subscribe(self._on_nodes)
        self.node_statuses.subscribe(self._on_statuses)
        self.claims.subscribe(self._on_claims)
        self.leases.subscribe(self._lease_book.on_leases)
        self.pods.subscribe(self._on_pods)
        for resource in COMMON_OWNERS:
            self._follow_owner(resource)

    async def run(self) -> None:
        """Follow the API until cancelled; after a fault it may be called again and goes on where it was."""
        self._wanted = asyncio.Queue()
        for key in self._asked_for - self._owners.keys():
            self._wanted.put_nowait(key)
        async with asyncio.TaskGroup() as tasks:
            for reflector in (*self._fixed(), *self._owners.values()):
                tasks.create_task(reflector.run())
            tasks.create_task(self._follow_wanted(tasks))
            tasks.create_task(self._await_sync())

    async def synced(self) -> None:
        """Wait until nodes and pods, and whatever else can be read, have been read once."""
        await self._synced.wait()

    @property
    def heard(self) -> bool:
        """Whether that has happened."""
        return self._synced.is_set()

    def states(self) -> Mapping[Kind, KindState]:
        """How each kind is followed."""
        everyone: list[Reflector[Any]] = [*self._fixed(), *self._owners.values()]
        states = {kind_of(reflector.resource): _state_of(reflector) for reflector in everyone}
        for kind, problem in self._problems.items():
            states.setdefault(kind, KindState(0, 0.0, problem))
        return states

    def _fixed(self) -> tuple[Reflector[Any], ...]:
        return (self.nodes, self.pods, self.claims, self.node_statuses, self.leases, self.pod_groups)

    async def _await_sync(self) -> None:
        for reflector in (self.nodes, self.pods):
            await reflector.synced()
        everyone = [*self._fixed(), *self._owners.values()]
        while not all(r.state.synced or r.state.error for r in everyone):  # noqa: ASYNC110  (errors raise no event)
            await asyncio.sleep(0.05)
        self._synced.set()

    # Owners

    def _follow_owner(self, resource: Resource[KubeOwner]) -> Reflector[KubeOwner]:
        reflector = Reflector(self._client, resource, timings=self._timings)

        def on_owners(changes: Sequence[CacheChange[KubeOwner]]) -> None:
            for change in changes:
                self._on_owner(change, resource)

        reflector.subscribe(on_owners)
        self._owners[kind_of(resource)] = reflector
        return reflector

    def _on_owner(self, change: CacheChange[KubeOwner], resource: Resource[KubeOwner]) -> None:
        if change.before is not None and (
            change.after is None or change.after.metadata.uid != change.before.metadata.uid
        ):
            self._fleet.drop_owner(change.before.metadata.uid)
        if change.after is not None:
            self._want(change.after.metadata.controller)
            self._fleet.put_owner(owner_from(change.after, resource.kind, resource.api_version))

    def _want(self, owner: OwnerReference | None) -> None:
        """Ask for a kind of owner that nobody follows yet. Nodes own their static pods and are followed as nodes."""
        if owner is None or owner.kind == "Node":
            return
        key = (owner.api_version, owner.kind)
        if key not in self._owners and key not in self._asked_for and len(self._asked_for) < MOST_KINDS:
            self._asked_for.add(key)
            self._wanted.put_nowait(key)

    async def _follow_wanted(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            kind = await self._wanted.get()
            try:
                resource = await self._discovery.find(*kind, KubeOwner)
            except GpufleetError as error:
                if self._problems.get(kind) != str(error):
                    _log.warning(
                        "owner kind not readable", kind=kind[1], api_version=kind[0], error=str(error)
                    )
                self._problems[kind] = str(error)
                tasks.create_task(self._want_later(kind))
                continue
            self._problems.pop(kind, None)
            if kind not in self._owners:
                tasks.create_task(self._follow_owner(resource).run())

    async def _want_later(self, kind: Kind) -> None:
        # Not when a pod of that kind changes: one that runs for a month doesn't.
        await self._client.timing.sleep(self._retry_kind)
        self._wanted.put_nowait(kind)

    # Objects

    def _on_nodes(self, changes: Sequence[CacheChange[Node]]) -> None:
        resliced = set()
        for change in changes:
            name = change.object.metadata.name
            if change.after is None:
                self._fleet.drop_node(name)
                continue
            self._fleet.put_node(node_from(change.after, self._fault_taints))
            if _slices(change.before) != _slices(change.after):
                resliced.add(name)
        if resliced:
            # What part of a GPU its pods have is for the node to say, and they may have been seen before it.
            for pod in self.pods.cache:
                if pod.spec.node_name in resliced:
                    self._put_pod(pod)

    def _on_statuses(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        for change in changes:
            if change.after is None:
                self._fleet.drop_devices(change.object.spec.node_name)
            else:
                self._fleet.put_devices(devices_from(change.after))

    def _on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        for change in changes:
            meta = change.object.metadata
            for name in sorted(self._by_claim.get((meta.namespace, meta.name), ())):
                if (pod := self.pods.cache.get(name, meta.namespace)) is not None:
                    self._put_pod(pod)

    def _on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        for change in changes:
            before, after = change.before, change.after
            if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
                self._forget(before)
            if after is not None:
                self._put_pod(after)

    def _put_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        self._want(meta.controller)
        name = meta.annotations.get(CLAIM, "")
        claim = None
        if name:
            self._by_claim.setdefault((meta.namespace, name), set()).add(meta.name)
            claim = self.claims.cache.get(name, meta.namespace)
        node = self.nodes.cache.get(pod.spec.node_name) if pod.spec.node_name else None
        made = pod_from(pod, claim, _slices(node))
        if made.phase.ended and not made.ended:
            made = msgspec.structs.replace(made, ended=self._unsaid_end(made))
        self._fleet.put_pod(made)

    def _unsaid_end(self, pod: FleetPod) -> float:
        """The end of a pod that doesn't tell it: when it was seen to end, or its beginning if nobody saw that.

        So it is with a pod that the kubelet refused (UnexpectedAdmissionError, for one) and that never had a container.
        """
        before = self._fleet.ownership.pods.get(pod.uid)
        if before is None:
            return pod.started or pod.bound or pod.created
        return before.ended or self._clock()

    def _forget(self, pod: Pod) -> None:
        meta = pod.metadata
        name = meta.annotations.get(CLAIM, "")
        users = self._by_claim.get((meta.namespace, name))
        if users is not None:
            users.discard(meta.name)
            if not users:
                del self._by_claim[meta.namespace, name]
        self._fleet.drop_pod(meta.uid, self._clock())


def kind_of(resource: Resource[Any]) -> Kind:
    """What `states` calls a resource."""
    return resource.api_version, resource.kind


def _state_of(reflector: Reflector[Any]) -> KindState:
    state, resource = reflector.state, reflector.resource
    error = state.error
    if state.forbidden:
        what = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        error += (
            f"; the account needs the verbs list and watch on {what}, "
            "which the ClusterRole of chart gpufleet gives it"
        )
    return KindState(state.objects, state.lag, error)


def _slices(node: Node | None) -> int:
    return time_slices(node.metadata.labels) if node is not None else 1
