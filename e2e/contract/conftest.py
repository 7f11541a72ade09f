"""A client of kubelite's contract suite for the real control plane."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from e2e.cluster import Cluster
from kubelite.contract.client import Api, Server


@pytest.fixture
async def api(cluster: Cluster, namespace: str) -> AsyncIterator[Api]:
    """Return a client of the contract suite in the test's namespace."""
    admin = cluster.admin
    kubectl = cluster.binaries.kubectl
    server = Server(cluster.url, admin.kubeconfig, kubectl, admin.headers(), admin.ssl_context())
    async with aiohttp.ClientSession() as session:
        yield Api(server, namespace, session)
    # aiohttp closes TLS connections in later iterations of the loop; without them the sockets leak.
    await asyncio.sleep(0.05)
