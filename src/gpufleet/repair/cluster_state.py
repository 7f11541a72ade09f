"""Turn the watched objects into the views on which decisions are based."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpufleet.kubernetes import (
    DEVICE_TAINT_RULES,
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    GPU_REPAIRS,
    JOBS,
    NATIVE_POD_GROUPS,
    NODES,
    OLDER_DEVICE_TAINT_RULES,
    OLDER_NATIVE_POD_GROUPS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_SLICES,
    CacheChange,
    KubeClient,
    Reflector,
    Selection,
)
from gpufleet.kubernetes.allocation import allocated_gpus
from gpufleet.kubernetes.annotations import (
    CHECKPOINT_GRACE,
    CLAIM,
    EVICT_AT,
    MIRROR,
    RELEASE_DRIVER,
    REPAIR_LABEL,
)
from gpufleet.kubernetes.claimed_gpus import PublishedDevices
from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus, GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairStatus
from gpufleet.kubernetes.objects import Pod, PodDisruptionBudget, PodGroup
from gpufleet.kubernetes.resource_claims import AGENT_DRIVER, GPU_DRIVERS, ResourceSlice
from gpufleet.repair.decide import affected_pods, drains_of, is_disrupted, is_out_of_service
from gpufleet.repair.jobs import state_of
from gpufleet.repair.node_marks import is_tainted
from gpufleet.repair.views import MANAGED_BY, ClusterView, NodeView, PodView, RepairRules
from gpufleet.scheduler.state.disruption_budgets import DisruptionBudgets
from gpufleet.scheduler.state.gang_identity import Gang, gang_of, group_label, number


@dataclass(frozen=True)
class PodIndex:
    """The running pods by node and by gang."""

    by_node: Mapping[str, tuple[PodView, ...]]
    by_gang: Mapping[object, tuple[PodView, ...]]
    pods: Mapping[str, Pod]
    views: Mapping[str, PodView]
    """By uid."""


NO_PODS = PodIndex({}, {}, {}, {})


class ClusterState:
    """The caches of the controller."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.nodes = Reflector(client, NODES)
        self.reports = Reflector(client, GPU_NODE_STATUSES)
        self.repairs = Reflector(client, GPU_REPAIRS)
        self.jobs = Reflector(client, JOBS, Selection(namespace=namespace, labels=REPAIR_LABEL))
        self.pods = Reflector(client, PODS, Selection(fields="spec.nodeName!="))
        self.claims = Reflector(client, GPU_CLAIMS)
        self.groups = Reflector(client, POD_GROUPS, optional=True)
        self.native_groups = Reflector(
            client, NATIVE_POD_GROUPS, optional=True, older=OLDER_NATIVE_POD_GROUPS
        )
        self.pod_budgets = Reflector(client, POD_DISRUPTION_BUDGETS, optional=True)
        self.slices = Reflector(client, RESOURCE_SLICES, optional=True)
        self.taint_rules = Reflector(
            client,
            DEVICE_TAINT_RULES,
            Selection(labels="=".join(MANAGED_BY)),
            optional=True,
            older=OLDER_DEVICE_TAINT_RULES,
        )
        self.published = PublishedDevices()
        """The GPUs in the slices of drivers other than the agent's."""
        self.slices.subscribe(self._on_slices)
        self.budgets = DisruptionBudgets()
        self.pod_budgets.subscribe(self._on_budgets)
        self.repairs.subscribe(self._on_repairs)
        self._namespace = namespace
        self._written: dict[str, GpuRepair] = {}

    def required(self) -> tuple[Reflector, ...]:  # type: ignore[type-arg]
        """Return the watches that must have listed before the first decision."""
        return (self.nodes, self.reports, self.repairs, self.jobs, self.pods, self.claims)

    def optional(self) -> tuple[Reflector, ...]:  # type: ignore[type-arg]
        """Return the watches of kinds that a cluster may lack."""
        return (self.groups, self.native_groups, self.pod_budgets, self.slices, self.taint_rules)

    def repair(self, node: str) -> GpuRepair | None:
        """Return the newest known state of a node's repair, which may be our own write."""
        cached, written = self.repairs.cache.get(node), self._written.get(node)
        if written is None or (cached is not None and _version(cached) >= _version(written)):
            self._written.pop(node, None)
            return cached
        return written

    def remember(self, repair: GpuRepair) -> None:
        """Use what was written until the watch shows it."""
        self._written[repair.metadata.name] = repair

    def forget(self, node: str) -> None:
        """Trust only the watch again, after a conflict."""
        self._written.pop(node, None)

    def troubled(self) -> list[str]:
        """Return the nodes that have a fault, a repair in progress or our taint."""
        names = {report.metadata.name for report in self.reports.cache if unhealthy(report)}
        names |= {each.metadata.name for each in self.repairs.cache if each.status.phase != "Healthy"}
        names |= {name for name, each in self._written.items() if each.status.phase != "Healthy"}
        names |= {node.metadata.name for node in self.nodes.cache if is_tainted(node)}
        return sorted(name for name in names if self.nodes.cache.get(name) is not None)

    def is_out_of_service(self, node: str) -> bool:
        """Return whether the fault of a node is known and its repair in progress."""
        found = self.repair(node)
        return found is not None and is_out_of_service(found.status)

    def open_repairs(self) -> list[GpuRepair]:
        """Return the repairs of nodes that are out of service."""
        names = {each.metadata.name for each in self.repairs.cache} | set(self._written)
        found = (self.repair(name) for name in sorted(names))
        return [each for each in found if each is not None and is_out_of_service(each.status)]

    def cluster_view(self, node: str) -> ClusterView:
        """Return what the disruption budget counts for one node."""
        disrupted, drains = 0, []
        for name in {each.metadata.name for each in self.repairs.cache} | set(self._written):
            found = self.repair(name)
            if found is None:
                continue
            drains += [each.timestamp() for each in drains_of(found.status)]
            disrupted += name != node and is_disrupted(found.status)
        return ClusterView(max(1, len(self.reports.cache)), disrupted, tuple(drains))

    def node_view(
        self, name: str, status: RepairStatus, pods: PodIndex, rules: RepairRules
    ) -> NodeView | None:
        """Return one node; None if it no longer exists."""
        node, report, repair = self.nodes.cache.get(name), self.reports.cache.get(name), self.repair(name)
        if node is None:
            return None
        devices = report.status.devices if report else ()
        ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
        resumed = repair.spec.resumed_at if repair else None
        view = NodeView(
            name=name,
            gpus=tuple(device.id for device in devices),
            model=devices[0].model if devices else "",
            findings=unhealthy(report) if report else (),
            pods=_with_gangs(pods.by_node.get(name, ()), status.pods, pods),
            job=state_of(self.jobs.cache.get(status.job, self._namespace) if status.job else None),
            boot_id=node.status.node_info.boot_id,
            ready=ready,
            in_use=frozenset(device.id for device in devices if device.in_use_by or device.draining_pods),
            tainted=is_tainted(node),
            resumed_at=resumed.timestamp() if resumed else 0.0,
            released=report is not None and RELEASE_DRIVER in report.metadata.annotations,
            repair_uid=repair.metadata.uid if repair else "",
            unknown=frozenset(device.id for device in devices if device.health == "Unknown")
            if report
            else frozenset(status.gpus),
        )
        leaving = [pods.pods[pod.uid] for pod in affected_pods(status, view, rules) if not pod.terminating]
        return replace(view, blocked_by_budget=not self.budgets.allow(leaving))

    def pod_index(self) -> PodIndex:
        """Index all running pods; our own Jobs do not count."""
        gpus: dict[str, set[int]] = {}
        for report in self.reports.cache:
            for device in report.status.devices:
                for uid in device.in_use_by:
                    gpus.setdefault(uid, set()).add(device.id)
        by_node: dict[str, list[PodView]] = {}
        by_gang: dict[object, list[PodView]] = {}
        objects: dict[str, Pod] = {}
        views: dict[str, PodView] = {}
        groups: dict[tuple[str, str], PodGroup] = {
            (each.metadata.namespace, each.metadata.name): each for each in self.groups.cache
        }
        for pod in self.pods.cache:
            if pod.finished or not pod.spec.node_name or REPAIR_LABEL in pod.metadata.labels:
                continue
            view = self._pod_view(pod, frozenset(gpus.get(pod.metadata.uid, ())), groups)
            objects[view.uid], views[view.uid] = pod, view
            by_node.setdefault(view.node, []).append(view)
            if view.gang is not None:
                by_gang.setdefault(view.gang, []).append(view)
        return PodIndex(
            {node: tuple(each) for node, each in by_node.items()},
            {gang: tuple(each) for gang, each in by_gang.items()},
            objects,
            views,
        )

    def _pod_view(
        self, pod: Pod, gpus: frozenset[int], groups: Mapping[tuple[str, str], PodGroup]
    ) -> PodView:
        meta = pod.metadata
        claim = self.claims.cache.get(meta.annotations.get(CLAIM, ""), meta.namespace)
        gang: Gang | None = gang_of(pod, claim, groups)
        if gang is None and (name := group_label(pod)):
            gang = Gang(meta.namespace, name)
        owner = meta.controller
        return PodView(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            node=pod.spec.node_name,
            gpus=gpus | frozenset(allocated_gpus(pod)),
            gang=gang,
            grace=float(number(meta.annotations, CHECKPOINT_GRACE) or 0),
            evict_at=meta.annotations.get(EVICT_AT, ""),
            terminating=meta.deletion_timestamp is not None,
            permanent=MIRROR in meta.annotations or (owner is not None and owner.kind == "DaemonSet"),
        )

    def _on_repairs(self, changes: Iterable[CacheChange[GpuRepair]]) -> None:
        for change in changes:
            if change.after is None:  # an operator deleted it
                self.forget(change.object.metadata.name)

    def _on_slices(self, changes: Iterable[CacheChange[ResourceSlice]]) -> None:
        for change in changes:
            if change.object.spec.driver in GPU_DRIVERS - {AGENT_DRIVER}:
                change_devices = self.published.drop if change.after is None else self.published.put
                change_devices(change.object)

    def _on_budgets(self, changes: Iterable[CacheChange[PodDisruptionBudget]]) -> None:
        for change in changes:
            if change.after is None:
                self.budgets.drop(change.object)
            else:
                self.budgets.put(change.after)


def unhealthy(report: GpuNodeStatus) -> tuple[FindingStatus, ...]:
    """Return the findings that make GPUs unhealthy."""
    return tuple(each for each in report.status.findings if each.severity == "Unhealthy")


def _with_gangs(here: tuple[PodView, ...], leaving: Iterable[str], pods: PodIndex) -> tuple[PodView, ...]:
    """Return the pods of a node, the other members of their gangs, and those that were to leave already."""
    gangs = {pod.gang for pod in here if pod.gang is not None}
    uids = {pod.uid for pod in here}
    found = {pod.uid: pod for gang in gangs for pod in pods.by_gang[gang]}
    found |= {uid: pods.views[uid] for uid in leaving if uid in pods.views}
    return (*here, *(pod for uid, pod in found.items() if uid not in uids))


def _version(repair: GpuRepair) -> int:
    return int(repair.metadata.resource_version or 0)
