"""Cache the answers of Kubernetes TokenReviews.

Answers are cached by the token's hash, never by the token. Rejected tokens are cached too, but
shorter: a token that was just created becomes valid soon, and a wrong one that is tried repeatedly
must not cause a request to the API server each time.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.server.auth.caller import Caller, Role

_MAX_CACHED = 4096
_MAX_CONCURRENT = 8
_REJECTED_SECONDS = 10.0


class TokenReviewer(Protocol):
    """Reviews tokens: `gpufleet.kubernetes.token_review.TokenReviews`, or a fake in tests."""

    async def review(self, token: str) -> TokenOwner | None:
        """Return the owner of a token, None if it is not valid; raise Unavailable if unknown."""


class ReviewedTokens:
    """Callers by token, with the role that the settings give to their user or groups."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        operators: Sequence[str],
        cache_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reviewer = reviewer
        self._operators = frozenset(operators)
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._cache: dict[bytes, tuple[float, Caller | None]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    def cached(self, token: str) -> tuple[bool, Caller | None]:
        """Return whether the cache has an answer for `token`, and which."""
        entry = self._cache.get(_key(token))
        if entry is None or entry[0] <= self._clock():
            return False, None
        return True, entry[1]

    async def caller(self, token: str) -> Caller | None:
        """Return the owner of `token`; raise Unavailable if Kubernetes does not answer."""
        async with self._slots:
            found, caller = self.cached(token)
            if found:
                return caller
            reviewed = await self._reviewer.review(token)
        caller = self._caller(reviewed) if reviewed is not None else None
        seconds = self._cache_seconds if caller else min(self._cache_seconds, _REJECTED_SECONDS)
        self._cache.pop(_key(token), None)
        self._cache[_key(token)] = (self._clock() + seconds, caller)
        while len(self._cache) > _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        return caller

    def _caller(self, reviewed: TokenOwner) -> Caller:
        names = {reviewed.user, *reviewed.groups}
        role: Role = "operator" if names & self._operators else "viewer"
        return Caller(reviewed.user, role, pod_uid=reviewed.pod_uid)


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
