"""Give the server its routes about claims and leases, read from each cluster's Kubernetes API when asked."""

import os

from gpufleet.api.claims import ClaimBook, claim_routes
from gpufleet.cli.cluster_parts import names_an_api
from gpufleet.cli.parts import Parts
from gpufleet.kube import KubeClient
from gpufleet.settings import KubernetesSettings
from gpufleet.sources.kubernetes.claims import ClaimDesk


async def add_claim_routes(parts: Parts) -> None:
    """Claims, leases and explanations."""
    books: dict[str, ClaimBook] = {}
    for name, settings in parts.settings.clusters.items():
        kube = settings[KubernetesSettings]
        if names_an_api(kube, os.environ):
            client = await parts.closing.enter_async_context(KubeClient.from_settings(kube))
            books[name] = ClaimDesk(client, kube.lease_namespace)
    parts.routes += claim_routes(parts.clusters, books)
