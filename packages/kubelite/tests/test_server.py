"""What the contract suite does not cover: the window, tokens, TLS, limits, start and stop."""

import asyncio
import io
import json
import ssl
import stat
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml

from kubelite import DirectStorage, KubeLite, User
from kubelite.contract.webhooks import self_signed_certificate
from kubelite.errors import ApiError
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.objects.garbage_collector import GarbageCollector
from kubelite.objects.objects import Objects

_MAPS = "/api/v1/namespaces/default/configmaps"


async def _create(session: aiohttp.ClientSession, name: str, **data: str) -> dict[str, str]:
    async with session.post(_MAPS, json={"metadata": {"name": name}, "data": data}) as response:
        assert response.status == 201
        metadata: dict[str, str] = (await response.json())["metadata"]
        return metadata


async def test_a_version_older_than_the_window_is_expired() -> None:
    async with (
        KubeLite(window=5) as server,
        aiohttp.ClientSession(server.url, headers=server.headers) as session,
    ):
        first = await _create(session, "a")
        for number in range(8):
            await _create(session, f"b{number}")
        query = {"watch": "true", "resourceVersion": first["resourceVersion"]}
        async with session.get(_MAPS, params=query) as stream:
            assert stream.status == 200
            event = json.loads(await stream.content.readline())
            assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
                "ERROR",
                410,
                "Expired",
            )
            assert await stream.content.readline() == b""


async def test_an_old_continue_token_is_expired() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url, headers=server.headers) as session:
        for number in range(4):
            await _create(session, f"a{number}")
        async with session.get(_MAPS, params={"limit": "1"}) as response:
            token = (await response.json())["metadata"]["continue"]
        for _ in range(70):
            async with session.get(_MAPS, params={"limit": "1"}) as response:
                assert response.status == 200
        async with session.get(_MAPS, params={"limit": "1", "continue": token}) as response:
            assert response.status == 410
            assert (await response.json())["reason"] == "Expired"


async def test_a_request_without_a_token_is_refused(tmp_path: Path) -> None:
    users = {"s3cret": User("ann", ("team-a",))}
    async with KubeLite(tokens=users) as server, aiohttp.ClientSession(server.url) as session:
        async with session.get(_MAPS) as response:
            assert response.status == 401
        ann = {"Authorization": "Bearer s3cret"}
        async with session.get(_MAPS, headers=ann) as response:
            assert response.status == 200
        review = {"spec": {"token": "s3cret"}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        async with session.post(path, json=review, headers=ann) as response:
            status = (await response.json())["status"]
        assert status == {"authenticated": True, "user": {"username": "ann", "groups": ["team-a"]}}
        server.write_kubeconfig(tmp_path / "config")
    assert stat.S_IMODE((tmp_path / "config").stat().st_mode) == 0o600
    config = yaml.safe_load((tmp_path / "config").read_text())
    assert config["users"][0]["user"] == {"token": "s3cret"}


@pytest.mark.parametrize("scheme", ["bearer", "basic"])
async def test_a_server_without_configured_tokens_makes_one(scheme: str, tmp_path: Path) -> None:
    async with KubeLite() as server, KubeLite() as other, aiohttp.ClientSession(server.url) as session:

        async def status(token: str) -> int:
            pair = f"kubelite:{token}".encode()
            value = f"Bearer {token}" if scheme == "bearer" else f"Basic {b64encode(pair).decode()}"
            async with session.get("/version", headers={"Authorization": value}) as response:
                return response.status

        async with session.get("/version") as response:
            assert response.status == 401
        assert [await status(token) for token in (server.token, other.token, "")] == [200, 401, 401]
        async with session.get("/version", headers={"Authorization": "Basic %%%"}) as response:
            assert response.status == 401
        path = tmp_path / "config"
        path.touch(mode=0o644)
        server.write_kubeconfig(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("rebound.example", 403),
        ("rebound.example:80", 403),
        ("127.0.0.1.rebound.example", 403),
        ("192.0.2.1", 403),
        ("", 403),
    ],
)
async def test_only_host_names_of_the_server_are_accepted(host: str, status: int) -> None:
    async with (
        KubeLite() as server,
        aiohttp.ClientSession(server.url, headers=server.headers) as session,
        session.get(_MAPS, headers={"Host": host}) as response,
    ):
        assert response.status == status


