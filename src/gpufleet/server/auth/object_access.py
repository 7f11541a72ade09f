"""Decide whether a caller may read an object of Kubernetes itself: its manifest, events or logs.

gpufleet's own roles do not say that: a viewer of the fleet may not be allowed to read the logs of a pod. So the
API server decides by SubjectAccessReview, for callers that it has authenticated. It does not know the users of
a tokens file or of an identity provider. A server without login shows what its own identity may read.
"""

from collections.abc import Mapping
from typing import Protocol

from starlette.exceptions import HTTPException

from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.server.auth.caller import Caller


class ObjectReviewer(Protocol):
    """Reviews access: `gpufleet.kubernetes.access_review.AccessReviews`, or a fake in tests."""

    async def allowed_on(
        self, owner: TokenOwner, verb: str, group: str, resource: str, namespace: str
    ) -> bool:
        """Return whether `owner` may use `verb` on a resource of a namespace; raise Unavailable if unknown."""


class ObjectAccess:
    """Reviews the access of callers, by the cluster whose API server authenticates them."""

    def __init__(self, reviewers: Mapping[str, ObjectReviewer]) -> None:
        self._reviewers = reviewers

    async def check(
        self, caller: Caller | None, cluster: str, verb: str, group: str, resource: str, namespace: str
    ) -> None:
        """Raise HTTPException unless Kubernetes lets `caller` use `verb` on `resource` (such as pods/log)."""
        if caller is None:
            return
        reviewer = self._reviewers.get(cluster)
        if caller.owner is None or reviewer is None:
            raise HTTPException(
                403,
                f"Kubernetes decides who may read {resource}, and it did not authenticate {caller.name}: "
                f"log in with a Kubernetes token of cluster {cluster} (auth.token_review)",
            )
        if not await reviewer.allowed_on(caller.owner, verb, group, resource, namespace):
            raise HTTPException(
                403, f"{caller.name} may not {verb} {resource} in namespace {namespace}, says Kubernetes"
            )
