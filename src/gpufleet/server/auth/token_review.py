"""Cache the answers of Kubernetes about tokens: the owner (TokenReview), and its permission.

Answers are cached by the token's hash, never by the token. Refusals are cached too, but shorter: a token or a
binding that was just created becomes valid soon, and a wrong token that is tried repeatedly must not cause a
request to the API server each time.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.server.auth.caller import Caller, Role
from gpufleet.server.auth.permissions import LoginRefused, Permission

_MAX_CACHED = 4096
_MAX_CONCURRENT = 8
_REFUSED_SECONDS = 10.0


class TokenReviewer(Protocol):
    """Reviews tokens: `gpufleet.kubernetes.token_review.TokenReviews`, or a fake in tests."""

    async def review(self, token: str) -> TokenOwner | None:
        """Return the owner of a token, None if it is not valid; raise Unavailable if unknown."""


class OwnerPermissions(Protocol):
    """Finds permissions: `gpufleet.server.auth.rbac.KubernetesPermissions`, or a fake in tests."""

    async def of(self, owner: TokenOwner) -> Permission | None:
        """Return the permission of `owner`, None without any; raise Unavailable if unknown."""

    async def is_operator(self, owner: TokenOwner) -> bool:
        """Return whether `owner` is an operator; raise Unavailable if unknown."""

    def advice(self, owner: TokenOwner) -> str:
        """Return a sentence that says how `owner` gets a permission."""


@dataclass
class _Reviewed:
    """What is known about a token."""

    until: float
    owner: TokenOwner | None
    permission: Permission | None = None
    permission_until: float = float("-inf")
    is_operator: bool = False
    is_operator_until: float = float("-inf")


class ReviewedTokens:
    """Callers by token."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        permissions: OwnerPermissions,
        cache_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reviewer = reviewer
        self._permissions = permissions
        self._cache_seconds = cache_seconds
        self._refused_seconds = min(cache_seconds, _REFUSED_SECONDS)
        self._clock = clock
        self._cache: dict[bytes, _Reviewed] = {}
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    def known(self, token: str) -> bool | None:
        """Return whether `token` is valid; None without a cached answer."""
        reviewed = self._cached(token)
        return None if reviewed is None else reviewed.owner is not None

    async def caller(self, token: str, *, reports_training: bool = False) -> Caller | None:
        """Return the owner of `token`, None if it is not valid.

        A pod needs no permission to report the training of its workload; an operator may report for all. Raise LoginRefused for an owner
        without a permission, Unavailable if Kubernetes does not answer.
        """
        reviewed = self._cached(token)
        if reviewed is None or not self._is_complete(reviewed, reports_training):
            # A page sends several requests at once: the first one asks Kubernetes for all of them.
            async with self._locks.setdefault(_key(token), asyncio.Lock()), self._slots:
                reviewed = self._cached(token) or await self._review(token)
                if not self._is_complete(reviewed, reports_training):
                    await self._review_permission(reviewed, reports_training)
        owner = reviewed.owner
        if owner is None:
            return None
        if reports_training and owner.pod_uid:
            role: Role = "operator" if reviewed.is_operator else "viewer"
            return Caller(owner.user, role, "kubernetes", pod_uid=owner.pod_uid, owner=owner)
        if (given := reviewed.permission) is None:
            detail = 'error="insufficient_scope"'
            raise LoginRefused(403, self._permissions.advice(owner), who=owner.user, detail=detail)
        return Caller(
            owner.user,
            given.role,
            "kubernetes",
            pod_uid=owner.pod_uid,
            namespaces=given.namespaces,
            owner=owner,
        )

    def _is_complete(self, reviewed: _Reviewed, reports_training: bool) -> bool:
        """Return whether the permission is known as far as it is needed."""
        if reviewed.owner is None:
            return True
        only_operator = reports_training and reviewed.owner.pod_uid
        return (reviewed.is_operator_until if only_operator else reviewed.permission_until) > self._clock()

    def _cached(self, token: str) -> _Reviewed | None:
        reviewed = self._cache.get(_key(token))
        return reviewed if reviewed is not None and reviewed.until > self._clock() else None

    async def _review(self, token: str) -> _Reviewed:
        owner = await self._reviewer.review(token)
        seconds = self._cache_seconds if owner else self._refused_seconds
        self._cache.pop(_key(token), None)
        reviewed = self._cache[_key(token)] = _Reviewed(self._clock() + seconds, owner)
        while len(self._cache) > _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        return reviewed

    async def _review_permission(self, reviewed: _Reviewed, reports_training: bool) -> None:
        owner = reviewed.owner
        assert owner is not None
        if reports_training and owner.pod_uid:
            # Not the whole permission: thousands of pods report, and most have none.
            reviewed.is_operator = await self._permissions.is_operator(owner)
            reviewed.is_operator_until = self._clock() + self._cache_seconds
            return
        reviewed.permission = await self._permissions.of(owner)
        seconds = self._cache_seconds if reviewed.permission else self._refused_seconds
        reviewed.permission_until = self._clock() + seconds


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
