"""The shortest use of an embedded server."""

import aiohttp

from kubelite import KubeLite


async def test_an_object_created_is_watched_and_read() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url) as session:
        path = "/api/v1/namespaces/default/configmaps"
        async with session.post(path, json={"metadata": {"name": "a"}, "data": {"k": "v"}}) as answer:
            assert answer.status == 201
            created = await answer.json()
        async with session.get(f"{path}/a") as answer:
            assert await answer.json() == created
        async with session.get(path, params={"watch": "true"}) as stream:
            line = await stream.content.readline()
        assert b'"type":"ADDED"' in line
