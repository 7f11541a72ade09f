"""The API calls of a kubelet, over one pool of connections.

It does not use gpufleet's client, which the tests check. Requests that fail because the server is unavailable are
retried for a minute: a kubelet survives restarts of the server too.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from e2e.cluster import Identity, RequestFailed

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_CONNECTIONS = 32
_PAGE = 1000
_RETRY_FOR_S = 60
_UNAVAILABLE = (aiohttp.ClientError, ConnectionError, TimeoutError)
_RETRIABLE_STATUSES = {429, 500, 502, 503, 504}


class Gone(Exception):
    """The server no longer has the requested resource version: list again."""


class Api:
    """Calls the API server as one identity, in one event loop."""

    def __init__(self, identity: Identity) -> None:
        self._session = aiohttp.ClientSession(
            identity.url,
            headers=identity.headers(),
            connector=aiohttp.TCPConnector(ssl=identity.ssl_context(), limit=_CONNECTIONS + 4),
            timeout=aiohttp.ClientTimeout(total=30),
        )
        self._slots = asyncio.Semaphore(_CONNECTIONS)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request and retry while the server is unavailable. Raise `RequestFailed` on other errors."""
        wait = 0.1
        deadline = asyncio.get_running_loop().time() + _RETRY_FOR_S
        while True:
            try:
                return await self._once(method, path, body, kind)
            except (*_UNAVAILABLE, RequestFailed) as error:
                final = isinstance(error, RequestFailed) and error.status not in _RETRIABLE_STATUSES
                if final or asyncio.get_running_loop().time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, 2.0)

    async def list(self, path: str, query: str) -> tuple[list[Any], str]:
        """Return all objects of a collection, read in pages, and the resource version to watch from."""
        items: list[Any] = []
        token = ""
        while True:
            page = await self.call("GET", f"{path}?{query}&limit={_PAGE}&continue={token}")
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return items, page["metadata"]["resourceVersion"]

    async def watch(self, path: str, query: str, version: str) -> AsyncIterator[tuple[str, Any]]:
        """Yield changes after `version` until the server ends the watch. Raise `Gone` if it is too old."""
        address = f"{path}?{query}&watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        no_timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with self._session.get(address, timeout=no_timeout) as response:
            if response.status == 410:
                raise Gone
            response.raise_for_status()
            async for line in _lines(response.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Gone(event["object"].get("message"))
                yield event["type"], event["object"]

    async def _once(self, method: str, path: str, body: Any, kind: str) -> Any:
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind} if payload else {}
        async with (
            self._slots,
            self._session.request(method, path, data=payload, headers=headers) as response,
        ):
            text = await response.text()
        if response.status >= 400:
            raise RequestFailed(method, path, response.status, text)
        return json.loads(text)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield complete lines of any length; aiohttp's own reader refuses lines over 64 KiB."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