async def test_a_server_on_all_addresses_accepts_addresses_and_no_names() -> None:
    async with KubeLite(host="0.0.0.0") as server, aiohttp.ClientSession(headers=server.headers) as session:
        url = server.url.replace("0.0.0.0", "127.0.0.1") + _MAPS
        for host, status in (("192.0.2.1:80", 200), ("rebound.example", 403)):
            async with session.get(url, headers={"Host": host}) as response:
                assert response.status == status


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_requests_of_web_pages_are_refused(method: str) -> None:
    headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    async with KubeLite() as server, aiohttp.ClientSession(server.url, headers=server.headers) as session:
        body = {"metadata": {"name": "a"}} if method == "POST" else None
        async with session.request(method, _MAPS, json=body, headers=headers) as response:
            assert response.status == 403
            assert not [name for name in response.headers if name.lower().startswith("access-control")]
        assert ("default", "a") not in server.store.collection("configmaps").entries


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_body_that_a_web_page_could_send_is_refused(method: str, content_type: str) -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url, headers=server.headers) as session:
        await _create(session, "a")
        path = _MAPS if method == "POST" else f"{_MAPS}/a"
        body = json.dumps({"metadata": {"name": "b" if method == "POST" else "a"}, "data": {"k": "v"}})
        headers = {"Content-Type": content_type}
        async with session.request(method, path, data=body.encode(), headers=headers) as response:
            assert response.status == 415
            assert (await response.json())["reason"] == "UnsupportedMediaType"
        async with session.get(f"{_MAPS}/a") as response:
            assert "data" not in await response.json() or not (await response.json())["data"]


async def test_the_server_supports_tls(tmp_path: Path) -> None:
    certificate, key = self_signed_certificate()
    chain = tmp_path / "chain.pem"
    chain.write_bytes(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    trust = ssl.create_default_context(cadata=certificate.decode())
    async with (
        KubeLite(tls=context) as server,
        aiohttp.ClientSession(server.url, headers=server.headers) as session,
    ):
        assert server.url.startswith("https://")
        async with session.get("/version", ssl=trust) as response:
            assert (await response.json())["gitVersion"] == "v1.36.3+kubelite"


async def test_a_stopped_server_can_be_started_again_with_its_objects() -> None:
    async with KubeLite() as server:
        async with aiohttp.ClientSession(server.url, headers=server.headers) as session:
            await _create(session, "a")
        await server.stop()
        await server.start()
        async with (
            aiohttp.ClientSession(server.url, headers=server.headers) as session,
            session.get(f"{_MAPS}/a") as response,
        ):
            assert response.status == 200


async def test_stopping_ends_watches() -> None:
    server = KubeLite()
    await server.start()
    async with (
        aiohttp.ClientSession(server.url, headers=server.headers) as session,
        session.get(_MAPS, params={"watch": "true"}) as stream,
    ):
        assert server.watches == 1
        await server.stop()
        assert await asyncio.wait_for(stream.content.read(), 5) == b""


async def test_a_watch_ends_when_its_client_disconnects() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url, headers=server.headers) as session:
        async with session.get(_MAPS, params={"watch": "true"}):
            assert server.watches == 1
        async with asyncio.timeout(5):
            while server.watches:  # noqa: ASYNC110  there is no event to wait for
                await asyncio.sleep(0.01)


