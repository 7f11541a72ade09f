"""Who has which GPU, kept from the objects of the API as they come and go.

Leases are the truth; holds are choices of this process that have no lease yet. A holder's
allocation in the cluster is the union of both, found anew whenever one of them changes.
Objects may come twice, late or out of order: a lease older than the one that is known is
left aside, so that the answer to our own write is not undone by a watch that lags behind.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.leases import GpuLease, LeaseHolder, lease_name, read_lease
from gpufleet.kubernetes.objects import KubeObject, Lease, Pod, PodGroup
from gpufleet.kubernetes.objects import Node as KubeNode
from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import WHOLE
from gpufleet.placement.verdict import Fits
from gpufleet.scheduler.state.nodes import node_of

Key = tuple[str, str]
"""Namespace and name."""

_MOST_GONE = 65536
"""So many objects that are gone are remembered: an answer about one may come after the watch has told its end."""


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs chosen for a pod and not leased yet; `until` is a time of the caller's clock."""

    fits: Fits
    until: float
    gang: str = ""
    version: str = ""
    """The pod's version when the choice was made."""


def holder_key(uid: str, node: str) -> str:
    """The name of a pod's holding on one node; a pod may hold on two while an attempt is being undone."""
    return f"{uid}@{node}"


def uid_of(holder: str) -> str:
    """The pod of a holding."""
    return holder.rpartition("@")[0]


