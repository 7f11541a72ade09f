"""Know which pods the agents see on GPUs, and which of these pods no longer exist.

A pod that vanished while it ran, such as one that was deleted by force, counts as running until the agent has looked
at the GPU again and found no process of it.
"""

from collections.abc import Collection, Iterable

from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.scheduler.state.pod_index import PodIndex


class ReportedPods:
    """The pods in the agents' reports."""

    def __init__(self, pods: PodIndex) -> None:
        self._pods = pods
        self._nodes_of: dict[str, set[str]] = {}
        self._vanished: set[str] = set()
        """Pods that were deleted while they ran and that a report still names."""
        self._pods_listed = False

    def __contains__(self, uid: str) -> bool:
        return uid in self._nodes_of

    def __len__(self) -> int:
        return len(self._nodes_of)

    def replace(self, name: str, before: GpuNodeStatus | None, after: GpuNodeStatus | None) -> None:
        """Replace the last report of a node."""
        for uid in _uids(before):
            nodes = self._nodes_of.get(uid, set())
            nodes.discard(name)
            if not nodes:
                self._nodes_of.pop(uid, None)
        for uid in _uids(after):
            self._nodes_of.setdefault(uid, set()).add(name)
        self._vanished &= self._nodes_of.keys()
        self._find_vanished(_uids(after))

    def nodes_of(self, uid: str) -> Collection[str]:
        """Return the nodes whose reports name the pod."""
        return self._nodes_of.get(uid, ())

    def pod_stored(self, uid: str) -> None:
        """Note that a pod exists."""
        self._vanished.discard(uid)

    def pod_deleted(self, uid: str, *, finished: bool) -> None:
        """Note that a pod was deleted."""
        if uid in self._nodes_of and not finished:
            self._vanished.add(uid)

    def pods_listed(self) -> Collection[str]:
        """Return the pods that vanished while no scheduler ran, now that all pods are known."""
        self._pods_listed = True
        self._find_vanished(self._nodes_of)
        return self._vanished

    def is_vanished(self, uid: str) -> bool:
        """Return whether the pod was deleted while it ran."""
        return uid in self._vanished

    def is_draining(self, device: DeviceStatus) -> bool:
        """Return whether deleted pods still use the GPU."""
        return bool(device.draining_pods) or not self._vanished.isdisjoint(device.in_use_by)

    def _find_vanished(self, reported: Iterable[str]) -> None:
        if self._pods_listed:
            self._vanished.update(uid for uid in reported if not self._pods.was_seen(uid))


def _uids(report: GpuNodeStatus | None) -> list[str]:
    return [uid for device in report.status.devices for uid in device.in_use_by] if report else []
