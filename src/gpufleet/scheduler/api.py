"""The calls that the scheduler makes to the Kubernetes API, as one small Protocol.

`api.py` makes them with the real client; the tests have a model that fails, delays and loses
them one by one. Reads return None for what is not there. Errors are those of
`gpufleet.kubernetes.client.errors`: a refusal means that nothing was done, `Unreachable` too; after any
other `KubernetesUnavailable` a write may or may not have been done.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from gpufleet.kubernetes.objects import Lease, ObjectReference, Pod


class Api(Protocol):
    """What the scheduler asks of the API server."""

    async def read_lease(self, name: str) -> Lease | None:
        """The lease as it is now."""

    async def create_lease(self, lease: Lease) -> Lease:
        """Create it; AlreadyExists if somebody was first."""

    async def replace_lease(self, lease: Lease) -> Lease:
        """Write it back; Conflict if it has changed, NotFound if it is gone."""

    async def delete_lease(self, name: str, uid: str, resource_version: str) -> None:
        """Delete exactly this state of it; Conflict if it has changed, NotFound if it is gone."""

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """The pod as it is now."""

    async def bind(
        self,
        namespace: str,
        pod: str,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
    ) -> None:
        """Place the pod if it is still in this state; Conflict if not."""

    async def nudge(self, namespace: str, pod: str, uid: str, mark: str) -> Pod | None:
        """Write `mark` into the pod's nudge annotation and return the pod; None if that pod is gone."""

    async def open_gate(self, pod: Pod, gate: str) -> None:
        """Remove a schedulingGate, if the pod still has it."""

    async def evict(self, namespace: str, pod: str, uid: str) -> None:
        """Ask a pod to leave, gracefully."""

    async def write_status(self, namespace: str, claim: str, status: Mapping[str, Any]) -> None:
        """Replace the status of a claim."""

    async def say(
        self, about: ObjectReference, reason: str, note: str, type: Literal["Normal", "Warning"]
    ) -> None:
        """Write an event; never fails."""
