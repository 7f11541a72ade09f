"""Turn functions that make calls into methods that send them, for the sync and the async client."""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gpufleet.client.call import Call, Paged

T = TypeVar("T")
P = ParamSpec("P")


class Sender(Protocol):
    """Sends calls and blocks."""

    def get(self, call: Call[T]) -> T:
        """Send a call and return its data."""

    def iterate(self, call: Paged[T]) -> Iterator[T]:
        """Yield the rows of all pages."""


class AsyncSender(Protocol):
    """Sends calls in an event loop."""

    async def get(self, call: Call[T]) -> T:
        """Send a call and return its data."""

    def iterate(self, call: Paged[T]) -> AsyncIterator[T]:
        """Yield the rows of all pages."""


def one(make: Callable[P, Call[T]]) -> Callable[Concatenate[Sender, P], T]:
    """Return a method that sends the call."""

    @functools.wraps(make)
    def method(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.get(make(*args, **kwargs))

    return method


def rows(make: Callable[P, Paged[T]]) -> Callable[Concatenate[Sender, P], Iterator[T]]:
    """Return a method that iterates over all pages."""

    @functools.wraps(make)
    def method(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.iterate(make(*args, **kwargs))

    return method


def async_one(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncSender, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that sends the call."""

    @functools.wraps(make)
    async def method(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.get(make(*args, **kwargs))

    return method


def async_rows(make: Callable[P, Paged[T]]) -> Callable[Concatenate[AsyncSender, P], AsyncIterator[T]]:
    """Return a method that iterates over all pages with `async for`."""

    @functools.wraps(make)
    def method(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.iterate(make(*args, **kwargs))

    return method
