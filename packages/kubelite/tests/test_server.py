"""What only the embedded server has: a small window, tokens, TLS, and a life beside its process."""

import asyncio
import io
import json
import ssl
import stat
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml

from kubelite import KubeLite, User
from kubelite.contract.webhooks import self_signed_certificate
from kubelite.errors import ApiError
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.objects.garbage_collector import GarbageCollector
from kubelite.objects.objects import Objects
from kubelite.storage.direct import DirectStorage

_MAPS = "/api/v1/namespaces/default/configmaps"


async def _make(session: aiohttp.ClientSession, name: str, **data: str) -> dict[str, str]:
    async with session.post(_MAPS, json={"metadata": {"name": name}, "data": data}) as answer:
        assert answer.status == 201
        metadata: dict[str, str] = (await answer.json())["metadata"]
        return metadata


async def test_a_version_that_left_the_window_is_gone() -> None:
    async with KubeLite(window=5) as server, aiohttp.ClientSession(server.url) as session:
        first = await _make(session, "a")
        for number in range(8):
            await _make(session, f"b{number}")
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


async def test_an_old_continue_token_is_gone() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url) as session:
        for number in range(4):
            await _make(session, f"a{number}")
        async with session.get(_MAPS, params={"limit": "1"}) as answer:
            token = (await answer.json())["metadata"]["continue"]
        for _ in range(70):
            async with session.get(_MAPS, params={"limit": "1"}) as answer:
                assert answer.status == 200
        async with session.get(_MAPS, params={"limit": "1", "continue": token}) as answer:
            assert answer.status == 410
            assert (await answer.json())["reason"] == "Expired"


async def test_tokens_keep_strangers_out(tmp_path: Path) -> None:
    users = {"s3cret": User("ann", ("team-a",))}
    async with KubeLite(tokens=users) as server, aiohttp.ClientSession(server.url) as session:
        async with session.get(_MAPS) as answer:
            assert answer.status == 401
        ann = {"Authorization": "Bearer s3cret"}
        async with session.get(_MAPS, headers=ann) as answer:
            assert answer.status == 200
        review = {"spec": {"token": "s3cret"}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        async with session.post(path, json=review, headers=ann) as answer:
            status = (await answer.json())["status"]
        assert status == {"authenticated": True, "user": {"username": "ann", "groups": ["team-a"]}}
        server.write_kubeconfig(tmp_path / "config")
    assert stat.S_IMODE((tmp_path / "config").stat().st_mode) == 0o600
    config = yaml.safe_load((tmp_path / "config").read_text())
    assert config["users"][0]["user"] == {"token": "s3cret"}


async def test_it_speaks_tls(tmp_path: Path) -> None:
    certificate, key = self_signed_certificate()
    chain = tmp_path / "chain.pem"
    chain.write_bytes(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    trust = ssl.create_default_context(cadata=certificate.decode())
    async with KubeLite(tls=context) as server, aiohttp.ClientSession(server.url) as session:
        assert server.url.startswith("https://")
        async with session.get("/version", ssl=trust) as answer:
            assert (await answer.json())["gitVersion"] == "v1.36.3+kubelite"


async def test_stopping_ends_watches() -> None:
    server = KubeLite()
    await server.start()
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.get(_MAPS, params={"watch": "true"}) as stream,
    ):
        reading = asyncio.create_task(stream.content.read())
        await asyncio.sleep(0.05)
        await server.stop()
        assert await asyncio.wait_for(reading, 5) == b""


async def test_a_watch_goes_with_its_client() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url) as session:
        async with session.get(_MAPS, params={"watch": "true"}):
            assert server.watches == 1
        async with asyncio.timeout(5):
            while server.watches:  # noqa: ASYNC110  the server tells nobody that a client left
                await asyncio.sleep(0.01)


async def test_a_body_too_large_is_refused() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url) as session:
        body = {"metadata": {"name": "a"}, "data": {"k": "x" * (3 * 1024 * 1024)}}
        async with session.post(_MAPS, data=io.BytesIO(json.dumps(body).encode())) as answer:
            assert answer.status == 413
            assert (await answer.json())["reason"] == "RequestEntityTooLarge"


async def test_old_events_go_from_a_server_that_never_rests(kubelite: KubeLite) -> None:
    soon = GarbageCollector(
        kubelite.objects, kubelite.deletion, kubelite.registry, timedelta(seconds=-5), sweep_seconds=0.05
    )
    events = kubelite.store.collection("events").entries
    storage = DirectStorage(kubelite)
    storage.put([{"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"}}])
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}
    work = asyncio.create_task(soon.run())
    try:
        async with asyncio.timeout(30):
            number = 0
            while events:
                number += 1
                meta = {"name": f"m-{number}", "namespace": "default", "ownerReferences": [owner]}
                storage.put([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}])
                await asyncio.sleep(0.01)
    finally:
        work.cancel()
        await asyncio.wait([work])


async def test_a_watch_shows_more_objects_than_the_window_holds() -> None:
    async with KubeLite(window=5) as server, aiohttp.ClientSession(server.url) as session:
        for number in range(30):
            await _make(session, f"m{number:02}")
        async with session.get(_MAPS, params={"watch": "true", "resourceVersion": "0"}) as stream:
            events = [json.loads(await stream.content.readline()) for _ in range(30)]
        assert [event["type"] for event in events] == ["ADDED"] * 30


_BOMB = "".join(f"l{at + 1}: &l{at + 1} [*l{at}, *l{at}, *l{at}, *l{at}]\n" for at in range(12))


@pytest.mark.parametrize("body", ["l0: &l0 [x]\n" + _BOMB, "a: &a [*a]\n"], ids=["many", "endless"])
async def test_yaml_that_stands_for_more_than_it_says_is_refused(body: str) -> None:
    headers = {"Content-Type": "application/apply-patch+yaml"}
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n"
    async with (
        KubeLite() as server,
        aiohttp.ClientSession(server.url, headers=headers) as session,
        session.patch(f"{_MAPS}/m?fieldManager=me", data=head + body) as answer,
    ):
        assert answer.status == 400
        assert "excessive aliasing" in (await answer.json())["message"]


async def test_a_server_that_can_not_listen_leaves_nothing_behind() -> None:
    async with KubeLite() as first:
        port = int(first.url.rpartition(":")[2])
        before = asyncio.all_tasks()
        with pytest.raises(OSError, match="in use"):
            await KubeLite(port=port).start()
        assert asyncio.all_tasks() == before
    async with KubeLite(port=port):
        pass


async def test_nothing_is_made_in_a_namespace_that_went_while_webhooks_were_asked(kubelite: KubeLite) -> None:
    spaces = kubelite.registry.find("", "v1", "namespaces")
    maps = kubelite.registry.find("", "v1", "configmaps")
    assert spaces is not None
    assert maps is not None
    space = await kubelite.objects.create(spaces, "", {"metadata": {"name": "short"}}, WriteContext())

    class Slow:
        """Lets everything pass, after the namespace has gone."""

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
            kubelite.store.remove("namespaces", space)

    slow = Objects(kubelite.store, kubelite.registry, Slow())
    with pytest.raises(ApiError, match='namespaces "short" not found'):
        await slow.create(maps, "short", {"metadata": {"name": "m"}}, WriteContext())
    assert ("short", "m") not in kubelite.store.collection(maps.collection).entries
