"""Tokens that Kubernetes knows: ask its TokenReview, and trust the answer for a while.

Answers are kept by the token's hash, never by the token. Refusals are kept too, but shorter: a
token that was just created becomes valid soon after, and a wrong one tried again and again
must not become a question to the API server each time.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence

from gpufleet.server.auth.caller import Caller, Identity, Role, TokenReviewer

_KEPT = 4096
_AT_ONCE = 8
_REFUSAL_SECONDS = 10.0


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
        self._known: dict[bytes, tuple[float, Caller | None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    def known(self, token: str) -> tuple[bool, Caller | None]:
        """Whether there is an answer already, and which."""
        kept = self._known.get(_key(token))
        if kept is None or kept[0] <= self._clock():
            return False, None
        return True, kept[1]

    async def caller(self, token: str) -> Caller | None:
        """Whom `token` belongs to; raises Unavailable if Kubernetes does not say."""
        async with self._places:
            answered, caller = self.known(token)
            if answered:
                return caller
            identity = await self._reviewer.review(token)
        caller = self._role(identity) if identity is not None else None
        seconds = self._cache_seconds if caller else min(self._cache_seconds, _REFUSAL_SECONDS)
        self._known.pop(_key(token), None)
        self._known[_key(token)] = (self._clock() + seconds, caller)
        while len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return caller

    def _role(self, identity: Identity) -> Caller:
        names = {identity.user, *identity.groups}
        role: Role = "operator" if names & self._operators else "viewer"
        return Caller(identity.user, role, pod_uid=identity.pod_uid)


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
