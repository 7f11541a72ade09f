"""The server as users start it: a separate process, over real sockets."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.responses import StreamingResponse

from gpufleet.cli import main
from gpufleet.runtime.listening import address_of, bind
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route, get, post
from gpufleet.server.http.server import Server


def command(tmp_path: Path, *flags: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "gpufleet",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--port",
        "0",
        *flags,
    ]


@contextmanager
def serving(tmp_path: Path, *flags: str, database: str = "") -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A running server: its address and its process."""
    process = subprocess.Popen(
        command(tmp_path, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "DATABASE_URL": database},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("gpufleet serves on http://127.0.0.1:"), process.communicate()
        yield line.rpartition(" ")[2].strip(), process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


def test_it_prints_the_port_it_took_answers_and_ends_with_0_on_sigterm(empty_data: Path) -> None:
    with serving(empty_data, "--debug") as (address, process):
        healthz = httpx.get(f"{address}/api/healthz")
        assert (healthz.status_code, healthz.json()["success"]) == (200, True)
        dependencies = healthz.json()["data"]["dependencies"]
        assert dependencies["store"]["state"] == "ok"
        assert dependencies["store"]["message"].startswith("PostgreSQL ")
        assert dependencies["metrics"] == {"state": "ok", "message": "reads embedded"}
        assert dependencies["kubernetes"]["state"] == "off"
        assert httpx.get(f"{address}/readyz").status_code == 200
        assert httpx.get(f"{address}/debug/vars").json()["memory"]["rss_bytes"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_it_serves_the_live_routes_and_an_event_stream_does_not_delay_its_stop(
    tmp_path: Path, postgres_url: str
) -> None:
    with serving(tmp_path, database=postgres_url) as (address, process):
        assert httpx.get(f"{address}/api/clusters/overview").json()["data"]["totalNodes"] == 0
        assert httpx.get(f"{address}/api/workloads").json()["data"] == {"data": [], "total": 0}
        assert httpx.get(f"{address}/api/v1/gpu/metrics").json()["data"] == []
        numbers = httpx.get(f"{address}/metrics").text
        assert "gpufleet_store_transactions_total" in numbers
        with httpx.stream("GET", f"{address}/api/events", timeout=10) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith(": changes of cluster")
            began = time.monotonic()
            process.terminate()
            assert "still here" not in "".join(lines)
        assert process.wait(30) == 0
        assert time.monotonic() - began < 15  # the grace period is 20 s, a heartbeat 15 s


@contextmanager
def few_open_files(number: int) -> Iterator[None]:
    """Processes that are started within this may open `number` files, or more if they ask."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_clients_than_the_soft_limit_of_open_files_are_answered(
    tmp_path: Path, postgres_url: str
) -> None:
    with ExitStack() as closing:
        with few_open_files(128):
            address, _ = closing.enter_context(serving(tmp_path, database=postgres_url))
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        for _ in range(200):
            closing.enter_context(socket.create_connection(place))
        assert httpx.get(f"{address}/livez").status_code == 200


def test_the_log_has_a_line_for_each_request_with_its_trace_id_and_no_query(
    tmp_path: Path, postgres_url: str
) -> None:
    with serving(tmp_path, "--log-format", "json", database=postgres_url) as (address, process):
        trace = "0af7651916cd43dd8448eb211c80319c"
        httpx.get(
            f"{address}/openapi.json?token=hunter2",
            headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01", "authorization": "Bearer hunter3"},
        )
        process.terminate()
        _, log = process.communicate(timeout=30)
    (line,) = [line for line in log.splitlines() if trace in line]
    assert '"route":"/openapi.json"' in line
    assert '"status":200' in line
    assert "hunter" not in log


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert f"port {port} on 127.0.0.1 is in use by another program" in capsys.readouterr().err


def test_an_address_of_another_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "192.0.2.1", "--port", "0", "--insecure"]) == 1
    assert "192.0.2.1 is not an address of this machine" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_reach_needs_login_or_insecure(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--host", host, "--port", "0"]) == 2
    assert "give --tokens-file or --token-review, or --insecure" in capsys.readouterr().err


def test_a_missing_tokens_file_is_reported_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", "--tokens-file", str(tmp_path / "none")]) == 2
    assert "setting auth.tokens_file: can't read" in capsys.readouterr().err


def test_a_token_is_accepted_while_its_line_is_in_the_file(tmp_path: Path, postgres_url: str) -> None:
    made = subprocess.run(
        command(tmp_path, "--new-token", "grafana"), capture_output=True, text=True, check=True, cwd=tmp_path
    )
    token = made.stderr.split()[-1]
    tokens = tmp_path / "tokens"
    tokens.write_text("# no tokens yet\n")
    with serving(tmp_path, "--tokens-file", str(tokens), database=postgres_url) as (address, process):
        as_grafana = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{address}/metrics").status_code == 401
        assert httpx.get(f"{address}/metrics", headers=as_grafana).status_code == 401
        tokens.write_text(made.stdout)
        assert _until(200, f"{address}/metrics", as_grafana)
        assert httpx.post(f"{address}/metrics", headers=as_grafana).status_code == 403
        tokens.write_text("")
        assert _until(401, f"{address}/metrics", as_grafana)
        assert [httpx.get(address + path).status_code for path in ("/livez", "/readyz", "/api/healthz")] == [
            200
        ] * 3
        process.terminate()
        out, log = process.communicate(timeout=30)
    assert token not in out + log


def _until(status: int, url: str, headers: dict[str, str]) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if httpx.get(url, headers=headers).status_code == status:
            return True
        time.sleep(0.2)
    return False


@asynccontextmanager
async def server(*routes: Route, grace: float = 10) -> AsyncIterator[tuple[str, int, Server]]:
    """A server in this process: host, port and itself."""
    lifecycle = Lifecycle()
    app = create_app(Api(routes=routes, lifecycle=lifecycle))
    started = asyncio.Event()
    made = Server(app, lifecycle, grace)
    made.on_started = started.set
    with bind("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert address_of(listening) == f"http://{host}:{port}"
        running = asyncio.create_task(made.serve(sockets=[listening]))
        await started.wait()
        try:
            yield host, port, made
        finally:
            made.stop()
            await running


def slow_route(began: asyncio.Event, end: asyncio.Event) -> Route:
    @get("/api/clusters/slow")
    async def slow() -> str:
        """Answer when `end` is set."""
        began.set()
        await end.wait()
        return "finished"

    return slow


async def test_a_request_in_flight_is_finished_before_the_server_stops() -> None:
    began, end = asyncio.Event(), asyncio.Event()
    async with server(slow_route(began, end)) as (host, port, running), httpx.AsyncClient() as http:
        request = asyncio.create_task(http.get(f"http://{host}:{port}/api/clusters/slow"))
        await began.wait()
        running.stop()
        await asyncio.sleep(0.3)
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await asyncio.open_connection(host, port)
        end.set()
        answer = await request
    assert answer.json()["data"] == "finished"


async def test_a_request_that_outlives_the_grace_period_gets_a_503() -> None:
    began, end = asyncio.Event(), asyncio.Event()
    async with server(slow_route(began, end), grace=0) as (host, port, running), httpx.AsyncClient() as http:
        request = asyncio.create_task(http.get(f"http://{host}:{port}/api/clusters/slow"))
        await began.wait()
        running.stop()
        answer = await request
    assert answer.status_code == 503
    assert answer.json()["message"] == "the server is shutting down; try again"


async def test_a_second_stop_cancels_requests_without_a_traceback() -> None:
    began, end = asyncio.Event(), asyncio.Event()
    async with (
        server(slow_route(began, end), grace=600) as (host, port, running),
        httpx.AsyncClient() as http,
    ):
        request = asyncio.create_task(http.get(f"http://{host}:{port}/api/clusters/slow"))
        await began.wait()
        running.stop()
        await asyncio.sleep(0.2)
        running.stop()
        answer = await asyncio.wait_for(request, 30)
    assert answer.status_code == 503
    left = [task for task in asyncio.all_tasks() if "Lifespan" in repr(task.get_coro())]
    assert not left, "the end of the loop would cancel the application, and log that as a fault"


async def raw(host: str, port: int, *pieces: bytes) -> bytes:
    """What comes back on a connection over which `pieces` were sent."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_url_that_is_too_long_is_refused_in_an_envelope() -> None:
    request = b"GET /api/clusters/x?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    async with server() as (host, port, _):
        answer = await raw(host, port, request)
    assert answer.startswith(b"HTTP/1.1 414 ")
    assert b"x-trace-id: " in answer
    assert b'"code":414' in answer


async def test_bytes_that_are_not_http_get_a_400() -> None:
    async with server() as (host, port, _):
        answer = await raw(host, port, b"GARBAGE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_an_unsupported_protocol_upgrade_is_answered_as_plain_http() -> None:
    async with server() as (host, port, _):
        answer = await raw(
            host,
            port,
            b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_head_sends_the_headers_of_get_and_no_body() -> None:
    async with server() as (host, port, _), httpx.AsyncClient() as http:
        answer = await http.head(f"http://{host}:{port}/api/healthz")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 100
    assert answer.content == b""


async def test_a_head_request_for_a_stream_ends_with_its_headers() -> None:
    @get("/api/events", media_type="text/event-stream")
    async def events() -> StreamingResponse:
        """Tell nothing, for ever."""

        async def no_events() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        return StreamingResponse(no_events(), media_type="text/event-stream")

    request = b"HEAD /api/events HTTP/1.1\r\nHost: a\r\n\r\nGET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    async with server(events) as (host, port, _):
        answer = await raw(host, port, request)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.endswith(b"\r\n\r\nok\n")


async def test_a_client_that_disconnects_while_sending_its_body_is_a_400() -> None:
    @post("/api/clusters/rows")
    async def take(body: list[int]) -> int:
        """Count what is sent."""
        return len(body)

    async with server(take) as (host, port, _), httpx.AsyncClient() as http:
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /api/clusters/rows HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n[1, ")
        await writer.drain()
        writer.close()
        counted: list[str] = []
        async with asyncio.timeout(60):
            while not counted:
                metrics = (await http.get(f"http://{host}:{port}/metrics")).text
                counted = [line for line in metrics.splitlines() if 'count{method="POST"' in line]
    assert 'route="/api/clusters/rows",status="400"' in counted[0]


def test_go_tool_pprof_opens_a_profile_of_the_server(tmp_path: Path, postgres_url: str) -> None:
    go = next((path for path in _go_candidates() if path.exists()), None)
    if go is None:
        pytest.skip("Go is not installed")
    with serving(tmp_path, "--debug", database=postgres_url) as (address, _):
        taken = httpx.get(f"{address}/debug/pprof/profile?seconds=0.3", timeout=30)
    profile = tmp_path / "profile.pb.gz"
    profile.write_bytes(taken.content)
    shown = subprocess.run(
        [go, "tool", "pprof", "-raw", str(profile)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": os.environ.get("HOME", str(tmp_path)), "GOFLAGS": "-mod=mod"},
    )
    assert "wall/nanoseconds" in shown.stdout
    assert "Runner.run" in shown.stdout


def _go_candidates() -> list[Path]:
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/go/bin"]
    return [Path(folder) / "go" for folder in folders]
