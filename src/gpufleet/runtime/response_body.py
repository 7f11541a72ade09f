"""Read the bodies of responses up to a limit.

`response.read()` has no limit, and `response.content.read(n)` returns what has arrived: on a network that is a part of
the body. A `BodyReader` joins all parts. It counts them as aiohttp yields them, so a compressed body is limited by what
it decompresses to.
"""

from collections.abc import Callable

import aiohttp

from gpufleet.errors import GpufleetError
from gpufleet.runtime.urls import without_credentials


class BodyReader:
    """Reads bodies; those that it reads at the same time have at most `limit` bytes together."""

    def __init__(self, limit: int, error: Callable[[str], GpufleetError]) -> None:
        """`error` makes the error for a larger body."""
        self._limit = limit
        self._error = error
        self._reading = 0

    async def read(self, response: aiohttp.ClientResponse, limit: int | None = None) -> bytearray:
        """Return the whole body; close the connection and raise the error if it is too large."""
        limit = self._limit if limit is None else limit
        body = bytearray()
        try:
            async for part in response.content.iter_any():
                body += part
                self._reading += len(part)
                if len(body) > limit or self._reading > self._limit:
                    response.close()
                    raise self.too_large(response, limit)
        finally:
            self._reading -= len(body)
        return body

    def too_large(self, response: aiohttp.ClientResponse, limit: int | None = None) -> GpufleetError:
        """Return the error for a body that exceeds `limit`."""
        size = self._limit if limit is None else limit
        return self._error(f"the response of {without_credentials(str(response.url))} exceeds {size} bytes")
