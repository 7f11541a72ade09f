"""Make the OpenAPI document of a server from its routes, without a database or a cluster.

Routes are declared by functions over the components that answer them. A description calls none of these, so stubs
stand for the components.

python -m dashboard.tools.openapi FILE    # writes the document to FILE, unless it has it already
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from gpufleet.runtime.settings import Settings
from gpufleet.runtime.settings.groups import GROUPS
from gpufleet.server.app import Api, create_app
from gpufleet.server.http.routing import Route
from gpufleet.server.wiring.routes import add_routes


def openapi_document() -> dict[str, Any]:
    """Return the document of a server with default settings."""
    document: dict[str, Any] = json.loads(asyncio.run(_served()))
    return document


async def _served() -> bytes:
    """Return what a server with default settings answers to `/openapi.json`."""
    settings = Settings({cls: cls() for cls in GROUPS.values()})
    components = MagicMock(settings=settings, kubernetes_sources={}, accounts=[], routes=[])
    add_routes(components)
    routes = [each for each in create_app(Api(routes=components.routes)).routes if isinstance(each, Route)]
    [route] = [route for route in routes if route.path == "/openapi.json"]
    answer = await route.handler()
    return bytes(answer.body)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    document = asyncio.run(_served())
    if not target.exists() or target.read_bytes() != document:
        target.write_bytes(document)
