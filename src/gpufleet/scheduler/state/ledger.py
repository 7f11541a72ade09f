"""Track which pod has which GPU, from the objects that the watches deliver.

Leases and the allocations of ResourceClaims are authoritative. Holds are choices of this process that have no lease yet. A pod's
allocation in the inventory is the union of all and is recomputed whenever one of them changes.
Objects may arrive twice, late or out of order. A state older than the known one is ignored, so a
lagging watch does not undo the result of our own write.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.leases import GpuLease, LeaseHolder, lease_name
from gpufleet.kubernetes.objects import Lease, Pod
from gpufleet.kubernetes.objects import Node as KubeNode
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceSlice
from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.scheduler.state.disruption_budgets import DisruptionBudgets
from gpufleet.scheduler.state.eligible_nodes import EligibleNodes
from gpufleet.scheduler.state.gang_index import GangIndex
from gpufleet.scheduler.state.gpu_nodes import GpuNodes
from gpufleet.scheduler.state.holders import Hold, holder_key
from gpufleet.scheduler.state.indexes import Key, discard
from gpufleet.scheduler.state.lease_index import LeaseIndex
from gpufleet.scheduler.state.node_resources import NodeResources
from gpufleet.scheduler.state.nodes import meets_constraints
from gpufleet.scheduler.state.plugin_pods import PluginPods
from gpufleet.scheduler.state.pod_index import PodIndex, claim_key
from gpufleet.scheduler.state.reported_pods import ReportedPods
from gpufleet.scheduler.state.reserved_gpus import ReservedGpus
from gpufleet.scheduler.state.versions import Tombstones, is_stale
from gpufleet.scheduler.watched_pods import WatchedSpec


class Ledger:
    """Nodes, leases, claims and pods, and the inventory derived from them."""

    def __init__(self, changed: asyncio.Event | None = None) -> None:
        """Create an empty ledger; `changed` is set whenever GPUs may have become free."""
        self._changed = changed
        self.cluster = Inventory()
        self.claims: dict[Key, GpuClaim] = {}
        self.holds: dict[str, Hold] = {}
        self.freed = 0
        """Grows whenever GPUs, or other resources of a node, may have become free."""
        self.allocations = 0
        """Grows whenever a pod gets or loses GPUs."""
        self.on_allocation: Callable[[str, str, Allocation | None], None] | None = None
        """Is called with a pod, a node and what the pod now has there."""
        self._pods = PodIndex()
        self.pods = self._pods.by_uid
        self._leases = LeaseIndex()
        self.leases = self._leases.by_name
        self.foreign = self._leases.foreign
        self._plugin_pods = PluginPods()
        self._reported = ReportedPods(self._pods)
        self._gpu_nodes = GpuNodes(self.cluster, self.pods, self._reported, self._plugin_pods, self.held_by)
        self.nodes = self._gpu_nodes.nodes
        self.reports = self._gpu_nodes.reports
        self.resource_claims = self._gpu_nodes.resource_claims
        self.reservations = ReservedGpus(self.cluster, self.note_freed)
        self.resources = NodeResources(self.nodes, self._pods_on)
        self.eligible = EligibleNodes(self.nodes)
        self.budgets = DisruptionBudgets()
        self.gangs = GangIndex(self.claims, self.pods, self._pods.by_claim)
        self._deleted_resource_claims = Tombstones()
        self._gpus_on: dict[str, set[str]] = {}

    def note_freed(self) -> None:
        """Record that waiting pods may fit now."""
        self.freed += 1
        if self._changed is not None:
            self._changed.set()

    # -- nodes -----------------------------------------------------------------------------

    def put_node(self, node: KubeNode) -> bool:
        """Store a node; return whether it may now admit other pods than before."""
        name = node.metadata.name
        before = self.nodes.get(name)
        self.nodes[name] = node
        changed = self._gpu_nodes.sync(name) or before is None or before.spec != node.spec
        if before is None or before.status.allocatable != node.status.allocatable:
            self.resources.changed(name)
            changed = True
        if changed:
            self.eligible.changed()
            self.note_freed()
        return changed

    def drop_node(self, name: str) -> None:
        """Remove a node; the leases of its GPUs stay."""
        self.nodes.pop(name, None)
        self.resources.changed(name)
        self.eligible.changed()
        self._gpu_nodes.sync(name)

    def meets_constraints(self, name: str, pod: Pod) -> bool:
        """Return whether the node exists and the pod's own constraints allow it."""
        node = self.nodes.get(name)
        return node is not None and meets_constraints(node, pod)

    def put_report(self, report: GpuNodeStatus) -> bool:
        """Store an agent's report; return whether it changes what can be allocated."""
        name = report.spec.node_name
        before = self.reports.get(name)
        self.reports[name] = report
        self._reported.replace(name, before, report)
        if _identities(before) != _identities(report):
            self._sync_allocations(self.resource_claims.node_changed(name))
        changed = self._gpu_nodes.sync(name)
        if changed:
            self.note_freed()
        return changed

    def drop_report(self, name: str) -> None:
        """Remove the report of a node."""
        self._reported.replace(name, self.reports.pop(name, None), None)
        self._gpu_nodes.sync(name)

    def device(self, node: str, gpu: int) -> DeviceStatus | None:
        """Return the report of one GPU, if any."""
        return self._gpu_nodes.device(node, gpu)

    def draining(self) -> list[str]:
        """Return the GPUs that deleted pods still use, as `node-a:3`."""
        return self._gpu_nodes.draining()

    # -- ResourceClaims --------------------------------------------------------------------

    def put_resource_claim(self, claim: ResourceClaim) -> None:
        """Store a ResourceClaim, unless it is known, older than the known one, or deleted."""
        meta = claim.metadata
        known = self.resource_claims.get((meta.namespace, meta.name))
        if self._deleted_resource_claims.has(meta.uid, meta.uid) or (
            known is not None and is_stale(claim, known.object)
        ):
            return
        self._sync_allocations(self.resource_claims.put(claim))

    def drop_resource_claim(self, claim: ResourceClaim) -> None:
        """Remove a deleted ResourceClaim."""
        meta = claim.metadata
        self._deleted_resource_claims.add(meta.uid, meta.uid)
        known = self.resource_claims.get((meta.namespace, meta.name))
        if known is not None and known.object.metadata.uid == meta.uid:
            self._sync_allocations(self.resource_claims.drop((meta.namespace, meta.name)))

    def put_slice(self, item: ResourceSlice) -> None:
        """Store a ResourceSlice."""
        self._sync_devices(self.resource_claims.put_slice(item))

    def drop_slice(self, item: ResourceSlice) -> None:
        """Remove a ResourceSlice."""
        self._sync_devices(self.resource_claims.drop_slice(item))

    def _sync_devices(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._sync_allocations(self.resource_claims.node_changed(node))
            self._gpu_nodes.sync(node)
            self.note_freed()

    def _sync_allocations(self, changed: Iterable[tuple[str, str]]) -> None:
        for holder, node in changed:
            self._sync_allocation(holder, node)
            if holder in self._reported:
                self._gpu_nodes.sync(node)

    # -- leases and holds ------------------------------------------------------------------

    def put_lease(self, lease: Lease) -> None:
        """Store a lease, unless it is known, older than the known one, or deleted."""
        self._sync_lease(self._leases.put(lease))

    def drop_lease(self, name: str, uid: str = "") -> None:
        """Remove a lease; only the one with this `uid`, if given."""
        self._sync_lease(self._leases.drop(name, uid))

    def _sync_lease(self, changed: tuple[GpuLease, list[tuple[str, str]]] | None) -> None:
        if changed is None:
            return
        lease, holders = changed
        for uid, node in holders:
            self._sync_allocation(uid, node)
        if self._gpu_nodes.device_used(lease.node, lease.gpu):
            self._gpu_nodes.sync(lease.node)

    def hold(self, uid: str, hold: Hold) -> None:
        """Hold GPUs for a pod; replaces its earlier hold, unless that is pinned."""
        before = self.holds.get(uid)
        if before is not None and before.pinned and hold.fits != before.fits:
            return
        self.holds[uid] = hold
        if before is not None and before.fits.node != hold.fits.node:
            self._sync_allocation(uid, before.fits.node)
        self._sync_allocation(uid, hold.fits.node)

    def release_hold(self, uid: str) -> Hold | None:
        """Remove and return the pod's hold, if any and not pinned."""
        hold = self.holds.get(uid)
        if hold is None or hold.pinned:
            return None
        return self.unpin(uid)

    def unpin(self, uid: str) -> Hold | None:
        """Remove and return the pod's hold, even if it is pinned."""
        hold = self.holds.pop(uid, None)
        if hold is not None:
            self._sync_allocation(uid, hold.fits.node)
        return hold

    def leases_of(self, uid: str) -> dict[str, dict[int, LeaseHolder]]:
        """Return the pod's lease entries by node and GPU id."""
        return self._leases.of_pod(uid)

    def held_by(self, uid: str) -> Mapping[str, Mapping[int, LeaseHolder]]:
        """Return what leases and ResourceClaims give the pod, by node and GPU id."""
        leased, claimed = self._leases.of_pod(uid), self.resource_claims.held(uid)
        if not claimed:
            return leased
        nodes = dict.fromkeys((*leased, *claimed))
        return {node: {**leased.get(node, {}), **claimed.get(node, {})} for node in nodes}

    def reserved(self, uid: str) -> bool:
        """Return whether a gpufleet scheduler has written leases or a ResourceClaim's allocation for the pod."""
        return any(holder.stamp for gpus in self.held_by(uid).values() for holder in gpus.values())

    def lease_holders(self) -> Iterator[str]:
        """Return the UIDs of all pods with leases."""
        return self._leases.pods()

    def holders(self, node: str, gpu: int) -> dict[str, LeaseHolder]:
        """Return what each pod, or ResourceClaim of others, has of a GPU by leases and allocations."""
        lease = self.leases.get(lease_name(node, gpu))
        claimed = self.resource_claims.holders(node, gpu)
        return {**(lease.holders if lease else {}), **claimed}

    # -- claims and pods -------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Store a pod, unless it is deleted or older than the known state."""
        if self._pods.is_late(pod):
            return
        uid, known = pod.metadata.uid, self._pods.put(pod)
        self._reported.pod_stored(uid)
        if known is not None:
            self.gangs.drop_pod(known)
        if pod.metadata.annotations.get(CLAIM):
            self.gangs.put_pod(pod)
        if known is None or known.finished != pod.finished or known.spec.node_name != pod.spec.node_name:
            self._resources_changed(known, pod)
            self._sync_nodes_of(uid)
        if self._plugin_pods.put(pod) and self._gpu_nodes.sync(pod.spec.node_name):
            self.note_freed()

    def pods_listed(self) -> None:
        """Record that all pods are known: a pod that only a report names vanished while no scheduler ran."""
        for uid in self._reported.pods_listed():
            self._sync_nodes_of(uid)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod."""
        pod = self._pods.drop(uid)
        if pod is not None:
            self._reported.pod_deleted(uid, finished=pod.finished)
            self.gangs.drop_pod(pod)
            self._resources_changed(pod, None)
            self._sync_nodes_of(uid)
            if self._plugin_pods.drop(pod) and self._gpu_nodes.sync(pod.spec.node_name):
                self.note_freed()

    def put_claim(self, claim: GpuClaim) -> None:
        """Store a claim."""
        self.claims[claim.metadata.namespace, claim.metadata.name] = claim
        self.gangs.put_claim(claim)

    def drop_claim(self, key: Key) -> None:
        """Remove a claim."""
        self.claims.pop(key, None)
        self.gangs.drop_claim(key)

    def claim_of(self, pod: Pod) -> GpuClaim | None:
        """Return the claim that the pod uses, if it exists."""
        return self.claims.get(claim_key(pod))

    def pods_of(self, namespace: str, claim: str) -> list[Pod]:
        """Return the pods that use a claim, oldest first."""
        return self._pods.of_claim((namespace, claim))

    def needs_kube_scheduler(self, pod: Pod) -> bool:
        """Return whether the pod may have constraints that only kube-scheduler checks."""
        spec = pod.spec
        known = isinstance(spec, WatchedSpec) and not spec.needs_kube_scheduler
        return not known or self._pods.are_repelled(pod.metadata.namespace)

    # -- inventory -------------------------------------------------------------------------

    @contextmanager
    def excluding(self, uid: str) -> Iterator[None]:
        """Return a context in which the inventory is as if the pod had no GPUs."""
        nodes = set(self.held_by(uid))
        if hold := self.holds.get(uid):
            nodes.add(hold.fits.node)
        held = [each for node in nodes if (each := self.cluster.free(holder_key(uid, node)))]
        try:
            yield
        finally:
            for each in held:
                self.cluster.allocate(each.holder, each, observed=True)

    def _sync_allocation(self, uid: str, node: str) -> None:
        """Update the inventory to what a pod has on one node."""
        key = holder_key(uid, node)
        before, after = self.cluster.allocations.get(key), self._allocation(key, uid, node)
        if after == before:
            return
        self.cluster.free(key)
        if after is not None:
            self.cluster.allocate(key, after, observed=True)
            self._gpus_on.setdefault(node, set()).add(uid)
        else:
            discard(self._gpus_on, node, uid)
        self.allocations += 1
        if self.on_allocation is not None:
            self.on_allocation(uid, node, after)
        self.resources.changed(node)
        if self._plugin_pods.on(node):
            self._gpu_nodes.sync(node)
        if before is not None and not (after is not None and _includes(after, before)):
            self.note_freed()

    def _allocation(self, key: str, uid: str, node: str) -> Allocation | None:
        leased = self.held_by(uid).get(node, {})
        hold = self.holds.get(uid)
        gpus, milli, instances = set(leased), 0, set[tuple[int, str]]()
        for gpu, holder in leased.items():
            milli = max(milli, holder.milli)
            instances.update((gpu, each) for each in holder.instances)
        if hold is not None and hold.fits.node == node:
            gpus.update(hold.fits.gpus)
            instances.update(hold.fits.instances)
            milli = max(milli, hold.fits.request.milli_per_gpu)
        if not gpus:
            return None
        return Allocation(key, node, tuple(sorted(gpus)), milli, tuple(sorted(instances)))

    def _pods_on(self, node: str) -> list[Pod]:
        """Return the pods that are bound to a node or have GPUs there."""
        return self._pods.on(node, self._gpus_on.get(node, ()))

    def _resources_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Recount the nodes of a pod; one that leaves its node frees CPU and memory."""
        for pod in (before, after):
            if pod is not None and pod.spec.node_name:
                self.resources.changed(pod.spec.node_name)
        left = before.spec.node_name if before is not None and not before.finished else ""
        if left in self.cluster.nodes:
            self.note_freed()

    def _sync_nodes_of(self, uid: str) -> None:
        for name in self._reported.nodes_of(uid):
            if self._gpu_nodes.sync(name):
                self.note_freed()


def _includes(larger: Allocation, smaller: Allocation) -> bool:
    return (
        larger.milli >= smaller.milli
        and set(larger.gpus) >= set(smaller.gpus)
        and set(larger.instances) >= set(smaller.instances)
    )


def _identities(report: GpuNodeStatus | None) -> list[object]:
    """Return what devices of ResourceSlices are matched by."""
    devices = report.status.devices if report else ()
    return [(each.id, each.uuid, each.pci_bus_id, each.mig_instances) for each in devices]