class Ledger:
    """Nodes, leases, claims and pods, and the cluster that follows from them."""

    def __init__(self, cluster: Inventory | None = None) -> None:
        self.cluster = Inventory() if cluster is None else cluster
        self.nodes: dict[str, KubeNode] = {}
        self.reports: dict[str, GpuNodeStatus] = {}
        self.claims: dict[Key, GpuClaim] = {}
        self.groups: dict[Key, PodGroup] = {}
        self.pods: dict[str, Pod] = {}
        self.leases: dict[str, GpuLease] = {}
        self.holds: dict[str, Hold] = {}
        self.foreign: set[str] = set()
        """Names of the leases that were made by hand or by another program."""
        self.on_freed: Callable[[], None] = lambda: None
        """Called when a pod has given up something that it had or that was kept for it."""
        self._gone: dict[str, str] = {}
        self._gone_pods: dict[str, str] = {}
        self._parts: dict[str, dict[str, dict[int, LeaseHolder]]] = {}
        self._by_claim: dict[Key, set[str]] = {}
        self._users: dict[str, set[str]] = {}

    # -- nodes -----------------------------------------------------------------------------

    def put_node(self, node: KubeNode) -> bool:
        """A node is there or has changed; whether it may take other pods now than before."""
        name = node.metadata.name
        before = self.nodes.get(name)
        self.nodes[name] = node
        return self._refresh(name) or before is None or before.spec != node.spec

    def drop_node(self, name: str) -> None:
        """A node is gone; leases of its GPUs stay known."""
        self.nodes.pop(name, None)
        self._refresh(name)

    def put_report(self, report: GpuNodeStatus) -> bool:
        """An agent has reported the GPUs of its node; whether that changes what can be given."""
        name = report.spec.node_name
        self._forget_users(name)
        self.reports[name] = report
        for device in report.status.devices:
            for uid in device.in_use_by:
                self._users.setdefault(uid, set()).add(name)
        return self._refresh(name)

    def drop_report(self, name: str) -> None:
        """A node's report is gone."""
        self._forget_users(name)
        self.reports.pop(name, None)
        self._refresh(name)

    def device(self, node: str, gpu: int) -> DeviceStatus | None:
        """What is reported of one GPU."""
        report = self.reports.get(node)
        found = (each for each in report.status.devices if each.id == gpu) if report else iter(())
        return next(found, None)

    # -- leases and holds ------------------------------------------------------------------

    def put_lease(self, lease: Lease) -> None:
        """A lease as the server showed it; one that is known, or older, changes nothing."""
        known = self.leases.get(lease.metadata.name)
        if known is not None and _known_or_older(lease, known.object):
            return
        read = read_lease(lease)
        if read is None:
            return
        if self._gone.get(read.name) == lease.metadata.uid:
            return
        before = self._unlist(known)
        self.leases[read.name] = read
        if read.foreign:
            self.foreign.add(read.name)
        for uid, holder in read.holders.items():
            self._parts.setdefault(uid, {}).setdefault(read.node, {})[read.gpu] = holder
        for uid, node in dict.fromkeys((*before, *((uid, read.node) for uid in read.holders))):
            self._settle(uid, node)
        if self.reports.get(read.node) and self.device_used(read.node, read.gpu):
            self._refresh(read.node)

    def drop_lease(self, name: str, uid: str = "") -> None:
        """A lease is gone (only that of `uid`, if given)."""
        known = self.leases.get(name)
        if uid:
            _remember(self._gone, name, uid)
        if known is None or (uid and known.object.metadata.uid != uid):
            return
        del self.leases[name]
        for holder, node in self._unlist(known):
            self._settle(holder, node)
        if self.device_used(known.node, known.gpu):
            self._refresh(known.node)

    def hold(self, uid: str, hold: Hold) -> None:
        """Keep GPUs for a pod until it is bound or the time is up; replaces its earlier hold."""
        before = self.holds.get(uid)
        self.holds[uid] = hold
        if before is not None and before.fits.node != hold.fits.node:
            self._settle(uid, before.fits.node)
        self._settle(uid, hold.fits.node)

    def release_hold(self, uid: str) -> Hold | None:
        """Give up a pod's hold, if it has one."""
        hold = self.holds.pop(uid, None)
        if hold is not None:
            self._settle(uid, hold.fits.node)
        return hold

    def parts(self, uid: str) -> dict[str, dict[int, LeaseHolder]]:
        """What a pod has by leases: by node, by GPU id."""
        return self._parts.get(uid, {})

    def reserved(self, uid: str) -> bool:
        """Whether a scheduler of ours has written leases for a pod."""
        return any(holder.stamp for gpus in self.parts(uid).values() for holder in gpus.values())

    def lessees(self) -> Iterator[str]:
        """Everybody who has a lease."""
        return iter(list(self._parts))

    def unhindered(self, uid: str, fits: Fits) -> bool:
        """Whether no lease of another keeps these GPUs from the pod."""
        return all(self._open(uid, fits, gpu) for gpu in fits.gpus)

    def hinderers(self, uid: str, fits: Fits) -> set[str]:
        """The other pods that have leases of these GPUs."""
        leases = (self.leases.get(lease_name(fits.node, gpu)) for gpu in fits.gpus)
        return {other for lease in leases if lease for other in lease.holders if other != uid}

    def _open(self, uid: str, fits: Fits, gpu: int) -> bool:
        lease = self.leases.get(lease_name(fits.node, gpu))
        others = [holder for other, holder in lease.holders.items() if other != uid] if lease else []
        if fits.instances:
            mine = {instance for at, instance in fits.instances if at == gpu}
            return not any(holder.milli or mine & set(holder.instances) for holder in others)
        return sum(holder.milli for holder in others) + fits.request.milli_per_gpu <= WHOLE

    # -- claims and pods -------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """A pod is there or has changed; one that is gone does not come back."""
        uid = pod.metadata.uid
        known = self.pods.get(uid)
        if uid in self._gone_pods or (known is not None and _known_or_older(pod, known)):
            return
        self._unname(known)
        self.pods[uid] = pod
        if pod.metadata.annotations.get(CLAIM):
            self._by_claim.setdefault(_claim_key(pod), set()).add(uid)
        if known is None or known.finished != pod.finished:
            self._refresh_users(uid)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        _remember(self._gone_pods, uid, uid)
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._unname(pod)
            self._refresh_users(uid)

    def claim_of(self, pod: Pod) -> GpuClaim | None:
        """The claim that a pod names, if both are there."""
        return self.claims.get(_claim_key(pod))

    def pods_of(self, namespace: str, claim: str) -> list[Pod]:
        """The pods that name a claim, oldest first."""
        pods = [self.pods[uid] for uid in self._by_claim.get((namespace, claim), ())]
        return sorted(pods, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.name))

    # -- how it hangs together -------------------------------------------------------------

    def without(self, uid: str) -> "_Aside":
        """Within this, the cluster is as if the pod had nothing."""
        return _Aside(self, uid)

    def device_used(self, node: str, gpu: int) -> bool:
        """Whether the agent has seen pods on a GPU."""
        device = self.device(node, gpu)
        return device is not None and bool(device.in_use_by)

    def _unlist(self, lease: GpuLease | None) -> list[tuple[str, str]]:
        """Take a lease from what its holders have; they, with its node, are to be settled."""
        if lease is None:
            return []
        self.foreign.discard(lease.name)
        for uid in lease.holders:
            nodes = self._parts.get(uid, {})
            nodes.get(lease.node, {}).pop(lease.gpu, None)
            if not nodes.get(lease.node):
                nodes.pop(lease.node, None)
            if not nodes:
                self._parts.pop(uid, None)
        return [(uid, lease.node) for uid in lease.holders]

    def _settle(self, uid: str, node: str) -> None:
        """Make the cluster agree with what a pod has on one node."""
        key = holder_key(uid, node)
        have, want = self.cluster.allocations.get(key), self._wanted(key, uid, node)
        if want == have:
            return
        self.cluster.free(key)
        if want is not None:
            self.cluster.allocate(key, want, observed=True)
        if have is not None and not (want is not None and _holds_all_of(want, have)):
            self.on_freed()

    def _wanted(self, key: str, uid: str, node: str) -> Allocation | None:
        parts = self._parts.get(uid, {}).get(node, {})
        hold = self.holds.get(uid)
        gpus, milli, instances = set(parts), 0, set[tuple[int, str]]()
        for gpu, holder in parts.items():
            milli = max(milli, holder.milli)
            instances.update((gpu, each) for each in holder.instances)
        if hold is not None and hold.fits.node == node:
            gpus.update(hold.fits.gpus)
            instances.update(hold.fits.instances)
            milli = max(milli, hold.fits.request.milli_per_gpu)
        if not gpus:
            return None
        return Allocation(key, node, tuple(sorted(gpus)), milli, tuple(sorted(instances)))

    def _refresh(self, name: str) -> bool:
        """Make the cluster agree with what is known of a node; whether that changed anything."""
        node, report = self.nodes.get(name), self.reports.get(name)
        before = self.cluster.nodes.get(name)
        if node is None or report is None:
            self.cluster.remove_node(name)
            return before is not None
        now = node_of(node, report, lambda device: self._taken(name, device))
        if now == before:
            return False
        self.cluster.put_node(now)
        return True

    def _unname(self, pod: Pod | None) -> None:
        """Take a pod from those that name its claim; users may change the annotation of a pod that waits."""
        named = self._by_claim.get(_claim_key(pod)) if pod is not None else None
        if pod is not None and named is not None:
            named.discard(pod.metadata.uid)
            if not named:
                del self._by_claim[_claim_key(pod)]

    def _forget_users(self, name: str) -> None:
        """Forget which pods the node's last report named."""
        report = self.reports.get(name)
        for device in report.status.devices if report else ():
            for uid in device.in_use_by:
                nodes = self._users.get(uid, set())
                nodes.discard(name)
                if not nodes:
                    self._users.pop(uid, None)

    def _refresh_users(self, uid: str) -> None:
        for name in self._users.get(uid, ()):
            if self._refresh(name):
                self.on_freed()

    def _taken(self, node: str, device: DeviceStatus) -> bool:
        """Whether a living pod without a lease is on the GPU, by what the agent saw."""
        return any(
            (pod := self.pods.get(uid)) is not None
            and not pod.finished
            and device.id not in self._parts.get(uid, {}).get(node, {})
            for uid in device.in_use_by
        )


