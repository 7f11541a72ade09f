"""Derive the nodes of the inventory from Kubernetes nodes and the agents' reports.

A GPU is not offered if pods without a lease use it: pods of the device plugin, pods that another scheduler placed, or
pods that were deleted while they ran.
"""

from collections.abc import Callable, Mapping, Sequence

from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Node as KubeNode
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.inventory import Inventory
from gpufleet.scheduler.state.claim_allocations import ClaimAllocations
from gpufleet.scheduler.state.holders import is_reservation
from gpufleet.scheduler.state.nodes import candidate_node
from gpufleet.scheduler.state.plugin_pods import PluginPods
from gpufleet.scheduler.state.reported_pods import ReportedPods


class GpuNodes:
    """Nodes and reports; `held_by` returns what leases and ResourceClaims give a pod, by node and GPU id."""

    def __init__(
        self,
        cluster: Inventory,
        pods: Mapping[str, Pod],
        reported: ReportedPods,
        plugin_pods: PluginPods,
        held_by: Callable[[str], Mapping[str, Mapping[int, LeaseHolder]]],
    ) -> None:
        self.nodes: dict[str, KubeNode] = {}
        self.reports: dict[str, GpuNodeStatus] = {}
        self.resource_claims = ClaimAllocations(self._devices)
        self._cluster = cluster
        self._pods = pods
        self._reported = reported
        self._plugin_pods = plugin_pods
        self._held_by = held_by
        self._draining: set[str] = set()

    def device(self, node: str, gpu: int) -> DeviceStatus | None:
        """Return the report of one GPU, if any."""
        return next((each for each in self._devices(node) if each.id == gpu), None)

    def device_used(self, node: str, gpu: int) -> bool:
        """Return whether the agent has reported pods on a GPU."""
        device = self.device(node, gpu)
        return device is not None and bool(device.in_use_by)

    def draining(self) -> list[str]:
        """Return the GPUs that deleted pods still use, as `node-a:3`."""
        return [
            f"{node}:{device.id}"
            for node in sorted(self._draining)
            for device in self.reports[node].status.devices
            if self._reported.is_draining(device)
        ]

    def sync(self, name: str) -> bool:
        """Update the inventory to the state of a node; return whether it changed."""
        node, report = self.nodes.get(name), self.reports.get(name)
        before = self._cluster.nodes.get(name)
        self._draining.discard(name)
        if report is not None and any(map(self._reported.is_draining, report.status.devices)):
            self._draining.add(name)
        if node is None or report is None:
            self._cluster.remove_node(name)
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
        self._cluster.put_node(now)
        return True

    def _devices(self, node: str) -> Sequence[DeviceStatus]:
        report = self.reports.get(node)
        return report.status.devices if report else ()

    def _used_without_lease(self, node: str, device: DeviceStatus) -> bool:
        """Return whether the agent reports a running pod on the GPU that has no lease of it."""
        return any(
            self._reported.is_vanished(uid)
            or (
                (pod := self._pods.get(uid)) is not None
                and not pod.finished
                and device.id not in self._held_by(uid).get(node, {})
            )
            for uid in device.in_use_by
        )

    def _is_allocated(self, node: str, gpu: int) -> bool:
        """Return whether a claim has a GPU, by a lease or a hold."""
        held = self._cluster.allocations
        keys = self._cluster.holders_on(node)
        return any(gpu in held[key].gpus for key in keys if not is_reservation(key))
