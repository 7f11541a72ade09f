"""The interface between the scheduler and the Kubernetes API.

`kubernetes_api.py` implements it with the real client. The tests implement it with a model that
fails, delays and loses single calls. Reads return None if the object does not exist. Errors are
those of `gpufleet.kubernetes.client.errors`: after a refusal or `Unreachable` nothing was done; after
any other `KubernetesUnavailable` a write may or may not have been done.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from gpufleet.kubernetes.objects import Lease, ObjectReference, Pod
from gpufleet.kubernetes.resource_claims import ResourceClaim


class SchedulerApi(Protocol):
    """The calls that the scheduler makes."""

    async def read_lease(self, name: str) -> Lease | None:
        """Return the current lease."""

    async def create_lease(self, lease: Lease) -> Lease:
        """Create a lease; raise AlreadyExists if it exists."""

    async def replace_lease(self, lease: Lease) -> Lease:
        """Replace a lease; raise Conflict if it has changed, ObjectNotFound if it is deleted."""

    async def delete_lease(self, name: str, uid: str, resource_version: str) -> None:
        """Delete this version of a lease; raise Conflict if it has changed, ObjectNotFound if it is deleted."""

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Return the current pod."""

    async def bind(
        self,
        namespace: str,
        pod: str,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
    ) -> None:
        """Bind this version of the pod and set annotations; raise Conflict if it has changed."""

    async def nudge(self, namespace: str, pod: str, uid: str, value: str) -> Pod | None:
        """Set the pod's nudge annotation and return the pod; None if the pod no longer exists."""

    async def remove_gate(self, pod: Pod, gate: str) -> Pod | None:
        """Remove a schedulingGate if the pod still has it.

        Return the pod if this was its first change since `pod` was read, otherwise None.
        """

    async def evict(self, namespace: str, pod: str, uid: str, grace: float | None = None) -> None:
        """Evict a pod gracefully; with `grace`, it has at most so many seconds to terminate."""

    async def read_claim(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Return the current state of a ResourceClaim; None if it no longer exists."""

    async def write_claim(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        """Set fields in the status of this version of a ResourceClaim, None clears; raise Conflict if it has changed."""

    async def touch_claim(self, claim: ResourceClaim, value: str) -> ResourceClaim | None:
        """Change an annotation of a ResourceClaim and return its state; None if it no longer exists."""

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str]) -> Pod | None:
        """Set annotations of a pod and return it; None if the pod no longer exists."""

    async def write_status(self, namespace: str, claim: str, status: Mapping[str, Any]) -> None:
        """Replace the status of a claim."""

    async def write_queue_status(self, queue: str, status: Mapping[str, Any]) -> None:
        """Replace the status of a GpuQueue."""

    async def record_event(
        self, regarding: ObjectReference, reason: str, note: str, type: Literal["Normal", "Warning"]
    ) -> None:
        """Record an event; never raises."""
