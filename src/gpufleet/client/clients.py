"""The sync and the async client: the same calls, sent with httpx."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self, TypeVar, Unpack

import httpx

from gpufleet.client.call import PAGE_SIZE, Call, Paged, with_cluster
from gpufleet.client.exchange import Outcome
from gpufleet.client.methods import AsyncMethods, Methods
from gpufleet.client.options import ClientOptions, Options

T = TypeVar("T")


class Client(Methods):
    """A client that blocks; close it, or use it in a `with` statement."""

    def __init__(self, server: str = "", **options: Unpack[ClientOptions]) -> None:
        self._options = Options(server, **options)
        self._http = httpx.Client(**self._options.transport_options())

    def get(self, call: Call[T]) -> T:
        """Send a call and return its data."""
        call = with_cluster(call, self._options.cluster)
        return self._options.decoded(call, self._send(call.url, call.parameters).content)

    def iterate(self, call: Paged[T]) -> Iterator[T]:
        """Yield the rows of all pages; rows that move between pages meanwhile may come twice or not at all."""
        for number in itertools.count(1):
            page = self.get(call.page(number))
            yield from page.data
            if not page.data or number * PAGE_SIZE >= page.total:
                return

    def get_text(self, call: Call[T], accept: str) -> str:
        """Send a call and return the body in another media type, such as text/csv."""
        call = with_cluster(call, self._options.cluster)
        return self._send(call.url, call.parameters, {"Accept": accept}).text

    def save(self, call: Call[T], accept: str, file: Path) -> None:
        """Send a call and write the body in another media type to a file, however large it is."""
        call = with_cluster(call, self._options.cluster)
        response = self._send(call.url, call.parameters, {"Accept": accept}, stream=True)
        try:
            with file.open("wb") as target:
                for part in response.iter_bytes():
                    target.write(part)
        except httpx.TransportError as error:
            raise self._options.interrupted(error) from error
        finally:
            response.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(
        self,
        url: str,
        query: dict[str, str],
        headers: dict[str, str] | None = None,
        *,
        stream: bool = False,
    ) -> httpx.Response:
        """Return the successful response; with `stream` its body is still to be read."""
        attempts = self._options.exchange()
        pause = next(attempts)
        while True:
            time.sleep(pause)
            outcome: Outcome
            try:
                request = self._http.build_request(
                    "GET", self._options.server + url, params=query, headers=headers
                )
                outcome = self._http.send(request, stream=stream)
                if not outcome.is_success:
                    outcome.read()
            except httpx.TransportError as error:
                outcome = error
            try:
                pause = attempts.send(outcome)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response


class AsyncClient(AsyncMethods):
    """A client for asyncio; close it, or use it in an `async with` statement."""

    def __init__(self, server: str = "", **options: Unpack[ClientOptions]) -> None:
        self._options = Options(server, **options)
        self._http = httpx.AsyncClient(**self._options.transport_options())

    async def get(self, call: Call[T]) -> T:
        """Send a call and return its data."""
        call = with_cluster(call, self._options.cluster)
        return self._options.decoded(call, (await self._send(call.url, call.parameters)).content)

    async def iterate(self, call: Paged[T]) -> AsyncIterator[T]:
        """Yield the rows of all pages; rows that move between pages meanwhile may come twice or not at all."""
        for number in itertools.count(1):
            page = await self.get(call.page(number))
            for row in page.data:
                yield row
            if not page.data or number * PAGE_SIZE >= page.total:
                return

    async def get_text(self, call: Call[T], accept: str) -> str:
        """Send a call and return the body in another media type, such as text/csv."""
        call = with_cluster(call, self._options.cluster)
        return (await self._send(call.url, call.parameters, {"Accept": accept})).text

    async def get_scoped(self, call: Call[T]) -> tuple[T, str | None]:
        """Send a call; return its data, and the namespaces that they are limited to, if any."""
        call = with_cluster(call, self._options.cluster)
        response = await self._send(call.url, call.parameters)
        return self._options.decoded(call, response.content), response.headers.get("x-gpufleet-scope")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _send(
        self, url: str, query: dict[str, str], headers: dict[str, str] | None = None
    ) -> httpx.Response:
        attempts = self._options.exchange()
        pause = next(attempts)
        while True:
            await asyncio.sleep(pause)
            outcome: Outcome
            try:
                outcome = await self._http.get(self._options.server + url, params=query, headers=headers)
            except httpx.TransportError as error:
                outcome = error
            try:
                pause = attempts.send(outcome)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response