class _Aside:
    """A pod's own holdings, put aside while it is placed anew."""

    def __init__(self, ledger: Ledger, uid: str) -> None:
        self._ledger = ledger
        self._uid = uid
        self._held: list[Allocation] = []

    def __enter__(self) -> None:
        ledger, uid = self._ledger, self._uid
        nodes = set(ledger.parts(uid))
        if hold := ledger.holds.get(uid):
            nodes.add(hold.fits.node)
        self._held = [held for node in nodes if (held := ledger.cluster.free(holder_key(uid, node)))]

    def __exit__(self, *_error: object) -> None:
        for held in self._held:
            self._ledger.cluster.allocate(held.holder, held, observed=True)


def _holds_all_of(more: Allocation, less: Allocation) -> bool:
    return (
        more.milli >= less.milli
        and set(more.gpus) >= set(less.gpus)
        and set(more.instances) >= set(less.instances)
    )


def _claim_key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, "")


def _remember(gone: dict[str, str], name: str, uid: str) -> None:
    gone[name] = uid
    if len(gone) > _MOST_GONE:
        gone.pop(next(iter(gone)))


def _known_or_older(item: KubeObject, known: KubeObject) -> bool:
    """Whether `item` is `known` or an earlier state of it (versions of one object count upwards)."""
    new, old = item.metadata, known.metadata
    if new.uid != old.uid or not (new.resource_version.isdigit() and old.resource_version.isdigit()):
        return False
    return int(new.resource_version) <= int(old.resource_version)
