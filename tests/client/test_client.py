"""The client against a real server and against its OpenAPI document."""

import ast
import asyncio
import inspect
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from dashboard.tools.demo_process import Demo
from dashboard.tools.openapi import openapi_document
from dashboard.tools.python_client import CLIENT, client_modules, formatted

from gpufleet.client import AsyncClient, Client, calls, types
from gpufleet.client.call import Call, Paged
from gpufleet.client.errors import ApiError, LoginRequired, ServerUnreachable
from gpufleet.client.exchange import exchange
from gpufleet.client.frames import FrameLibraryMissing, flat, to_pandas, to_polars
from gpufleet.errors import SettingsError


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


def _syntax(code: str) -> str:
    return ast.dump(ast.parse(code))


def test_the_document_made_with_stubs_is_that_of_a_server(document: dict[str, Any], demo: Demo) -> None:
    with urllib.request.urlopen(f"{demo.address}openapi.json", timeout=30) as response:
        served = json.load(response)
    assert document["paths"].keys() == served["paths"].keys()
    assert document == served


def test_the_client_is_what_the_openapi_document_describes(document: dict[str, Any]) -> None:
    for name, code in client_modules(document).items():
        assert _syntax(formatted(code)) == _syntax((CLIENT / name).read_text()), (
            f"{name}: the API has changed: run python -m dashboard.tools.python_client"
        )


def test_every_call_exists_with_its_parameters(document: dict[str, Any]) -> None:
    functions = inspect.getmembers(calls, lambda each: inspect.isfunction(each))
    assert len(functions) > 25
    for name, make in functions:
        arguments = {each: each for each in inspect.signature(make).parameters}
        call: Call[Any] | Paged[Any] = make(**arguments)
        described = document["paths"][call.path]["get"]["parameters"]
        sent = call.page(1) if isinstance(call, Paged) else call
        assert {*sent.query, *sent.path_values} == {each["name"] for each in described}, name
        for cls in (Client, AsyncClient):
            method = inspect.signature(getattr(cls, name))
            assert list(method.parameters) == list(inspect.signature(make).parameters)


