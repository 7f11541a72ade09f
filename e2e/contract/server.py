"""A server under test, and the plainest of clients for it."""

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PATIENCE = 30.0


@dataclass(frozen=True)
class Server:
    """Where the server is and how to be its administrator."""

    url: str
    kubeconfig: Path
    kubectl: Path | None
    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: Json
    headers: Mapping[str, str]
    warnings: list[str]

    def ok(self, status: int = 200) -> Json:
        """The body, after a look at the status."""
        assert self.status == status, (self.status, self.body)
        return self.body

    def refused(self, status: int, *words: str) -> Json:
        """The `Status` of a refusal, whose message has these words."""
        assert self.status == status, (self.status, self.body)
        assert self.body["kind"] == "Status"
        assert self.body["code"] == status
        for word in words:
            assert word in self.body["message"], self.body["message"]
        return self.body


class Api:
    """Requests to one namespace of a server."""

    def __init__(self, server: Server, namespace: str, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.namespace = namespace
        self._session = session

    def elsewhere(self, namespace: str) -> "Api":
        """The same client in another namespace."""
        return Api(self.server, namespace, self._session)

    def path(
        self, plural: str, name: str = "", below: str = "", *, version: str = "v1", cluster: bool = False
    ) -> str:
        """The path of a resource in the test's namespace (or of the cluster)."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        space = "" if cluster else f"/namespaces/{self.namespace}"
        return "/".join(part for part in (f"{root}{space}/{plural}", name, below) if part)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Answer:
        """One request."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {**self.server.headers, "Accept": accept, "User-Agent": "contract/1"}
        if data is not None:
            headers["Content-Type"] = content
        async with self._session.request(
            method, self.server.url + path, data=data, params=query, headers=headers, ssl=self.server.tls
        ) as answer:
            text = await answer.read()
            found = json.loads(text) if text[:1] in (b"{", b"[") else {"text": text.decode()}
            return Answer(answer.status, found, answer.headers, answer.headers.getall("Warning", []))

    async def get(self, path: str, **query: str) -> Answer:
        """GET."""
        return await self.call("GET", path, **query)

    async def post(self, path: str, body: object, **query: str) -> Answer:
        """POST."""
        return await self.call("POST", path, body, **query)

    async def put(self, path: str, body: object, **query: str) -> Answer:
        """PUT."""
        return await self.call("PUT", path, body, **query)

    async def patch(self, path: str, body: object, content: str = MERGE, **query: str) -> Answer:
        """PATCH."""
        return await self.call("PATCH", path, body, content, **query)

    async def apply(self, path: str, body: object, manager: str, **query: str) -> Answer:
        """Server-side apply."""
        return await self.patch(path, body, APPLY, fieldManager=manager, **query)

    async def delete(self, path: str, body: object = None, **query: str) -> Answer:
        """DELETE."""
        return await self.call("DELETE", path, body, **query)

    @asynccontextmanager
    async def watching(self, path: str, **query: str) -> AsyncIterator["Events"]:
        """The events of a watch."""
        accept = query.pop("accept", "application/json")
        headers = {**self.server.headers, "Accept": accept}
        async with self._session.get(
            self.server.url + path, params={"watch": "true", **query}, headers=headers, ssl=self.server.tls
        ) as answer:
            assert answer.status == 200, await answer.text()
            yield Events(answer)

    async def until(self, what: str, ask: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not await ask():  # noqa: ASYNC110  the server under test has no event to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"after {PATIENCE:.0f} s still not: {what}")

    async def until_gone(self, path: str) -> None:
        """Wait until there is a 404."""

        async def gone() -> bool:
            return (await self.get(path)).status == 404

        await self.until(f"{path} is gone", gone)

    async def kubectl(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
        """Run the real kubectl in the namespace; what it printed."""
        code, out, errors = await self.kubectl_result(*arguments, stdin=stdin, env=env)
        assert code == 0, f"kubectl {' '.join(arguments)}: {errors}{out}"
        return out

    async def kubectl_result(
        self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Run the real kubectl: exit code, output, errors."""
        process = await self.kubectl_process(*arguments, env=env)
        async with asyncio.timeout(2 * PATIENCE):
            out, errors = await process.communicate(stdin.encode())
        return process.returncode or 0, out.decode(), errors.decode()

    async def kubectl_process(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        """Start the real kubectl."""
        if self.server.kubectl is None:
            pytest.skip("no kubectl on this machine (KUBEBUILDER_ASSETS, PATH or the cache of make e2e)")
        fixed = [
            "--kubeconfig",
            str(self.server.kubeconfig),
            "--namespace",
            self.namespace,
            "--cache-dir",
            str(self.server.kubeconfig.parent / "cache"),
        ]
        return await asyncio.create_subprocess_exec(
            self.server.kubectl,
            *fixed,
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "KUBECTL_KUBERC": "false", **(env or {})},
        )


class Events:
    """The lines of a watch, one at a time."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> tuple[str, Json]:
        """The next event, bookmarks included."""
        async with asyncio.timeout(PATIENCE):
            line = await self._answer.content.readline()
        assert line, "the watch ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def end(self) -> bool:
        """Whether nothing follows."""
        async with asyncio.timeout(PATIENCE):
            return await self._answer.content.readline() == b""
