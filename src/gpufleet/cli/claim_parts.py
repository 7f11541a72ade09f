"""Give the server its routes about claims and leases, read from each cluster's Kubernetes API when asked."""

from gpufleet.api.claims import ClaimBook, claim_routes
from gpufleet.cli.parts import Parts
from gpufleet.settings import KubernetesSettings
from gpufleet.sources.kubernetes.claims import ClaimDesk


async def add_claim_routes(parts: Parts) -> None:
    """Claims, leases and explanations of the clusters that are on Kubernetes."""
    books: dict[str, ClaimBook] = {}
    for name, client in parts.followed.items():
        settings = parts.settings.clusters[name][KubernetesSettings]
        books[name] = ClaimDesk(client, settings.lease_namespace)
    parts.routes += claim_routes(parts.clusters, books)
