"""A kubelite server for each test, and a client of the contract suite for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import hypothesis
import pytest

from kubelite import KubeLite
from kubelite.contract.client import Api, Server, find_kubectl

# A pause of the machine must not fail an example.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


@pytest.fixture
async def kubelite() -> AsyncIterator[KubeLite]:
    """Start a kubelite server."""
    async with KubeLite() as server:
        yield server


@pytest.fixture
async def api(kubelite: KubeLite, tmp_path: Path) -> AsyncIterator[Api]:
    """Return a client of the contract suite in its own namespace."""
    kubeconfig = tmp_path / "kubeconfig"
    kubelite.write_kubeconfig(kubeconfig)
    server = Server(kubelite.url, kubeconfig, find_kubectl(), kubelite.headers)
    async with aiohttp.ClientSession() as session:
        api = Api(server, "contract", session)
        (await api.post("/api/v1/namespaces", {"metadata": {"name": "contract"}})).ok(201)
        yield api
