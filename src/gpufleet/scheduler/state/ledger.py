"""Track which pod has which GPU, from the objects that the watches deliver.

Leases and the allocations of ResourceClaims are authoritative. Holds are choices of this process that have no lease yet. A pod's
allocation in the inventory is the union of all and is recomputed whenever one of them changes.
Reservations keep GPUs, free or still in use, from units that are behind in the queue; in the
inventory they are allocations beyond a GPU's capacity, so a GPU that becomes free stays taken.
Objects may arrive twice, late or out of order. A state older than the known one is ignored, so a
lagging watch does not undo the result of our own write.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.leases import GpuLease, LeaseHolder, lease_name, read_lease
from gpufleet.kubernetes.objects import KubeObject, Lease, Pod
from gpufleet.kubernetes.objects import Node as KubeNode
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceSlice
from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import WHOLE
from gpufleet.placement.verdict import Fits
from gpufleet.scheduler.state.claim_allocations import ClaimAllocations
from gpufleet.scheduler.state.disruption_budgets import DisruptionBudgets
from gpufleet.scheduler.state.eligible_nodes import EligibleNodes
from gpufleet.scheduler.state.gang_index import GangIndex
from gpufleet.scheduler.state.indexes import Key, by_age, discard
from gpufleet.scheduler.state.node_resources import NodeResources
from gpufleet.scheduler.state.nodes import candidate_node, meets_constraints
from gpufleet.scheduler.state.plugin_pods import PluginPods

_MAX_TOMBSTONES = 65536
"""Number of deleted objects remembered: a response about one may arrive after its deletion."""


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs chosen for a pod but not leased yet; `until` is a monotonic time."""

    fits: Fits
    until: float
    gang: str = ""
    pinned: bool = False
    """Whether the GPUs are being written to a ResourceClaim: they stay held until the outcome is known."""


def holder_key(uid: str, node: str) -> str:
    """Return the inventory key of a pod's GPUs on one node; a pod may have two nodes while an attempt is undone."""
    return f"{uid}@{node}"


def uid_of(holder: str) -> str:
    """Return the pod's UID in an inventory key."""
    return holder.rpartition("@")[0]


def unit_of(holder: str) -> str:
    """Return the unit in the inventory key of a reservation; an empty string for a pod's."""
    unit, _, at = holder.rpartition("#")
    return unit if at.endswith("@") else ""