async def test_a_body_too_large_is_refused() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url, headers=server.headers) as session:
        body = {"metadata": {"name": "a"}, "data": {"k": "x" * (3 * 1024 * 1024)}}
        data, headers = io.BytesIO(json.dumps(body).encode()), {"Content-Type": "application/json"}
        async with session.post(_MAPS, data=data, headers=headers) as response:
            assert response.status == 413
            assert (await response.json())["reason"] == "RequestEntityTooLarge"


async def test_a_busy_server_deletes_old_events(kubelite: KubeLite) -> None:
    collector = GarbageCollector(
        kubelite.objects, kubelite.deletion, kubelite.registry, timedelta(seconds=-5), sweep_seconds=0.05
    )
    events = kubelite.store.collection("events").entries
    storage = DirectStorage(kubelite)
    storage.put([{"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"}}])
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}
    task = asyncio.create_task(collector.run())
    try:
        async with asyncio.timeout(30):
            number = 0
            while events:
                number += 1
                meta = {"name": f"m-{number}", "namespace": "default", "ownerReferences": [owner]}
                storage.put([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}])
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_watch_shows_more_objects_than_the_window_holds() -> None:
    async with (
        KubeLite(window=5) as server,
        aiohttp.ClientSession(server.url, headers=server.headers) as session,
    ):
        for number in range(30):
            await _create(session, f"m{number:02}")
        async with session.get(_MAPS, params={"watch": "true", "resourceVersion": "0"}) as stream:
            events = [json.loads(await stream.content.readline()) for _ in range(30)]
        assert [event["type"] for event in events] == ["ADDED"] * 30


_BOMB = "".join(f"l{at + 1}: &l{at + 1} [*l{at}, *l{at}, *l{at}, *l{at}]\n" for at in range(12))


@pytest.mark.parametrize("body", ["l0: &l0 [x]\n" + _BOMB, "a: &a [*a]\n"], ids=["many", "endless"])
async def test_yaml_with_excessive_aliasing_is_refused(body: str) -> None:
    headers = {"Content-Type": "application/apply-patch+yaml"}
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n"
    async with (
        KubeLite() as server,
        aiohttp.ClientSession(server.url, headers={**server.headers, **headers}) as session,
        session.patch(f"{_MAPS}/m?fieldManager=me", data=head + body) as response,
    ):
        assert response.status == 400
        assert "excessive aliasing" in (await response.json())["message"]


async def test_a_failed_start_releases_everything() -> None:
    async with KubeLite() as first:
        port = int(first.url.rpartition(":")[2])
        before = asyncio.all_tasks()
        with pytest.raises(OSError, match="in use"):
            await KubeLite(port=port).start()
        assert asyncio.all_tasks() == before
    async with KubeLite(port=port):
        pass


async def test_a_namespace_deleted_during_webhook_calls_refuses_the_object(kubelite: KubeLite) -> None:
    namespaces = kubelite.registry.find("", "v1", "namespaces")
    maps = kubelite.registry.find("", "v1", "configmaps")
    assert namespaces is not None
    assert maps is not None
    namespace = await kubelite.objects.create(namespaces, "", {"metadata": {"name": "short"}}, WriteContext())

    class DeletesNamespace:
        """Delete the namespace during validation."""

        async def mutate(
            self,
            operation: str,
            kind: Kind,
            item: Json,
            old: Json | None,
            context: WriteContext,
            subresource: str,
        ) -> Json:
            return item

        async def validate(
            self,
            operation: str,
            kind: Kind,
            item: Json | None,
            old: Json | None,
            context: WriteContext,
            subresource: str,
        ) -> None:
            kubelite.store.remove("namespaces", namespace)

    objects = Objects(kubelite.store, kubelite.registry, DeletesNamespace())
    with pytest.raises(ApiError, match='namespaces "short" not found'):
        await objects.create(maps, "short", {"metadata": {"name": "m"}}, WriteContext())
    assert ("short", "m") not in kubelite.store.collection(maps.collection).entries
