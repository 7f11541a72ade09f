"""Give the server its routes about claims and leases, read from each cluster's Kubernetes API when asked."""

from gpufleet.runtime.settings import KubernetesSettings
from gpufleet.server.claim_view import KubernetesClaimView
from gpufleet.server.routes.claims import ClaimView, claim_routes
from gpufleet.server.wiring.components import Components


async def add_claim_routes(parts: Components) -> None:
    """Claims, leases and explanations of the clusters that are on Kubernetes."""
    books: dict[str, ClaimView] = {}
    for name, client in parts.followed.items():
        settings = parts.settings.clusters[name][KubernetesSettings]
        books[name] = KubernetesClaimView(client, settings.lease_namespace)
    parts.routes += claim_routes(parts.clusters, books)