class Ledger:
    """Nodes, leases, claims and pods, and the inventory derived from them."""

    def __init__(self, changed: asyncio.Event | None = None) -> None:
        """Create an empty ledger; `changed` is set whenever GPUs may have become free."""
        self.cluster = Inventory()
        self.nodes: dict[str, KubeNode] = {}
        self.reports: dict[str, GpuNodeStatus] = {}
        self.claims: dict[Key, GpuClaim] = {}
        self.pods: dict[str, Pod] = {}
        self._by_claim: dict[Key, set[str]] = {}
        self.leases: dict[str, GpuLease] = {}
        self.holds: dict[str, Hold] = {}
        self.foreign: set[str] = set()
        """Names of the leases made by hand or by another program."""
        self.reservations: dict[str, tuple[Fits, ...]] = {}
        """GPUs kept for a unit of the queue, by a name of the unit."""
        self.freed = 0
        """Grows whenever GPUs, or other resources of a node, may have become free."""
        self.allocations = 0
        """Grows whenever a pod gets or loses GPUs."""
        self.resources = NodeResources(self.nodes, self._pods_on)
        self.eligible = EligibleNodes(self.nodes)
        self.budgets = DisruptionBudgets()
        self.gangs = GangIndex(self.claims, self.pods, self._by_claim)
        self._changed = changed
        self._deleted_leases: dict[str, str] = {}
        self._deleted_pods: dict[str, str] = {}
        self.resource_claims = ClaimAllocations(self._devices)
        self._deleted_resource_claims: dict[str, str] = {}
        self._leased: dict[str, dict[str, dict[int, LeaseHolder]]] = {}
        self._used_on: dict[str, set[str]] = {}
        self._vanished: set[str] = set()
        """Pods that were deleted while they ran and that a report still names."""
        self._pods_listed = False
        self._draining: set[str] = set()
        self._bound_to: dict[str, set[str]] = {}
        self._gpus_on: dict[str, set[str]] = {}
        self._plugin_pods = PluginPods()

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
        changed = self._sync_node(name) or before is None or before.spec != node.spec
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
        self._sync_node(name)

    def meets_constraints(self, name: str, pod: Pod) -> bool:
        """Return whether the node exists and the pod's own constraints allow it."""
        node = self.nodes.get(name)
        return node is not None and meets_constraints(node, pod)

    def put_report(self, report: GpuNodeStatus) -> bool:
        """Store an agent's report; return whether it changes what can be allocated."""
        name = report.spec.node_name
        self._forget_reported_pods(name)
        before = self.reports.get(name)
        self.reports[name] = report
        for device in report.status.devices:
            for uid in device.in_use_by:
                self._used_on.setdefault(uid, set()).add(name)
        self._vanished &= self._used_on.keys()
        if _identities(before) != _identities(report):
            self._sync_allocations(self.resource_claims.node_changed(name))
        self._find_vanished(uid for device in report.status.devices for uid in device.in_use_by)
        changed = self._sync_node(name)
        if changed:
            self.note_freed()
        return changed

    def drop_report(self, name: str) -> None:
        """Remove the report of a node."""
        self._forget_reported_pods(name)
        self.reports.pop(name, None)
        self._vanished &= self._used_on.keys()
        self._sync_node(name)

    def device(self, node: str, gpu: int) -> DeviceStatus | None:
        """Return the report of one GPU, if any."""
        report = self.reports.get(node)
        found = (each for each in report.status.devices if each.id == gpu) if report else iter(())
        return next(found, None)

    def _devices(self, node: str) -> Sequence[DeviceStatus]:
        report = self.reports.get(node)
        return report.status.devices if report else ()

    # -- ResourceClaims --------------------------------------------------------------------

    def put_resource_claim(self, claim: ResourceClaim) -> None:
        """Store a ResourceClaim, unless it is known, older than the known one, or deleted."""
        meta = claim.metadata
        known = self.resource_claims.get((meta.namespace, meta.name))
        if meta.uid in self._deleted_resource_claims or (
            known is not None and _is_stale(claim, known.object)
        ):
            return
        self._sync_allocations(self.resource_claims.put(claim))

    def drop_resource_claim(self, claim: ResourceClaim) -> None:
        """Remove a deleted ResourceClaim."""
        meta = claim.metadata
        _remember_deleted(self._deleted_resource_claims, meta.uid, meta.uid)
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
            self._sync_node(node)
            self.note_freed()

    def _sync_allocations(self, changed: Iterable[tuple[str, str]]) -> None:
        for holder, node in changed:
            self._sync_allocation(holder, node)
            if holder in self._used_on:
                self._sync_node(node)

    # -- leases and holds ------------------------------------------------------------------

    def put_lease(self, lease: Lease) -> None:
        """Store a lease, unless it is known, older than the known one, or deleted."""
        known = self.leases.get(lease.metadata.name)
        if known is not None and _is_stale(lease, known.object):
            return
        parsed = read_lease(lease)
        if parsed is None:
            return
        if self._deleted_leases.get(parsed.name) == lease.metadata.uid:
            return
        before = self._remove_holders(known)
        self.leases[parsed.name] = parsed
        if parsed.foreign:
            self.foreign.add(parsed.name)
        for uid, holder in parsed.holders.items():
            self._leased.setdefault(uid, {}).setdefault(parsed.node, {})[parsed.gpu] = holder
        for uid, node in dict.fromkeys((*before, *((uid, parsed.node) for uid in parsed.holders))):
            self._sync_allocation(uid, node)
        if self.reports.get(parsed.node) and self.device_used(parsed.node, parsed.gpu):
            self._sync_node(parsed.node)

    def drop_lease(self, name: str, uid: str = "") -> None:
        """Remove a lease; only the one with this `uid`, if given."""
        known = self.leases.get(name)
        if uid:
            _remember_deleted(self._deleted_leases, name, uid)
        if known is None or (uid and known.object.metadata.uid != uid):
            return
        del self.leases[name]
        for holder, node in self._remove_holders(known):
            self._sync_allocation(holder, node)
        if self.device_used(known.node, known.gpu):
            self._sync_node(known.node)

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
        return self._leased.get(uid, {})

    def held_by(self, uid: str) -> Mapping[str, Mapping[int, LeaseHolder]]:
        """Return what leases and ResourceClaims give the pod, by node and GPU id."""
        leased, claimed = self._leased.get(uid, {}), self.resource_claims.held(uid)
        if not claimed:
            return leased
        nodes = dict.fromkeys((*leased, *claimed))
        return {node: {**leased.get(node, {}), **claimed.get(node, {})} for node in nodes}

    def reserved(self, uid: str) -> bool:
        """Return whether a gpufleet scheduler has written leases or a ResourceClaim's allocation for the pod."""
        return any(holder.stamp for gpus in self.held_by(uid).values() for holder in gpus.values())

    def lease_holders(self) -> Iterator[str]:
        """Return the UIDs of all pods with leases."""
        return iter(list(self._leased))

    def unblocked(self, uid: str, fits: Fits) -> bool:
        """Return whether leases and ResourceClaims of others, and device-plugin pods, leave these GPUs to the pod."""
        return not self.cluster.has_taken(fits) and all(self._is_open(uid, fits, gpu) for gpu in fits.gpus)

    def blocking_pods(self, uid: str, fits: Fits) -> set[str]:
        """Return the other pods that have these GPUs."""
        return {other for gpu in fits.gpus for other in self.holders(fits.node, gpu) if other != uid}

    def holders(self, node: str, gpu: int) -> dict[str, LeaseHolder]:
        """Return what each pod, or ResourceClaim of others, has of a GPU by leases and allocations."""
        lease = self.leases.get(lease_name(node, gpu))
        claimed = self.resource_claims.holders(node, gpu)
        return {**(lease.holders if lease else {}), **claimed}

    def _is_open(self, uid: str, fits: Fits, gpu: int) -> bool:
        others = [holder for other, holder in self.holders(fits.node, gpu).items() if other != uid]
        if fits.instances:
            mine = {instance for at, instance in fits.instances if at == gpu}
            return not any(holder.milli or mine & set(holder.instances) for holder in others)
        return sum(holder.milli for holder in others) + fits.request.milli_per_gpu <= WHOLE

    # -- claims and pods -------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Store a pod, unless it is deleted or older than the known state."""
        uid = pod.metadata.uid
        known = self.pods.get(uid)
        if uid in self._deleted_pods or (known is not None and _is_stale(pod, known)):
            return
        self._remove_from_indexes(known)
        self._vanished.discard(uid)
        self.pods[uid] = pod
        if pod.metadata.annotations.get(CLAIM):
            self._by_claim.setdefault(_claim_key(pod), set()).add(uid)
            self.gangs.put_pod(pod)
        if pod.spec.node_name and not pod.finished:
            self._bound_to.setdefault(pod.spec.node_name, set()).add(uid)
        if known is None or known.finished != pod.finished or known.spec.node_name != pod.spec.node_name:
            self._resources_changed(known, pod)
            self._sync_nodes_of(uid)
        if self._plugin_pods.put(pod) and self._sync_node(pod.spec.node_name):
            self.note_freed()

    def pods_listed(self) -> None:
        """Record that all pods are known: a pod that only a report names vanished while no scheduler ran."""
        self._pods_listed = True
        self._find_vanished(self._used_on)
        for uid in self._vanished:
            self._sync_nodes_of(uid)

    def _find_vanished(self, reported: Iterable[str]) -> None:
        if self._pods_listed:
            unknown = (uid for uid in reported if uid not in self.pods and uid not in self._deleted_pods)
            self._vanished.update(unknown)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod."""
        _remember_deleted(self._deleted_pods, uid, uid)
        pod = self.pods.pop(uid, None)
        if pod is not None:
            if uid in self._used_on and not pod.finished:
                self._vanished.add(uid)
            self._remove_from_indexes(pod)
            self._resources_changed(pod, None)
            self._sync_nodes_of(uid)
            if self._plugin_pods.drop(pod) and self._sync_node(pod.spec.node_name):
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
        return self.claims.get(_claim_key(pod))

    def pods_of(self, namespace: str, claim: str) -> list[Pod]:
        """Return the pods that use a claim, oldest first."""
        pods = [self.pods[uid] for uid in self._by_claim.get((namespace, claim), ())]
        return sorted(pods, key=by_age)

    # -- inventory -------------------------------------------------------------------------

    def excluding(self, uid: str) -> "_Excluded":
        """Return a context in which the inventory is as if the pod had no GPUs."""
        return _Excluded(self, uid)

    def reserve(self, unit: str, places: Sequence[Fits]) -> None:
        """Keep GPUs, free or not, for a unit; replaces its earlier reservation."""
        if self.reservations.get(unit) == tuple(places):
            return
        self.unreserve(unit)
        self.reservations[unit] = tuple(places)
        self._apply_reservation(unit)

    def unreserve(self, unit: str) -> None:
        """Remove the reservation of a unit."""
        if unit in self.reservations:
            self._lift_reservation(unit)
            del self.reservations[unit]
            self.note_freed()

    @contextmanager
    def ignoring(self, units: Iterable[str]) -> Iterator[None]:
        """Return a context in which these units have no reservations."""
        units = [unit for unit in units if unit in self.reservations]
        for unit in units:
            self._lift_reservation(unit)
        try:
            yield
        finally:
            for unit in units:
                self._apply_reservation(unit)

    def _apply_reservation(self, unit: str) -> None:
        for at, fits in enumerate(self.reservations[unit]):
            self.cluster.allocate(
                _reservation_key(unit, at), Allocation.of(_reservation_key(unit, at), fits), observed=True
            )

    def _lift_reservation(self, unit: str) -> None:
        for at in range(len(self.reservations[unit])):
            self.cluster.free(_reservation_key(unit, at))

    def device_used(self, node: str, gpu: int) -> bool:
        """Return whether the agent has reported pods on a GPU."""
        device = self.device(node, gpu)
        return device is not None and bool(device.in_use_by)

    def _remove_holders(self, lease: GpuLease | None) -> list[tuple[str, str]]:
        """Remove a lease from its holders; return the (pod, node) pairs to sync."""
        if lease is None:
            return []
        self.foreign.discard(lease.name)
        for uid in lease.holders:
            nodes = self._leased.get(uid, {})
            nodes.get(lease.node, {}).pop(lease.gpu, None)
            if not nodes.get(lease.node):
                nodes.pop(lease.node, None)
            if not nodes:
                self._leased.pop(uid, None)
        return [(uid, lease.node) for uid in lease.holders]

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
        self.resources.changed(node)
        if self._plugin_pods.on(node):
            self._sync_node(node)
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

    def _sync_node(self, name: str) -> bool:
        """Update the inventory to the state of a node; return whether it changed."""
        node, report = self.nodes.get(name), self.reports.get(name)
        before = self.cluster.nodes.get(name)
        self._draining.discard(name)
        if report is not None and any(map(self._is_draining, report.status.devices)):
            self._draining.add(name)
        if node is None or report is None:
            self.cluster.remove_node(name)
            return before is not None
        plugged = self._plugin_pods.gpus(node, report, lambda gpu: self._is_allocated(name, gpu))
        now = candidate_node(
            node,
            report,
            lambda device: (
                device.id in plugged
                or self._used_without_lease(name, device)
                or self.resource_claims.is_blocked(name, device.id)
            ),
        )
        if now == before:
            return False
        self.cluster.put_node(now)
        return True

    def _remove_from_indexes(self, pod: Pod | None) -> None:
        """Remove a pod from all indexes: users may change labels and annotations of a pending pod."""
        if pod is None:
            return
        meta = pod.metadata
        discard(self._by_claim, _claim_key(pod), meta.uid)
        self.gangs.drop_pod(pod)
        discard(self._bound_to, pod.spec.node_name, meta.uid)

    def _pods_on(self, node: str) -> list[Pod]:
        """Return the pods that are bound to a node or have GPUs there."""
        uids = self._bound_to.get(node, set()) | self._gpus_on.get(node, set())
        pods = (self.pods.get(uid) for uid in uids)
        return [
            pod for pod in pods if pod is not None and not pod.finished and pod.spec.node_name in ("", node)
        ]

    def _resources_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Recount the nodes of a pod; one that leaves its node frees CPU and memory."""
        for pod in (before, after):
            if pod is not None and pod.spec.node_name:
                self.resources.changed(pod.spec.node_name)
        left = before.spec.node_name if before is not None and not before.finished else ""
        if left in self.cluster.nodes:
            self.note_freed()

    def _forget_reported_pods(self, name: str) -> None:
        """Forget the pods in the node's last report."""
        report = self.reports.get(name)
        for device in report.status.devices if report else ():
            for uid in device.in_use_by:
                nodes = self._used_on.get(uid, set())
                nodes.discard(name)
                if not nodes:
                    self._used_on.pop(uid, None)

    def _sync_nodes_of(self, uid: str) -> None:
        for name in self._used_on.get(uid, ()):
            if self._sync_node(name):
                self.note_freed()

    def _used_without_lease(self, node: str, device: DeviceStatus) -> bool:
        """Return whether the agent reports a running pod on the GPU that has no lease of it.

        A pod that vanished while it ran, such as one that was deleted by force, counts as running until
        the agent has looked at the GPU again and found no process of it.
        """
        return any(
            uid in self._vanished
            or (
                (pod := self.pods.get(uid)) is not None
                and not pod.finished
                and device.id not in self.held_by(uid).get(node, {})
            )
            for uid in device.in_use_by
        )

    def _is_allocated(self, node: str, gpu: int) -> bool:
        """Return whether a claim has a GPU, by a lease or a hold."""
        held = self.cluster.allocations
        keys = self.cluster.holders_on(node)
        return any(gpu in held[key].gpus for key in keys if not key.endswith("@"))  # not a reservation

    def draining(self) -> list[str]:
        """Return the GPUs that deleted pods still use, as `node-a:3`."""
        return [
            f"{node}:{device.id}"
            for node in sorted(self._draining)
            for device in self.reports[node].status.devices
            if self._is_draining(device)
        ]

    def _is_draining(self, device: DeviceStatus) -> bool:
        return bool(device.draining_pods) or not self._vanished.isdisjoint(device.in_use_by)


