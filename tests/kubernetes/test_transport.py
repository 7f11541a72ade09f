"""Retries, timeouts, and credentials that change while the client runs."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.kubernetes import faulty_server as faults
from tests.kubernetes.certificates import Authority
from tests.kubernetes.faulty_server import FaultyServer, answer, status
from tests.waiting import wait_until

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import LEASES, PODS, Connection, KubeClient, Retries, Timing
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.connection import ExecPlugin
from gpufleet.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubernetesRefused,
    ObjectNotFound,
    ServerFault,
    TooManyRequests,
    Unanswered,
    Unauthorized,
    UndecodableResponse,
    Unreachable,
)
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta, Pod

LEASE = Lease(metadata=ObjectMeta(name="one-a", namespace="default"), spec=LeaseSpec(holder_identity="me"))


@pytest.mark.parametrize(
    "fault", [faults.cut, answer(500, "InternalError"), answer(503, "Unavailable"), answer(504, "Timeout")]
)
async def test_a_read_is_retried_after_any_temporary_fault(fault: faults.Fault) -> None:
    server = FaultyServer()
    await server.put("one-a")
    server.faults["GET"].extend([fault, fault])
    async with server.serving(), server.client() as client:
        assert (await client.get(LEASES, "one-a", "default")).metadata.name == "one-a"
    assert len(server.requests) >= 3


async def test_a_read_fails_after_its_last_attempt() -> None:
    server = FaultyServer()
    server.faults["GET"].extend([answer(500, "InternalError")] * 20)
    async with server.serving(), server.client() as client:
        with pytest.raises(ServerFault, match=r"GET .*one-a: InternalError on demand"):
            await client.get(LEASES, "one-a", "default")
    assert len(server.requests) == faults.QUICK.attempts


async def test_a_write_without_a_response_is_not_sent_twice() -> None:
    server = FaultyServer()
    server.faults["POST"].append(faults.cut)
    async with server.serving(), server.client() as client:
        with pytest.raises(Unanswered):
            await client.create(LEASES, LEASE)
    assert len(server.requests) == 1


async def test_a_replace_is_sent_once_even_on_a_reused_connection() -> None:
    server = FaultyServer()
    async with server.serving(), server.client() as client:
        made = await client.create(LEASES, LEASE)
        server.faults["PUT"].append(faults.cut)
        with pytest.raises(Unanswered):
            await client.replace(LEASES, made)
    assert [verb for verb, _ in server.requests] == ["POST", "PUT"]


@pytest.mark.parametrize("code", [500, 502, 504])
async def test_a_failed_write_is_not_sent_twice(code: int) -> None:
    server = FaultyServer()
    server.faults["POST"].append(answer(code, "Failed"))
    async with server.serving(), server.client() as client:
        with pytest.raises(ServerFault):
            await client.create(LEASES, LEASE)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fault", [answer(429, "TooManyRequests", Retry_After="0"), answer(503, "Busy", Retry_After="0")]
)
async def test_a_write_that_the_server_rejected_unprocessed_is_sent_again(fault: faults.Fault) -> None:
    server = FaultyServer()
    server.faults["POST"].append(fault)
    async with server.serving(), server.client() as client:
        await client.create(LEASES, LEASE)
    assert len(server.requests) == 2
    assert list(server.objects) == ["one-a"]


async def test_applying_is_repeatable_and_a_json_patch_is_not() -> None:
    server = FaultyServer()
    await server.put("one-a")
    server.faults["PATCH"].extend([faults.cut, faults.cut])
    async with server.serving(), server.client() as client:
        with pytest.raises(Unanswered):
            await client.patch(LEASES, "one-a", patch.json([{"op": "remove", "path": "/spec"}]), "default")
        assert len(server.requests) == 1
        await client.patch(LEASES, "one-a", patch.apply({"spec": {}}), "default")
    assert len(server.requests) == 3


async def test_retry_after_is_honoured_up_to_the_maximum() -> None:
    server = FaultyServer()
    await server.put("one-a")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with server.serving():
        connection, timing = Connection(server.url), Timing(sleep=sleep, random=lambda: 1.0)
        async with KubeClient(connection, timing=timing, retries=Retries()) as client:
            server.faults["GET"].append(answer(429, "TooManyRequests", Retry_After="7"))
            await client.get(LEASES, "one-a", "default")
            assert waits == [7.0]
            server.faults["GET"].append(answer(429, "TooManyRequests", Retry_After="3600"))
            with pytest.raises(TooManyRequests) as raised:
                await client.get(LEASES, "one-a", "default")
    assert raised.value.retry_after == 3600.0
    assert waits == [7.0]


async def test_a_request_without_a_response_takes_no_longer_than_its_timeout() -> None:
    server = FaultyServer()
    server.faults["PUT"].append(faults.hang)
    async with server.serving(), server.client(within=0.1) as client:
        with pytest.raises(Unanswered, match=r"did not respond in 0\.1 s"):
            await client.replace(LEASES, LEASE)
    assert len(server.requests) == 1


async def test_no_server_at_all_is_unreachable() -> None:
    server = FaultyServer()
    async with server.serving() as url:
        pass
    async with KubeClient(Connection(url), retries=faults.QUICK) as client:
        with pytest.raises(Unreachable, match=r"no connection to http://127\.0\.0\.1"):
            await client.create(LEASES, LEASE)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (403, "Forbidden", Forbidden),
        (404, "NotFound", ObjectNotFound),
        (405, "MethodNotAllowed", KubernetesRefused),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
    ],
)
async def test_refusals_have_their_own_errors_and_are_not_retried(
    code: int, reason: str, error: type[Exception]
) -> None:
    server = FaultyServer()
    server.faults["GET"].append(answer(code, reason))
    async with server.serving(), server.client() as client:
        with pytest.raises(error, match=f"{reason} on demand") as raised:
            await client.get(LEASES, "one-a", "default")
    assert type(raised.value) is error
    assert len(server.requests) == 1


async def test_a_proxys_error_page_is_not_repeated() -> None:
    server = FaultyServer()

    async def login_page(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>Please log in</html>")

    async def bad_gateway(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>secret upstream</html>", status=404)

    server.faults["GET"].extend([login_page, bad_gateway])
    async with server.serving(), server.client() as client:
        with pytest.raises(UndecodableResponse):
            await client.get(LEASES, "one-a", "default")
        with pytest.raises(ObjectNotFound) as raised:
            await client.get(LEASES, "one-a", "default")
    assert "secret" not in str(raised.value)


async def test_only_complete_types_can_be_replaced() -> None:
    async with KubeClient(Connection("http://127.0.0.1:1")) as client:
        with pytest.raises(TypeError, match="Pod has only some fields of a Pod: patch it instead"):
            await client.replace(PODS, Pod(metadata=ObjectMeta(name="p", namespace="default")))


# Credentials


def only(token: str) -> Any:
    """Rejects requests with any other token."""

    def refuse(request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization")
        return None if given == f"Bearer {token}" else status(401, "Unauthorized")

    return refuse


async def test_a_token_file_is_read_again_when_the_server_rejects_the_token(tmp_path: Path) -> None:
    server = FaultyServer()
    await server.put("one-a")
    token = tmp_path / "token"
    token.write_text("first\n")
    server.refuse = only("first")
    async with server.serving(), server.client(token=token) as client:
        await client.get(LEASES, "one-a", "default")
        server.refuse = only("second")
        with pytest.raises(Unauthorized) as raised:
            await client.get(LEASES, "one-a", "default")
        assert "first" not in str(raised.value)
        assert len(server.requests) == 2, "the same token is not tried twice"
        token.write_text("second\n")
        await client.get(LEASES, "one-a", "default")
        await client.get(LEASES, "one-a", "default")
    assert len(server.requests) == 5


async def refused_late(server: FaultyServer, client: KubeClient, renew: Callable[[], None]) -> None:
    """Send two requests with old credentials; the second is rejected after the first has fetched new ones."""
    released = asyncio.Event()

    async def late(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        await released.wait()
        return status(401, "Unauthorized")

    await client.get(LEASES, "one-a", "default")
    server.faults["GET"].append(late)
    sent = len(server.requests)
    slow = asyncio.create_task(client.get(LEASES, "one-a", "default"))
    await wait_until(lambda: len(server.requests) > sent)
    renew()
    await client.get(LEASES, "one-a", "default")
    released.set()
    await slow


async def test_a_request_rejected_late_uses_the_token_that_another_request_has_read(tmp_path: Path) -> None:
    server = FaultyServer()
    await server.put("one-a")
    token = tmp_path / "token"
    token.write_text("first")
    server.refuse = only("first")

    def renew() -> None:
        token.write_text("second")
        server.refuse = only("second")

    async with server.serving(), server.client(token=token) as client:
        await refused_late(server, client, renew)


async def test_a_request_rejected_late_uses_the_plugins_token_of_another_request(tmp_path: Path) -> None:
    server = FaultyServer()
    await server.put("one-a")
    plugin = ExecPlugin(write_plugin(tmp_path, "2999-01-01T00:00:00Z"), "client.authentication.k8s.io/v1")
    server.refuse = only("token-0")

    def renew() -> None:
        server.refuse = only("token-1")

    async with server.serving(), server.client(exec_plugin=plugin) as client:
        await refused_late(server, client, renew)
    assert (tmp_path / "runs").read_text() == "xx"


PLUGIN = """#!{python}
import json, os, pathlib
folder = pathlib.Path({folder!r})
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
(folder / "info.json").write_text(json.dumps(info))
runs = folder / "runs"
number = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (number + 1))
status = {{"token": "token-%d" % number, "expirationTimestamp": {expiry!r}}}
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}}))
"""


def write_plugin(folder: Path, expiry: str) -> str:
    command = folder / "plugin"
    command.write_text(PLUGIN.format(python=sys.executable, folder=str(folder), expiry=expiry))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return str(command)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_an_exec_plugin_runs_once_and_again_when_its_token_is_rejected(
    tmp_path: Path, version: Any
) -> None:
    server = FaultyServer()
    await server.put("one-a")
    plugin = ExecPlugin(
        write_plugin(tmp_path, "2999-01-01T00:00:00Z"),
        f"client.authentication.k8s.io/{version}",  # type: ignore[arg-type]
        cluster_info={"server": "https://example"},
    )
    server.refuse = only("token-0")
    async with server.serving(), server.client(exec_plugin=plugin) as client:
        for _ in range(3):
            await client.get(LEASES, "one-a", "default")
        assert (tmp_path / "runs").read_text() == "x"
        server.refuse = only("token-1")
        await client.get(LEASES, "one-a", "default")
        assert (tmp_path / "runs").read_text() == "xx"
    info = json.loads((tmp_path / "info.json").read_text())
    assert info == {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://example"}},
    }


async def test_an_exec_plugin_runs_again_before_its_token_expires(tmp_path: Path) -> None:
    server = FaultyServer()
    await server.put("one-a")
    plugin = ExecPlugin(write_plugin(tmp_path, "2001-01-01T00:00:00Z"), "client.authentication.k8s.io/v1")
    async with server.serving(), server.client(exec_plugin=plugin) as client:
        await client.get(LEASES, "one-a", "default")
        await client.get(LEASES, "one-a", "default")
    tokens = [headers["Authorization"] for headers in server.headers]
    assert len(set(tokens)) == 2


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "exited with status 3; run it in a shell to see why .*brew install it"),
        ("echo nonsense", "printed no ExecCredential"),
        (
            'echo \'{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential"}\'',
            "but the kubeconfig says",
        ),
        (
            'echo \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}\'',
            "neither a token",
        ),
    ],
)
async def test_a_plugin_that_fails_is_named_with_its_hint(tmp_path: Path, script: str, message: str) -> None:
    command = tmp_path / "plugin"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    plugin = ExecPlugin(str(command), "client.authentication.k8s.io/v1", install_hint="brew install it")
    async with KubeClient(Connection("http://127.0.0.1:1", exec_plugin=plugin)) as client:
        with pytest.raises(KubernetesUnavailable, match=message):
            await client.get(LEASES, "one-a", "default")


async def test_a_plugin_that_is_not_installed_says_how_to_install_it() -> None:
    plugin = ExecPlugin("no-such-plugin", "client.authentication.k8s.io/v1", install_hint="brew install it")
    async with KubeClient(Connection("http://127.0.0.1:1", exec_plugin=plugin)) as client:
        with pytest.raises(KubernetesUnavailable, match=r"can't be started: No such file.*brew install it"):
            await client.get(LEASES, "one-a", "default")


# Certificates


async def test_a_new_certificate_authority_is_loaded_when_the_server_uses_it(tmp_path: Path) -> None:
    server = FaultyServer()
    await server.put("one-a")
    old, new = Authority("old"), Authority("new")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(old.pem)
    async with server.serving(old.serve(tmp_path)) as url:
        port = int(url.rpartition(":")[2])
        client = KubeClient(Connection(url, ca=ca), retries=Retries(attempts=1))
        await client.get(LEASES, "one-a", "default")
    async with server.serving(new.serve(tmp_path), port), client:
        with pytest.raises(Unreachable, match="certificate is not trusted"):
            await client.get(LEASES, "one-a", "default")
        ca.write_bytes(new.pem)
        os.utime(ca, ns=(1, 1))
        await client.get(LEASES, "one-a", "default")


def peer_of(request: web.Request) -> str:
    assert request.transport is not None
    peer = request.transport.get_extra_info("peercert") or {}
    return str(dict(pair for part in peer.get("subject", ()) for pair in part).get("commonName", ""))


async def test_a_rotated_client_certificate_is_used_for_the_next_request(tmp_path: Path) -> None:
    server, authority = FaultyServer(), Authority("ca")
    await server.put("one-a")
    names: list[str] = []

    def who(request: web.Request) -> web.Response | None:
        name = peer_of(request)
        names.append(name)
        return None if name == expected else status(401, "Unauthorized")

    server.refuse = who
    files = tmp_path / "client.crt", tmp_path / "client.key"

    def write(name: str) -> None:
        for file, content in zip(files, authority.issue(name), strict=True):
            file.write_bytes(content)

    write("first")
    expected = "first"
    async with (
        server.serving(authority.serve(tmp_path, clients=authority)),
        server.client(ca=authority.pem, client_certificate=files[0], client_key=files[1]) as client,
    ):
        await client.get(LEASES, "one-a", "default")
        write("second")
        expected = "second"
        await client.get(LEASES, "one-a", "default")
    assert names[0] == "first"
    assert names[-1] == "second"
    assert len(names) <= 3


async def test_a_certificate_without_its_new_key_is_not_used_yet(tmp_path: Path) -> None:
    server, authority = FaultyServer(), Authority("ca")
    await server.put("one-a")
    now = 0.0
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    first, second = authority.issue("first"), authority.issue("second")
    certificate.write_bytes(first[0])
    key.write_bytes(first[1])
    async with server.serving(authority.serve(tmp_path, clients=authority)):
        connection = Connection(server.url, ca=authority.pem, client_certificate=certificate, client_key=key)
        async with KubeClient(connection, timing=Timing(monotonic=lambda: now)) as client:
            await client.get(LEASES, "one-a", "default")
            certificate.write_bytes(second[0])
            now += 10
            await client.get(LEASES, "one-a", "default")
            key.write_bytes(second[1])
            names: list[str] = []
            server.refuse = lambda request: names.append(peer_of(request))
            now += 10
            await client.get(LEASES, "one-a", "default")
    assert names == ["second"]


async def test_a_certificate_for_another_name_is_rejected_unless_configured(tmp_path: Path) -> None:
    server, authority = FaultyServer(), Authority("ca")
    await server.put("one-a")
    async with server.serving(authority.serve(tmp_path)):
        async with server.client() as stranger:
            with pytest.raises(Unreachable, match="not trusted"):
                await stranger.get(LEASES, "one-a", "default")
        async with server.client(ca=authority.pem, tls_server_name="other.example") as misled:
            with pytest.raises(Unreachable, match="not trusted"):
                await misled.get(LEASES, "one-a", "default")
        async with server.client(insecure=True) as careless:
            await careless.get(LEASES, "one-a", "default")
