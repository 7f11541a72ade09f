"""`SchedulerApi` implemented with the Kubernetes client."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_QUEUES,
    LEASES,
    PODS,
    RESOURCE_CLAIMS,
    EventRecorder,
    KubeClient,
)
from gpufleet.kubernetes.annotations import NUDGE
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.errors import Conflict, Invalid, ObjectNotFound
from gpufleet.kubernetes.objects import Lease, ObjectReference, Pod
from gpufleet.kubernetes.resource_claims import ResourceClaim
from gpufleet.scheduler.watched_pods import WATCHED_PODS


class KubernetesApi:
    """Implements `SchedulerApi`; leases are in `namespace`."""

    def __init__(self, client: KubeClient, namespace: str, instance: str) -> None:
        self._client = client
        self._namespace = namespace
        self._events = EventRecorder(client, "gpufleet-scheduler", instance)

    async def read_lease(self, name: str) -> Lease | None:
        """Return the current lease."""
        try:
            return await self._client.get(LEASES, name, self._namespace)
        except ObjectNotFound:
            return None

    async def create_lease(self, lease: Lease) -> Lease:
        """Create a lease."""
        return await self._client.create(LEASES, lease)

    async def replace_lease(self, lease: Lease) -> Lease:
        """Replace a lease at its version."""
        return await self._client.replace(LEASES, lease)

    async def delete_lease(self, name: str, uid: str, resource_version: str) -> None:
        """Delete this version of a lease."""
        await self._client.delete(LEASES, name, self._namespace, uid=uid, resource_version=resource_version)

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Return the current pod."""
        try:
            return await self._client.get(WATCHED_PODS, name, namespace)
        except ObjectNotFound:
            return None

    async def bind(
        self,
        namespace: str,
        pod: str,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
    ) -> None:
        """Post the Binding with its annotations."""
        await self._client.bind(namespace, pod, uid, node, annotations, resource_version=resource_version)

    async def nudge(self, namespace: str, pod: str, uid: str, value: str) -> Pod | None:
        """Set the nudge annotation; the UID in the patch protects a new pod of the same name.

        A conflict means either such a new pod, or too many concurrent writers. Only the first means
        that the pod no longer exists.
        """
        meta = {"uid": uid, "annotations": {NUDGE: value}}
        try:
            return await self._client.patch(WATCHED_PODS, pod, patch.merge({"metadata": meta}), namespace)
        except ObjectNotFound:
            return None
        except Conflict:
            now = await self.read_pod(namespace, pod)
            if now is None or now.metadata.uid != uid:
                return None
            raise

    async def remove_gate(self, pod: Pod, gate: str) -> Pod | None:
        """Remove the gate by its index, after test operations, so that a second try does nothing."""
        meta, names = pod.metadata, [each.name for each in pod.spec.scheduling_gates]
        if gate not in names:
            return None
        path = f"/spec/schedulingGates/{names.index(gate)}"
        unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version}
        steps = [
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": f"{path}/name", "value": gate},
            {"op": "remove", "path": path},
        ]
        with suppress(ObjectNotFound, Conflict, Invalid):
            return await self._client.patch(
                WATCHED_PODS, meta.name, patch.json([unchanged, *steps]), meta.namespace
            )
        with suppress(ObjectNotFound, Conflict, Invalid):
            await self._client.patch(WATCHED_PODS, meta.name, patch.json(steps), meta.namespace)
        return None

    async def evict(self, namespace: str, pod: str, uid: str, grace: float | None = None) -> None:
        """Evict the pod with the eviction API, which respects disruption budgets."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = int(grace)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": options,
        }
        try:
            await self._client.write_json("POST", PODS.path(namespace, pod, "eviction"), body)
        except (ObjectNotFound, Conflict):
            return

    async def read_claim(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Return the current state of a ResourceClaim."""
        meta = claim.metadata
        try:
            now = await self._client.get(RESOURCE_CLAIMS, meta.name, meta.namespace)
        except ObjectNotFound:
            return None
        return now if now.metadata.uid == meta.uid else None

    async def write_claim(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        """Patch the status of a ResourceClaim; its version in the patch makes it a compare-and-set."""
        meta = claim.metadata
        version = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": version, "status": status}
        try:
            return await self._client.patch(
                RESOURCE_CLAIMS, meta.name, patch.merge(body), meta.namespace, subresource="status"
            )
        except ObjectNotFound as error:
            raise Conflict(str(error), error.status) from error

    async def touch_claim(self, claim: ResourceClaim, value: str) -> ResourceClaim | None:
        """Set the nudge annotation of a ResourceClaim; the UID in the patch protects a new claim of the same name."""
        meta = {"uid": claim.metadata.uid, "annotations": {NUDGE: value}}
        where = claim.metadata.namespace
        try:
            return await self._client.patch(
                RESOURCE_CLAIMS, claim.metadata.name, patch.merge({"metadata": meta}), where
            )
        except ObjectNotFound:
            return None
        except Conflict:
            return await self.read_claim(claim)

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str]) -> Pod | None:
        """Set annotations of a pod; the UID in the patch protects a new pod of the same name."""
        meta = {"uid": pod.metadata.uid, "annotations": dict(annotations)}
        try:
            return await self._client.patch(
                WATCHED_PODS, pod.metadata.name, patch.merge({"metadata": meta}), pod.metadata.namespace
            )
        except (ObjectNotFound, Conflict):
            return None

    async def write_status(self, namespace: str, claim: str, status: Mapping[str, Any]) -> None:
        """Patch the status of a claim; ignore a deleted claim."""
        try:
            await self._client.patch(
                GPU_CLAIMS, claim, patch.merge({"status": status}), namespace, subresource="status"
            )
        except ObjectNotFound:
            return

    async def write_queue_status(self, queue: str, status: Mapping[str, Any]) -> None:
        """Patch the status of a GpuQueue; ignore a deleted one."""
        with suppress(ObjectNotFound):
            await self._client.patch(GPU_QUEUES, queue, patch.merge({"status": status}), subresource="status")

    async def record_event(
        self, regarding: ObjectReference, reason: str, note: str, type: Literal["Normal", "Warning"]
    ) -> None:
        """Record an event."""
        await self._events.record(regarding, reason, note, type=type)