def test_pages_are_iterated_to_the_end(client: Client, demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.client.clients.PAGE_SIZE", 3)
    monkeypatch.setattr(Paged.page, "__defaults__", (3,))
    names = [node.name for node in client.nodes()]
    assert names == [row["name"] for row in demo.get("api/nodes?pageSize=1000")["data"]]
    assert len(names) == 4


def test_data_has_types_and_equals_the_api(client: Client, demo: Demo) -> None:
    node = next(client.nodes())
    assert isinstance(node, types.NodeRow)
    raw = demo.get(f"api/nodes/{node.name}")
    detail = client.node(node.name)
    assert [(gpu.uuid, gpu.bandwidth_gbps) for gpu in detail.gpus] == [
        (gpu["uuid"], gpu["bandwidthGBps"]) for gpu in raw["gpus"]
    ]
    assert client.overview().total_gpus == demo.get("api/clusters/overview")["totalGpus"]


async def test_the_async_client_returns_the_same(client: Client, demo: Demo) -> None:
    async with AsyncClient(demo.address, environ={}) as other:
        names = [row.name async for row in other.nodes(sort="name")]
        overview = await other.overview()
    assert names == await asyncio.to_thread(lambda: [row.name for row in client.nodes()])
    assert overview.total_gpus == 32


def test_errors_carry_the_servers_sentence_and_trace_id(client: Client) -> None:
    with pytest.raises(ApiError, match="no node 'none' in cluster demo") as raised:
        client.node("none")
    assert (raised.value.status, len(raised.value.trace_id)) == (404, 32)
    with pytest.raises(ApiError, match="period") as refused:
        client.report(period="yesterday")
    assert refused.value.status == 400
    with pytest.raises(ApiError, match="no cluster"):
        client.overview(cluster="other")


def test_an_address_without_a_server_is_named_with_the_reason() -> None:
    with pytest.raises(ServerUnreachable, match=r"no answer from http://127.0.0.1:1: Connection refused"):
        Client("http://127.0.0.1:1", retries=0).overview()
    with pytest.raises(SettingsError, match="no server given; give one such as"):
        Client(environ={})
    with pytest.raises(SettingsError, match="'fleet' is not the address of a server"):
        Client("fleet", environ={})


class _Busy(BaseHTTPRequestHandler):
    """Fails once with 503, then answers; ends `/cut` too early; remembers the headers."""

    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        status = {"/api/healthz": 503 if len(self.seen) == 1 else 200, "/auth/me": 401}.get(self.path, 200)
        body = {"success": True, "data": {"status": "healthy", "timestamp": "", "version": "1"}}
        body["data"]["dependencies"] = {}  # type: ignore[index]
        sent = json.dumps(body if status == 200 else {"message": "no valid token"}).encode()
        if self.path == "/api/clusters":
            sent = b"<html>another program</html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent) + (self.path == "/cut")))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def busy() -> Iterator[str]:
    _Busy.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_request_is_repeated_until_the_server_answers(busy: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    environ = {"GPUFLEET_SERVER": busy, "GPUFLEET_TOKEN_FILE": str(tmp_path / "token")}
    with Client(environ=environ) as client:
        assert client.healthz().status == "healthy"
    assert [headers["Authorization"] for headers in _Busy.seen] == ["Bearer from-file"] * 2


def test_a_missing_login_is_not_retried_and_another_program_is_recognized(busy: str) -> None:
    with Client(busy, environ={}) as client:
        with pytest.raises(LoginRequired, match="no valid token"):
            client.me()
        with pytest.raises(ApiError, match="is not an answer of gpufleet"):
            client.clusters()
    assert len(_Busy.seen) == 2


def test_a_body_is_saved_to_a_file(demo: Demo, tmp_path: Path) -> None:
    with Client(demo.address, environ={}, cluster="demo") as client:
        client.save(calls.nodes().page(1), "text/csv", tmp_path / "nodes.csv")
    lines = (tmp_path / "nodes.csv").read_text().splitlines()
    assert len(lines) == 5
    assert "gpuTotal" in lines[0]


def test_a_body_that_ends_early_is_an_error(busy: str, tmp_path: Path) -> None:
    with (
        Client(busy, environ={}) as client,
        pytest.raises(ServerUnreachable, match=f"the answer of {busy} was interrupted"),
    ):
        client.save(Call("/cut", {}, {}, bytes), "text/csv", tmp_path / "cut.csv")


def test_pauses_grow_and_follow_retry_after() -> None:
    attempts = exchange("http://fleet", 3)
    request = httpx.Request("GET", "http://fleet")
    pauses = [next(attempts), attempts.send(httpx.ConnectError("refused", request=request))]
    pauses.append(attempts.send(httpx.Response(503, request=request)))
    pauses.append(attempts.send(httpx.Response(429, headers={"Retry-After": "7"}, request=request)))
    assert pauses[0] == 0.0
    assert 0.25 <= pauses[1] <= 0.5 <= pauses[2] <= 1.0
    assert pauses[3] == 7.0
    with pytest.raises(ServerUnreachable, match="http://fleet is not available: status 503"):
        attempts.send(httpx.Response(503, request=request))


def test_frames_have_a_column_for_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pandas")
    module.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "pandas", module)
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    row = types.Consumer(
        kind="Job",
        name="a",
        namespace="ml",
        uid="u",
        stat=types.ConsumerStat(gpu_request=8, gpu_utilization=0.5),
        pods=None,
        source="k8s",
    )
    assert flat(row)["stat.gpu_request"] == 8
    assert to_pandas([row]) == [flat(row)]
    with pytest.raises(FrameLibraryMissing, match="frames of polars need the package: pip install polars"):
        to_polars([row])


def test_a_time_without_an_offset_is_local() -> None:
    from datetime import datetime

    call = calls.waste(start_time=datetime(2026, 11, 1, tzinfo=None)).page(1)
    moment = datetime.fromisoformat(call.parameters["start_time"])
    assert moment.timestamp() == time.mktime((2026, 11, 1, 0, 0, 0, 0, 0, -1))
