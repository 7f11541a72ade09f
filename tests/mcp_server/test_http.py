"""`/mcp` on the wire: what gets in, how errors look, and that the limits of the server hold."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
from tests.mcp_server.conftest import KnownCallers
from tests.waiting import wait_until

from gpufleet.runtime.logs import configure_logs
from gpufleet.server.app import Api, create_app
from gpufleet.server.http.middleware import Limits
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.platform.mcp import MAX_BODY_BYTES

MODERN = "2026-07-28"
CALLER = {"authorization": "Bearer mine"}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


INITIALIZE = rpc(
    "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
)
OVERVIEW = rpc("tools/call", name="fleet_overview", arguments={})


class Overview:
    """A slow or broken route that a tool reads."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []
        self.cancelled = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fault: Exception | None = None

    def routes(self) -> list[Route]:
        @get("/api/clusters/overview", scope="public")
        async def overview(context: RequestContext) -> dict[str, int]:
            """Return a number when the test allows it."""
            self.contexts.append(context)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if self.fault is not None:
                raise self.fault
            return {"totalNodes": 1}

        return [overview]


@asynccontextmanager
async def opened(overview: Overview | None = None, **parts: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server with its lifespan, and open a client of it."""
    app = create_app(
        Api(**{"routes": (overview or Overview()).routes(), "gate": KnownCallers(), "mcp": True, **parts})
    )
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=HEADERS) as client,
    ):
        yield client


def error_in(answer: httpx.Response) -> tuple[int, str]:
    """Return code and message of a JSON-RPC error."""
    body = answer.json()
    assert body["jsonrpc"] == "2.0", body
    return body["error"]["code"], body["error"]["message"]


async def test_a_caller_needs_a_token_and_a_page_an_origin_that_may_call() -> None:
    expected: list[tuple[dict[str, str], int]] = [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic mine"}, 401),
        (CALLER, 200),
        ({**CALLER, "origin": "https://evil.example.com"}, 403),
        ({**CALLER, "origin": "https://tools.example.com"}, 200),
        ({**CALLER, "origin": "http://127.0.0.1"}, 200),
    ]
    async with opened(cors_origins=["https://tools.example.com"]) as http:
        for headers, status in expected:
            answer = await http.post("/mcp", json=INITIALIZE, headers=headers)
            assert answer.status_code == status, (headers, answer.text)
            if status == 401:
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert error_in(answer)[0] == -32600


async def test_without_a_login_only_local_names_and_origins_are_answered() -> None:
    expected: list[tuple[dict[str, str], int]] = [
        ({}, 200),
        ({"host": "evil.example.com"}, 421),
        ({"host": "fleet.example.com"}, 200),
        ({"origin": "https://evil.example.com"}, 403),
        ({"content-type": "text/plain"}, 415),
    ]
    async with opened(gate=None, hosts=["fleet.example.com"]) as http:
        for headers, status in expected:
            answer = await http.post("/mcp", content=json.dumps(INITIALIZE), headers=headers)
            assert answer.status_code == status, (headers, answer.text)
            if status != 200:
                assert error_in(answer)[1]


async def test_a_viewer_calls_tools_and_the_routes_see_the_caller_but_no_token() -> None:
    overview = Overview()
    async with opened(overview) as http:
        answer = await http.post("/mcp", json=OVERVIEW, headers=CALLER)
    assert answer.status_code == 200
    assert answer.json()["result"]["structuredContent"]["data"] == {"totalNodes": 1}
    (context,) = overview.contexts
    assert context.caller is not None
    assert (context.caller.name, context.caller.namespaces) == ("alice", frozenset({"mine"}))
    assert context.trace == answer.headers["x-trace-id"]
    assert b"authorization" not in context.headers


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_post_is_allowed(method: str) -> None:
    async with opened() as http:
        answer = await http.request(method, "/mcp", headers={**CALLER, "accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert error_in(answer) == (-32600, "this path allows only POST")


@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
@pytest.mark.parametrize("method", ["tools/destroy", "subscriptions/listen"])
async def test_an_unknown_method_is_an_error_of_the_protocol_and_opens_no_stream(
    version: str, method: str
) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {**CALLER, "mcp-protocol-version": version, "mcp-method": method}
    async with opened() as http:
        answer = await http.post("/mcp", json=rpc(method, _meta=meta, notifications={}), headers=headers)
    assert answer.headers["content-type"] == "application/json"
    assert error_in(answer)[0] == -32601, answer.text


async def test_bodies_that_are_not_one_request_are_errors_of_the_protocol() -> None:
    async with opened() as http:
        for body in (b"{", b"[]", b"7", b"[" * 60_000, json.dumps([OVERVIEW]).encode()):
            answer = await http.post("/mcp", content=body, headers=CALLER)
            assert answer.status_code == 400, answer.text
            assert error_in(answer)[0] in (-32700, -32600, -32602)


async def test_a_body_over_the_limit_is_refused_with_and_without_a_length() -> None:
    body = json.dumps({**OVERVIEW, "padding": "x" * MAX_BODY_BYTES}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 8192):
            yield body[start : start + 8192]

    async with opened() as http:
        for content in (body, pieces()):
            answer = await http.post("/mcp", content=content, headers=CALLER)
            assert answer.status_code == 413
            assert error_in(answer)[0] == -32600


async def test_a_call_that_takes_too_long_ends_and_stops_what_it_reads() -> None:
    overview = Overview()
    overview.go_on.clear()
    async with opened(overview, limits=Limits(request_timeout=0.2)) as http:

        async def is_loaded() -> bool:
            return (await http.post("/mcp", json=INITIALIZE, headers=CALLER)).status_code == 200

        await wait_until(is_loaded)
        answer = await http.post("/mcp", json=OVERVIEW, headers=CALLER)
        assert answer.status_code == 503
        assert "took too long" in error_in(answer)[1]
        await wait_until(lambda: overview.cancelled == 1)


async def test_the_calls_of_one_caller_at_a_time_are_limited() -> None:
    overview = Overview()
    overview.go_on.clear()
    async with opened(overview, limits=Limits(max_requests_per_caller=2)) as http:
        waiting = [asyncio.create_task(http.post("/mcp", json=OVERVIEW, headers=CALLER)) for _ in range(2)]
        await wait_until(lambda: len(overview.contexts) == 2)
        refused = await http.post("/mcp", json=OVERVIEW, headers=CALLER)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "max_requests_per_caller" in error_in(refused)[1]
        overview.go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_route_that_fails_is_an_error_of_the_tool_without_details() -> None:
    overview = Overview()
    overview.fault = ZeroDivisionError("secret detail")
    async with opened(overview) as http:
        answer = await http.post("/mcp", json=OVERVIEW, headers=CALLER)
    result = answer.json()["result"]
    assert (answer.status_code, result["isError"]) == (200, True)
    assert "status 500" in answer.text
    assert "secret detail" not in answer.text


async def test_calls_are_in_the_metrics_and_once_an_hour_in_the_audit_log() -> None:
    with structlog.testing.capture_logs() as lines:
        async with opened() as http:
            for _ in range(3):
                await http.post("/mcp", json=OVERVIEW, headers=CALLER)
            await http.post("/mcp", json=OVERVIEW, headers={"authorization": "Bearer wrong"})
            metrics = (await http.get("/metrics", headers={"authorization": "Bearer all"})).text
    events = [line for line in lines if line["event"] == "audit"]
    assert [(line["who"], line["outcome"], line["count"]) for line in events] == [
        ("alice", "allowed", 1),
        (None, "refused", 1),
        ("alice", "allowed", 2),
    ]
    assert {line["target"] for line in events} == {"/mcp"}
    assert 'route="/mcp"' in metrics


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_server_that_has_it_off_says_so(method: str) -> None:
    async with opened(mcp=False) as http:
        answer = await http.request(method, "/mcp", headers=CALLER)
        assert answer.status_code == 404
        assert error_in(answer)[1] == "the setting server.mcp is off"


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without the extra `mcp`."""
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "mcp" or name == "gpufleet.mcp.server"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)


@pytest.mark.usefixtures("without_package")
async def test_a_server_without_the_package_names_what_to_install() -> None:
    async with opened() as http:
        answer = await http.post("/mcp", json=INITIALIZE, headers=CALLER)
        assert answer.status_code == 404
        assert "pip install 'gpufleet[server,mcp]'" in error_in(answer)[1]
        assert (await http.post("/mcp", json=INITIALIZE)).status_code == 401
        assert (await http.get("/api/clusters/overview", headers=CALLER)).status_code == 200


async def test_what_a_caller_sends_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json")
    async with opened() as http:
        await http.post("/mcp", json=rpc("tools/call", name="evil-words", arguments={"a": 1}), headers=CALLER)
        await http.post("/mcp", json=rpc("evil-words"), headers={**CALLER, "x": "evil-words"})
        await http.post("/mcp", content=b'"evil-words"', headers=CALLER)
        await http.post("/mcp", json=OVERVIEW, headers=CALLER)
    logged = capsys.readouterr().err
    assert logged.count('"event":"request"') == 4
    assert "evil-words" not in logged
    assert "HTTP Request" not in logged