class _Excluded:
    """Removes a pod's GPUs from the inventory while it is placed again."""

    def __init__(self, ledger: Ledger, uid: str) -> None:
        self._ledger = ledger
        self._uid = uid
        self._held: list[Allocation] = []

    def __enter__(self) -> None:
        ledger, uid = self._ledger, self._uid
        nodes = set(ledger.held_by(uid))
        if hold := ledger.holds.get(uid):
            nodes.add(hold.fits.node)
        self._held = [held for node in nodes if (held := ledger.cluster.free(holder_key(uid, node)))]

    def __exit__(self, *_error: object) -> None:
        for held in self._held:
            self._ledger.cluster.allocate(held.holder, held, observed=True)


def _reservation_key(unit: str, at: int) -> str:
    """Return the inventory key of one place of a reservation; no pod has an empty UID."""
    return f"{unit}#{at}@"


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


def _claim_key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, "")


def _remember_deleted(deleted: dict[str, str], name: str, uid: str) -> None:
    deleted[name] = uid
    if len(deleted) > _MAX_TOMBSTONES:
        deleted.pop(next(iter(deleted)))


def _is_stale(item: KubeObject, known: KubeObject) -> bool:
    """Return whether `item` is `known` or an earlier state of it; versions of one object only grow."""
    new, old = item.metadata, known.metadata
    if new.uid != old.uid or not (new.resource_version.isdigit() and old.resource_version.isdigit()):
        return False
    return int(new.resource_version) <= int(old.resource_version)
