"""Watch a Kubernetes API and update the fleet.

There is one reflector per kind. Owners may be of any kind: common kinds are watched from the start, others
by discovery as soon as a pod or owner refers to one. A kind that cannot be read (no permission, no such
CRD) is reported and affects nothing else: its objects are then known only from references to them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.errors import GpufleetError, NotFound, OperationRefused
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    GPU_QUEUES,
    GPU_REPAIRS,
    LEASES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    CacheChange,
    Discovery,
    KubeClient,
    Reflector,
    Resource,
    Selection,
    WatchTimings,
)
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.client.errors import Forbidden
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair
from gpufleet.kubernetes.gpu_requests import Sharing, sharing_of
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.nv_fractions import nv_fraction
from gpufleet.kubernetes.objects import Lease, Node, OwnerReference, Pod
from gpufleet.kubernetes.objects import Owner as KubeOwner
from gpufleet.kubernetes.repair_requests import change_repair
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceSlice
from gpufleet.kubernetes.workload_objects import WorkloadObjects
from gpufleet.model.workload import FleetPod
from gpufleet.runtime.logs import get_logger
from gpufleet.sources.kubernetes.claimed_gpus import PodLeases
from gpufleet.sources.kubernetes.dynamic_resources import DynamicResources
from gpufleet.sources.kubernetes.kueue import KueueWorkloads
from gpufleet.sources.kubernetes.leases import LeasesByNode
from gpufleet.sources.kubernetes.nodes import devices_from, mig_profiles, node_from
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
"""Seconds until discovery of a kind is retried."""
LIST_ATTEMPTS = 5
"""Lists of a kind that may fail before its objects count as unread; that takes some seconds."""
MAX_KINDS = 64
"""Owner kinds to watch, so that users cannot make the server open watches without limit."""


Kind = tuple[str, str]
"""`apiVersion` and kind: several groups may have a Job."""


@dataclass(frozen=True)
class KindState:
    """The state of the watch for one kind."""

    objects: int
    lag: float
    error: str
    """Why it cannot be read; names the missing permission and its remedy."""


class KubernetesSource:
    """Keep the fleet in sync with the API; `run` it as a task."""

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
        self.workload_objects = WorkloadObjects(client)
        self.nodes = Reflector(client, NODES, timings=timings)
        self.pods = Reflector(client, PODS, timings=timings, freeze=True)
        self.claims = Reflector(client, GPU_CLAIMS, timings=timings)
        self.node_statuses = Reflector(client, GPU_NODE_STATUSES, timings=timings)
        self.leases = Reflector(client, LEASES, Selection(namespace=lease_namespace), timings=timings)
        self.gpu_repairs = Reflector(client, GPU_REPAIRS, timings=timings, optional=True)
        self.pod_groups = Reflector(client, POD_GROUPS, timings=timings, optional=True)
        self.resource_claims = Reflector(client, RESOURCE_CLAIMS, timings=timings, optional=True)
        self.resource_slices = Reflector(client, RESOURCE_SLICES, timings=timings, optional=True)
        self.gpu_queues = Reflector(client, GPU_QUEUES, timings=timings, optional=True)
        self.kueue = KueueWorkloads(
            client,
            fleet,
            lambda namespace, name: self.claims.cache.get(name, namespace),
            self._add_reference,
            timings=timings,
            retry=retry_kind,
        )
        self._leases_by_node = LeasesByNode(fleet)
        self._dynamic = DynamicResources(self.node_statuses.cache.get)
        self._owners: dict[Kind, Reflector[KubeOwner]] = {}
        self._undiscovered: asyncio.Queue[Kind] = asyncio.Queue()
        self._referenced: set[Kind] = set()
        self._problems: dict[Kind, str] = {}
        self._by_claim: dict[tuple[str, str], set[str]] = {}
        self._synced = asyncio.Event()
        self.nodes.subscribe(self._on_nodes)
        self.node_statuses.subscribe(self._on_statuses)
        self.claims.subscribe(self._on_claims)
        self.leases.subscribe(self._on_leases)
        self.resource_slices.subscribe(self._on_slices)
        self.resource_claims.subscribe(self._on_resource_claims)
        self.pods.subscribe(self._on_pods)
        for resource in COMMON_OWNERS:
            self._watch_owners(resource)

    async def run(self) -> None:
        """Watch the API until cancelled; after an error it may be called again and continues."""
        self._undiscovered = asyncio.Queue()
        for kind in self._referenced - self._owners.keys():
            self._undiscovered.put_nowait(kind)
        async with asyncio.TaskGroup() as tasks:
            for reflector in (*self._fixed(), *self._owners.values()):
                tasks.create_task(reflector.run())
            tasks.create_task(self._discover_owners(tasks))
            tasks.create_task(self.kueue.run())
            tasks.create_task(self._await_sync())

    def reports(self) -> Iterable[GpuNodeStatus]:
        """Return what agents report of their nodes."""
        return self.node_statuses.cache

    def repairs(self) -> Iterable[GpuRepair]:
        """Return the repairs of nodes."""
        return self.gpu_repairs.cache

    async def change_repair(self, node: str, spec: dict[str, object]) -> GpuRepair:
        """Write what an operator says about a node; raise NotFound if there is no such node."""
        found = self.nodes.cache.get(node)
        if found is None:
            raise NotFound(f"there is no node {node}")
        try:
            return await change_repair(self._client, node, found.metadata.uid, spec)
        except Forbidden as error:
            raise OperationRefused(
                f"this server may not change GpuRepairs (chart value repairs.write): {error}"
            ) from error

    async def synced(self) -> None:
        """Wait until nodes, pods and all other readable kinds have been listed once."""
        await self._synced.wait()

    @property
    def has_synced(self) -> bool:
        """Whether all readable kinds have been listed once."""
        return self._synced.is_set()

    def states(self) -> Mapping[Kind, KindState]:
        """Return the state of the watch for each kind."""
        reflectors = self._reflectors()
        states = {kind_of(reflector.resource): _state_of(reflector) for reflector in reflectors}
        for kind, problem in self._problems.items():
            states.setdefault(kind, KindState(0, 0.0, problem))
        return states

    def failures(self) -> int:
        """Return how many lists and watches have failed since the start, of all kinds."""
        return sum(reflector.state.failures for reflector in self._reflectors())

    def left_out(self) -> list[str]:
        """Return the namespaces of which objects are missing, because they need too much memory."""
        return sorted(
            {namespace for reflector in self._reflectors() for namespace in reflector.cache.left_out}
        )

    def cached(self) -> dict[str, int]:
        """Return the number of cached objects by kind."""
        return {reflector.resource.kind: len(reflector.cache) for reflector in self._reflectors()}

    def _fixed(self) -> tuple[Reflector[Any], ...]:
        return (
            self.nodes,
            self.pods,
            self.claims,
            self.node_statuses,
            self.leases,
            self.gpu_repairs,
            self.pod_groups,
            self.resource_claims,
            self.resource_slices,
            self.gpu_queues,
        )

    def _reflectors(self) -> list[Reflector[Any]]:
        kueue = [self.kueue.reflector] if self.kueue.reflector is not None else []
        return [*self._fixed(), *self._owners.values(), *kueue]

    async def _await_sync(self) -> None:
        for reflector in (self.nodes, self.pods):
            await reflector.synced()
        while not self._owners_read():  # noqa: ASYNC110  (errors set no event)
            await asyncio.sleep(0.05)
        self._synced.set()

    def _owners_read(self) -> bool:
        """Return whether every kind that pods and owners refer to has been listed or cannot be.

        Accounting starts then: work whose owner is still to be read would get another identity.
        """
        discovered = self._owners.keys() | self._problems.keys()
        states = (reflector.state for reflector in (*self._fixed(), *self._owners.values()))
        return self._referenced <= discovered and all(
            state.synced or state.forbidden or state.absent or state.failures >= LIST_ATTEMPTS
            for state in states
        )

    # Owners

    def _watch_owners(self, resource: Resource[KubeOwner]) -> Reflector[KubeOwner]:
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
            self._add_reference(change.after.metadata.controller)
            self.kueue.notice(change.after.metadata.labels)
            self._fleet.put_owner(
                owner_from(change.after, resource.kind, resource.api_version, self._client.annotations)
            )

    def _add_reference(self, owner: OwnerReference | None) -> None:
        """Request discovery of a new owner kind.

        Nodes own their static pods, and pods the Workloads of Kueue; both are watched already.
        """
        if owner is None or owner.kind in ("Node", "Pod"):
            return
        kind = (owner.api_version, owner.kind)
        if kind not in self._owners and kind not in self._referenced and len(self._referenced) < MAX_KINDS:
            self._referenced.add(kind)
            self._undiscovered.put_nowait(kind)

    async def _discover_owners(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            kind = await self._undiscovered.get()
            try:
                resource = await self._discovery.find(*kind, KubeOwner)
            except GpufleetError as error:
                if self._problems.get(kind) != str(error):
                    _log.warning(
                        "owner_kind_unavailable", kind=kind[1], api_version=kind[0], error=str(error)
                    )
                self._problems[kind] = str(error)
                tasks.create_task(self._retry_discovery(kind))
                continue
            self._problems.pop(kind, None)
            if kind not in self._owners:
                tasks.create_task(self._watch_owners(resource).run())

    async def _retry_discovery(self, kind: Kind) -> None:
        # By time and not by pod changes: a pod may run for a month without any.
        await self._client.timing.sleep(self._retry_kind)
        self._undiscovered.put_nowait(kind)

    # Objects

    def _on_nodes(self, changes: Sequence[CacheChange[Node]]) -> None:
        changed = set()
        for change in changes:
            name = change.object.metadata.name
            if change.after is None:
                self._fleet.drop_node(name)
                continue
            self._fleet.put_node(node_from(change.after, self._fault_taints))
            if _sharing(change.before) != _sharing(change.after):
                changed.add(name)
        if changed:
            # The share of a pod depends on its node, which may arrive after the pod.
            for pod in self.pods.cache:
                if pod.spec.node_name in changed:
                    self._put_pod(pod)

    def _on_statuses(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        for change in changes:
            node = change.object.spec.node_name
            self._put_devices(node)
            if _identities(change.before) != _identities(change.after):
                self._put_pods_with_devices({node})
            if mig_profiles(change.before) != mig_profiles(change.after):
                # The share of a pod with MIG instances and a deleted claim depends on their profiles.
                for holder in self._leases_by_node.of_node(node):
                    self._put_leased_pod(holder)

    def _put_devices(self, node: str) -> None:
        """Update the GPUs of a node: those that its agent reports, or else those that its driver publishes."""
        report = self.node_statuses.cache.get(node) or self._dynamic.published_on(node)
        if report is None:
            self._fleet.drop_devices(node)
        else:
            self._fleet.put_devices(devices_from(report))

    def _on_slices(self, changes: Sequence[CacheChange[ResourceSlice]]) -> None:
        nodes = self._dynamic.on_slices(changes)
        for node in nodes:
            self._put_devices(node)
        self._put_pods_with_devices(nodes)

    def _on_resource_claims(self, changes: Sequence[CacheChange[ResourceClaim]]) -> None:
        for namespace, name in sorted(self._dynamic.on_claims(changes)):
            if (pod := self.pods.cache.get(name, namespace)) is not None:
                self._put_pod(pod)

    def _put_pods_with_devices(self, nodes: set[str]) -> None:
        """Update the pods whose GPUs are found by UUIDs and addresses: of ResourceClaims, and those that KAI names."""
        for pod in self.pods.cache:
            if pod.spec.node_name in nodes and (
                self._dynamic.held_by(pod) or nv_fraction(pod.metadata.annotations)
            ):
                self._put_pod(pod)

    def _on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        for holder in self._leases_by_node.on_leases(changes):
            self._put_leased_pod(holder)

    def _put_leased_pod(self, holder: LeaseHolder) -> None:
        """Update a pod whose share depends on its leases: its claim was deleted, or is for MIG instances."""
        pod = self.pods.cache.get(holder.pod, holder.namespace) if holder.pod else None
        if pod is None or CLAIM not in pod.metadata.annotations:
            return
        claim = self.claims.cache.get(pod.metadata.annotations[CLAIM], holder.namespace)
        if claim is None or claim.spec.devices.exclusivity == "MIG":
            self._put_pod(pod)

    def _on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        for change in changes:
            meta = change.object.metadata
            for name in sorted(self._by_claim.get((meta.namespace, meta.name), ())):
                if (pod := self.pods.cache.get(name, meta.namespace)) is not None:
                    self._put_pod(pod)
            self.kueue.on_claim(meta.namespace, meta.name)

    def _on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        for change in changes:
            before, after = change.before, change.after
            if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
                self._drop_pod(before)
            if after is not None:
                self._put_pod(after)

    def _put_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        self._add_reference(meta.controller)
        self.kueue.notice(meta.labels)
        name = meta.annotations.get(CLAIM, "")
        claim = None
        if name:
            self._by_claim.setdefault((meta.namespace, name), set()).add(meta.name)
            claim = self.claims.cache.get(name, meta.namespace)
        node = self.nodes.cache.get(pod.spec.node_name) if pod.spec.node_name else None
        leases = self._leases_of(pod) if name else PodLeases()
        devices = self._dynamic.devices_of(pod.spec.node_name)
        kept = self._client.annotations
        converted = pod_from(pod, claim, _sharing(node), leases, self._dynamic.held_by(pod), devices, kept)
        if converted.phase.ended and not converted.ended:
            converted = msgspec.structs.replace(converted, ended=self._observed_end(converted))
        self._fleet.put_pod(converted)

    def _leases_of(self, pod: Pod) -> PodLeases:
        holders = self._leases_by_node.of_pod(pod.metadata.uid, pod.spec.node_name)
        if not any(holder.instances for holder in holders.values()):
            return PodLeases(holders)
        return PodLeases(holders, mig_profiles(self.node_statuses.cache.get(pod.spec.node_name)))

    def _observed_end(self, pod: FleetPod) -> float:
        """Return when a pod without an end time was first observed as ended; its start if it was never observed before.

        A pod that the kubelet rejects (UnexpectedAdmissionError) never has a container and no end time.
        """
        before = self._fleet.ownership.pods.get(pod.uid)
        if before is None:
            return pod.started or pod.bound or pod.created
        return before.ended or self._clock()

    def _drop_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        name = meta.annotations.get(CLAIM, "")
        users = self._by_claim.get((meta.namespace, name))
        if users is not None:
            users.discard(meta.name)
            if not users:
                del self._by_claim[meta.namespace, name]
        self._fleet.drop_pod(meta.uid, self._clock())


def kind_of(resource: Resource[Any]) -> Kind:
    """Return the key of a resource in `states`."""
    return resource.api_version, resource.kind


def _state_of(reflector: Reflector[Any]) -> KindState:
    state, resource = reflector.state, reflector.resource
    error = state.error
    if state.forbidden:
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        error += (
            f"; the account needs the verbs list and watch on {name}, "
            "which the ClusterRole of chart gpufleet grants"
        )
    return KindState(state.objects, state.lag, error)


def _sharing(node: Node | None) -> Sharing:
    return sharing_of(node.metadata) if node is not None else Sharing()


def _identities(status: GpuNodeStatus | None) -> list[tuple[int, str, str, int]]:
    """Return by what the devices of ResourceClaims are found among the GPUs of a node."""
    devices = status.status.devices if status is not None else ()
    return [(each.id, each.uuid, each.pci_bus_id, len(each.mig_instances)) for each in devices]
