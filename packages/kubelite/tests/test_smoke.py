"""The example of the README, and the shortest use of the server."""

import re
from pathlib import Path
from typing import Any

import aiohttp

from kubelite import KubeLite


async def test_an_object_created_is_watched_and_read() -> None:
    async with KubeLite() as server, aiohttp.ClientSession(server.url, headers=server.headers) as session:
        path = "/api/v1/namespaces/default/configmaps"
        async with session.post(path, json={"metadata": {"name": "a"}, "data": {"k": "v"}}) as response:
            assert response.status == 201
            created = await response.json()
        async with session.get(f"{path}/a") as response:
            assert await response.json() == created
        async with session.get(path, params={"watch": "true"}) as stream:
            line = await stream.content.readline()
        assert b'"type":"ADDED"' in line


async def test_the_example_of_the_readme_works() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    example = readme.partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {}
    exec(example, namespace)
    await namespace["test_a_config_map_is_stored"]()


def test_kubelite_does_not_import_gpufleet() -> None:
    package = Path(__file__).parents[1]
    imports = re.compile(r"^\s*(import|from) gpufleet\b", re.MULTILINE)
    assert not [path for path in package.rglob("*.py") if imports.search(path.read_text())]
