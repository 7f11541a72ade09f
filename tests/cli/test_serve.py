"""The server as users start it: a separate process, over real sockets."""

import asyncio
import gzip
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.oidc_provider import CLIENT, Provider
from tests.waiting import block_until

from gpufleet.agent import protobuf
from gpufleet.cli import main

pytestmark = pytest.mark.long


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
    assert (
        "give --tokens-file, --token-review or --set oidc.issuer=URL, or --insecure"
        in capsys.readouterr().err
    )


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
        block_until(lambda: httpx.get(f"{address}/metrics", headers=as_grafana).status_code == 200)
        assert httpx.post(f"{address}/metrics", headers=as_grafana).status_code == 403
        tokens.write_text("")
        block_until(lambda: httpx.get(f"{address}/metrics", headers=as_grafana).status_code == 401)
        assert [httpx.get(address + path).status_code for path in ("/livez", "/readyz", "/api/healthz")] == [
            200
        ] * 3
        process.terminate()
        out, log = process.communicate(timeout=30)
    assert token not in out + log


@contextmanager
def identity_provider() -> Iterator[Provider]:
    """Run an OpenID Connect provider in a thread of its own."""
    provider, started, stopped = Provider(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with provider.serving():
            started.set()
            await asyncio.to_thread(stopped.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()], daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield provider
    finally:
        stopped.set()
        thread.join(10)


def test_people_and_programs_log_in_with_openid_connect(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "gpufleet.toml").write_text('[auth.group_namespaces]\nstaff = ["nlp"]\n')
    callback = "http://127.0.0.1:8080/auth/callback"
    with identity_provider() as provider:
        flags = (
            "--set",
            f"oidc.issuer={provider.issuer}",
            "--set",
            f"oidc.client_id={CLIENT}",
            "--set",
            f"oidc.redirect_url={callback}",
        )
        with serving(tmp_path, *flags, database=postgres_url) as (address, process):
            token = {"authorization": f"Bearer {provider.token()}"}
            assert httpx.get(f"{address}/metrics").status_code == 401
            me = httpx.get(f"{address}/auth/me", headers=token).json()["data"]
            assert (me["user"], me["namespaces"], me["login"]) == ("alice@example.com", ["nlp"], "oidc")
            assert httpx.get(f"{address}/").status_code in (200, 503)  # the page, if it is built
            assert httpx.get(f"{address}/auth/login").headers["location"].startswith(provider.issuer)
            health = httpx.get(f"{address}/api/healthz", headers=token).json()["data"]["dependencies"]
            assert health["oidc"] == {
                "state": "ok",
                "message": "available",
            }  # no details for a limited caller
            assert httpx.post(f"{address}/api/workloads/x/reportToken", headers=token).status_code == 403
            process.terminate()
            _, log = process.communicate(timeout=30)
    [line] = [line for line in log.splitlines() if '"event":"audit"' in line]
    assert '"who":"alice@example.com"' in line
    assert '"outcome":"refused"' in line


def test_a_profile_of_the_server_has_functions_of_its_main_loop(tmp_path: Path, postgres_url: str) -> None:
    with serving(tmp_path, "--debug", database=postgres_url) as (address, _):
        taken = httpx.get(f"{address}/debug/pprof/profile?seconds=0.3", timeout=30)
    profile = gzip.decompress(taken.content)
    strings = [string.decode() for string in protobuf.fields(profile, 6)]
    kinds = [dict(protobuf._numbers(kind)) for kind in protobuf.fields(profile, 1)]
    functions = [dict(protobuf._numbers(function)) for function in protobuf.fields(profile, 5)]
    assert [(strings[kind[1]], strings[kind[2]]) for kind in kinds][-1] == ("wall", "nanoseconds")
    assert "Runner.run" in {strings[function[2]] for function in functions}
    known = {function[1] for function in functions}
    lines = [line for place in protobuf.fields(profile, 4) for line in protobuf.fields(place, 4)]
    assert {dict(protobuf._numbers(line))[1] for line in lines} == known


def test_a_server_that_could_not_read_its_only_cluster_is_not_ready(
    tmp_path: Path, postgres_url: str
) -> None:
    (tmp_path / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]}"
    )
    with serving(tmp_path, "--kubeconfig", "kubeconfig", database=postgres_url) as (address, _):
        ready = httpx.get(f"{address}/readyz")
        assert (ready.status_code, "nothing was read yet" in ready.text) == (503, True)
        assert httpx.get(f"{address}/livez").status_code == 200
