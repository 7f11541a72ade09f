"""The contract's view of the real control plane."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from e2e.cluster import Cluster
from e2e.contract.server import Api, Server


@pytest.fixture
async def api(cluster: Cluster, namespace: str) -> AsyncIterator[Api]:
    """The contract's client, in a namespace of the test's own."""
    admin = cluster.admin
    kubectl = cluster.binaries.kubectl
    server = Server(cluster.url, admin.kubeconfig, kubectl, admin.headers(), admin.ssl_context())
    async with aiohttp.ClientSession() as session:
        yield Api(server, namespace, session)
    # TLS says goodbye in turns of the loop; one that ends before leaves its sockets open.
    await asyncio.sleep(0.05)
