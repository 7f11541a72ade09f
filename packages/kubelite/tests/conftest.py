"""An embedded server for each test, and the contract's view of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from e2e.contract.server import Api, Server
from e2e.contract.tools import find_kubectl

from kubelite import KubeLite


@pytest.fixture
async def kubelite() -> AsyncIterator[KubeLite]:
    """A running embedded server."""
    async with KubeLite() as server:
        yield server


@pytest.fixture
async def api(kubelite: KubeLite, tmp_path: Path) -> AsyncIterator[Api]:
    """The contract's client, in a namespace of the test's own."""
    kubeconfig = tmp_path / "kubeconfig"
    kubelite.write_kubeconfig(kubeconfig)
    server = Server(kubelite.url, kubeconfig, find_kubectl(), {})
    async with aiohttp.ClientSession() as session:
        api = Api(server, "contract", session)
        (await api.post("/api/v1/namespaces", {"metadata": {"name": "contract"}})).ok(201)
        yield api
