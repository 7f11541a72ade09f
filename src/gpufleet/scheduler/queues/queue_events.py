"""Dispatch watch events of GpuQueues, namespaces and Kueue's LocalQueues."""

from collections.abc import Sequence

from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.kubernetes.objects import KubeObject
from gpufleet.scheduler.queues.gpu_queues import GpuQueues


class QueueEvents:
    """Handles the changes of objects that decide about queues."""

    def __init__(self, queues: GpuQueues) -> None:
        self._queues = queues

    def on_queues(self, changes: Sequence[CacheChange[GpuQueue]]) -> None:
        """Handle changes of GpuQueues."""
        for change in changes:
            if change.after is None:
                self._queues.drop(change.object.metadata.name)
            else:
                self._queues.put(change.after)

    def on_namespaces(self, changes: Sequence[CacheChange[KubeObject]]) -> None:
        """Handle changes of namespaces, which queues select by their labels."""
        for change in changes:
            if change.after is None:
                self._queues.drop_namespace(change.object.metadata.name)
            else:
                self._queues.put_namespace(change.after)

    def on_local_queues(self, changes: Sequence[CacheChange[KubeObject]]) -> None:
        """Handle changes of Kueue's LocalQueues: where there is one, Kueue's quotas apply."""
        for change in changes:
            if change.before is None:
                self._queues.local_queues_changed(change.object.metadata.namespace, 1)
            elif change.after is None:
                self._queues.local_queues_changed(change.object.metadata.namespace, -1)
