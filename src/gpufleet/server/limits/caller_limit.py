"""Limit the concurrent requests of one caller, so that one can't use up the limit of all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.exceptions import HTTPException


class Slot(Protocol):
    """The place of one request among those of its caller."""

    def __call__(self) -> None:
        """Free the place; a second call does nothing."""


class CallerLimit:
    """Counts the requests in progress by caller."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[str, int] = {}

    @contextmanager
    def slot(self, caller: str) -> Iterator[Slot]:
        """Count a request of `caller` within the block; raise HTTPException if it has too many."""
        running = self._running.get(caller, 0)
        if running >= self._limit:
            raise HTTPException(
                429,
                f"this caller has {running} requests in progress (server.max_requests_per_caller)",
                {"retry-after": "1"},
            )
        self._running[caller] = running + 1
        is_held = True

        def free() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._running[caller] -= 1
                if not self._running[caller]:
                    del self._running[caller]

        try:
            yield free
        finally:
            free()
