"""The calls that a kubelet makes, and no more, over one pool of connections.

Not gpufleet's own client: what proves that client right must not share its mistakes. A request that fails because
the server is away is tried again until `patience` is over, since a kubelet outlives the server's restarts too.
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
_PATIENCE_S = 60
_AWAY = (aiohttp.ClientError, ConnectionError, TimeoutError)
_TRY_LATER = {429, 500, 502, 503, 504}


class Gone(Exception):
    """The server no longer has the history that a watch asked for: list again."""


class Api:
    """Speaks to the API server as one identity, in one event loop."""

    def __init__(self, identity: Identity) -> None:
        self._session = aiohttp.ClientSession(
            identity.url,
            headers=identity.headers(),
            connector=aiohttp.TCPConnector(ssl=identity.ssl_context(), limit=_CONNECTIONS + 4),
            timeout=aiohttp.ClientTimeout(total=30),
        )
        self._turns = asyncio.Semaphore(_CONNECTIONS)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One request, tried again while the server is away; `Refused` if it says no."""
        wait = 0.1
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                return await self._once(method, path, body, kind)
            except (*_AWAY, RequestFailed) as error:
                final = isinstance(error, RequestFailed) and error.status not in _TRY_LATER
                if final or asyncio.get_running_loop().time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, 2.0)

    async def list(self, path: str, query: str) -> tuple[list[Any], str]:
        """All objects of a collection, page by page, and the resource version to watch from."""
        items: list[Any] = []
        token = ""
        while True:
            page = await self.call("GET", f"{path}?{query}&limit={_PAGE}&continue={token}")
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return items, page["metadata"]["resourceVersion"]

    async def watch(self, path: str, query: str, version: str) -> AsyncIterator[tuple[str, Any]]:
        """What changes after `version`, until the server ends the watch; `Gone` if that is too long ago."""
        address = f"{path}?{query}&watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        quiet = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with self._session.get(address, timeout=quiet) as answer:
            if answer.status == 410:
                raise Gone
            answer.raise_for_status()
            async for line in _lines(answer.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Gone(event["object"].get("message"))
                yield event["type"], event["object"]

    async def _once(self, method: str, path: str, body: Any, kind: str) -> Any:
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind} if payload else {}
        async with self._turns, self._session.request(method, path, data=payload, headers=headers) as answer:
            text = await answer.text()
        if answer.status >= 400:
            raise RequestFailed(method, path, answer.status, text)
        return json.loads(text)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length; aiohttp's own reader refuses those over 64 KiB."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
