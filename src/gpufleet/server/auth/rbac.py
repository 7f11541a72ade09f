"""The permissions of Kubernetes users: the settings first, then RBAC by SubjectAccessReview.

The reviews go from the largest permission to the smallest. Namespaces are reviewed one by one, so only for
callers without a permission for all of them, and only the namespaces that have or had GPU workloads.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from gpufleet.kubernetes.access_review import Verb
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.runtime.logs import get_logger
from gpufleet.server.auth.permissions import OPERATOR, VIEWER, GroupPermissions, Permission

MAX_NAMESPACES = 200
"""Namespaces reviewed for one token within `auth.review_cache`."""
_MAX_CONCURRENT = 16
_SERVICE_ACCOUNT = "system:serviceaccount:"
_log = get_logger("auth")


class AccessReviewer(Protocol):
    """Reviews access: `gpufleet.kubernetes.access_review.AccessReviews`, or a fake in tests."""

    async def allowed(self, owner: TokenOwner, verb: Verb, namespace: str = "") -> bool:
        """Return whether `owner` may use `verb` on the fleet; raise Unavailable if unknown."""


class KubernetesPermissions:
    """Finds the permission of the owner of a token."""

    def __init__(
        self,
        reviewer: AccessReviewer,
        groups: GroupPermissions,
        operators: Iterable[str],
        namespaces: Callable[[], Iterable[str]],
        viewer_role: str = "gpufleet-viewer",
    ) -> None:
        """`operators` are names of users and groups; `namespaces` returns those to review, in order."""
        self._reviewer = reviewer
        self._groups = groups
        self._operators = frozenset(operators)
        self._namespaces = namespaces
        self._viewer_role = viewer_role
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def of(self, owner: TokenOwner) -> Permission | None:
        """Return the permission of `owner`, None without any; raise Unavailable if Kubernetes does not answer."""
        configured = self._groups.of(owner.groups)
        if not self._operators.isdisjoint((owner.user, *owner.groups)) or configured == OPERATOR:
            return OPERATOR
        if await self._reviewer.allowed(owner, "update"):
            return OPERATOR
        if configured == VIEWER or await self._reviewer.allowed(owner, "get"):
            return VIEWER
        visible = await self._reviewed_namespaces(owner)
        if configured is not None and configured.namespaces is not None:
            visible |= configured.namespaces
        return Permission("viewer", visible) if visible else None

    def advice(self, owner: TokenOwner) -> str:
        """Return a sentence that says how an administrator gives `owner` a permission."""
        subject = f"--user={owner.user}"
        if owner.user.startswith(_SERVICE_ACCOUNT):
            subject = f"--serviceaccount={owner.user.removeprefix(_SERVICE_ACCOUNT)}"
        return (
            f"{owner.user} has no permission to read here; an administrator grants it with `kubectl create "
            f"clusterrolebinding NAME --clusterrole={self._viewer_role} {subject}`, or for one namespace with "
            f"`kubectl create rolebinding NAME -n NAMESPACE --clusterrole={self._viewer_role} {subject}`"
        )

    async def _reviewed_namespaces(self, owner: TokenOwner) -> frozenset[str]:
        """Return the namespaces in which RBAC lets `owner` read."""
        candidates = dict.fromkeys(self._namespaces())
        if owner.user.startswith(_SERVICE_ACCOUNT):
            own = owner.user.removeprefix(_SERVICE_ACCOUNT).partition(":")[0]
            candidates = {own: None, **candidates}
        if len(candidates) > MAX_NAMESPACES:
            _log.warning("namespaces_not_reviewed", namespaces=len(candidates) - MAX_NAMESPACES)

        async def reviewed(namespace: str) -> str:
            async with self._slots:
                return namespace if await self._reviewer.allowed(owner, "get", namespace) else ""

        found = await asyncio.gather(*map(reviewed, islice(candidates, MAX_NAMESPACES)))
        return frozenset(filter(None, found))
