"""The server under test and a minimal HTTP client for it."""

import asyncio
import json
import os
import shutil
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
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Server:
    """The URL and administrator credentials of the server under test."""

    url: str
    kubeconfig: Path
    kubectl: Path | None
    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class Response:
    """The response to one request."""

    status: int
    body: Json
    headers: Mapping[str, str]
    warnings: list[str]

    def ok(self, status: int = 200) -> Json:
        """Return the body after checking the status code."""
        assert self.status == status, (self.status, self.body)
        return self.body

    def refused(self, status: int, *words: str) -> Json:
        """Return the `Status` after checking its code and that its message contains `words`."""
        assert self.status == status, (self.status, self.body)
        assert self.body["kind"] == "Status"
        assert self.body["code"] == status
        for word in words:
            assert word in self.body["message"], self.body["message"]
        return self.body


class Api:
    """A client for one namespace of the server under test."""

    def __init__(self, server: Server, namespace: str, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.namespace = namespace
        self._session = session

    def in_namespace(self, namespace: str) -> "Api":
        """Return a client for another namespace."""
        return Api(self.server, namespace, self._session)

    def path(
        self,
        plural: str,
        name: str = "",
        subresource: str = "",
        *,
        version: str = "v1",
        cluster: bool = False,
    ) -> str:
        """Return the path of a resource, in the test's namespace or cluster-scoped."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        prefix = "" if cluster else f"/namespaces/{self.namespace}"
        return "/".join(part for part in (f"{root}{prefix}/{plural}", name, subresource) if part)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Response:
        """Send one request."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {**self.server.headers, "Accept": accept, "User-Agent": "contract/1"}
        if data is not None:
            headers["Content-Type"] = content
        async with self._session.request(
            method, self.server.url + path, data=data, params=query, headers=headers, ssl=self.server.tls
        ) as response:
            text = await response.read()
            found = json.loads(text) if text[:1] in (b"{", b"[") else {"text": text.decode()}
            return Response(response.status, found, response.headers, response.headers.getall("Warning", []))

    async def get(self, path: str, **query: str) -> Response:
        """Send a GET request."""
        return await self.call("GET", path, **query)

    async def post(self, path: str, body: object, **query: str) -> Response:
        """Send a POST request."""
        return await self.call("POST", path, body, **query)

    async def put(self, path: str, body: object, **query: str) -> Response:
        """Send a PUT request."""
        return await self.call("PUT", path, body, **query)

    async def patch(self, path: str, body: object, content: str = MERGE, **query: str) -> Response:
        """Send a PATCH request, a merge patch by default."""
        return await self.call("PATCH", path, body, content, **query)

    async def apply(self, path: str, body: object, manager: str, **query: str) -> Response:
        """Apply an object on the server side."""
        return await self.patch(path, body, APPLY, fieldManager=manager, **query)

    async def delete(self, path: str, body: object = None, **query: str) -> Response:
        """Send a DELETE request."""
        return await self.call("DELETE", path, body, **query)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator["WatchEvents"]:
        """Open a watch and yield its events."""
        accept = query.pop("accept", "application/json")
        headers = {**self.server.headers, "Accept": accept}
        async with self._session.get(
            self.server.url + path, params={"watch": "true", **query}, headers=headers, ssl=self.server.tls
        ) as response:
            assert response.status == 200, await response.text()
            yield WatchEvents(response)

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `condition` returns True; `what` describes it in the failure message."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await condition():  # noqa: ASYNC110  the server under test has no event to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"timed out after {TIMEOUT_SECONDS:.0f} s waiting until {what}")

    async def until_gone(self, path: str) -> None:
        """Wait until a path answers 404."""

        async def removed() -> bool:
            return (await self.get(path)).status == 404

        await self.until(f"{path} is removed", removed)

    async def kubectl(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
        """Run kubectl in the namespace and return its output."""
        code, out, errors = await self.kubectl_result(*arguments, stdin=stdin, env=env)
        assert code == 0, f"kubectl {' '.join(arguments)}: {errors}{out}"
        return out

    async def kubectl_result(
        self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Run kubectl and return its exit code, output and errors."""
        process = await self.kubectl_process(*arguments, env=env)
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            out, errors = await process.communicate(stdin.encode())
        return process.returncode or 0, out.decode(), errors.decode()

    async def kubectl_process(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        """Start kubectl."""
        if self.server.kubectl is None:
            pytest.skip("no kubectl: set KUBEBUILDER_ASSETS or put it on PATH")
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


class WatchEvents:
    """The events of an open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._answer = response

    async def next(self) -> tuple[str, Json]:
        """Return the type and object of the next event, bookmarks included."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            line = await self._answer.content.readline()
        assert line, "the watch ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def end(self) -> bool:
        """Return whether the stream has ended."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._answer.content.readline() == b""


def find_kubectl() -> Path | None:
    """Return the kubectl in KUBEBUILDER_ASSETS or on PATH, or None."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        kubectl = Path(assets) / "kubectl"
        if kubectl.is_file():
            return kubectl
    found = shutil.which("kubectl")
    return Path(found) if found else None
