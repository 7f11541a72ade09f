"""The components of a server while `assemble` opens them."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from gpufleet.accounting.loop import AccountedCluster
from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.runtime.background import Background
from gpufleet.runtime.settings import Settings
from gpufleet.server.auth.oidc.provider import Provider
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.health import Lifecycle, Probe
from gpufleet.server.http.routing import Route
from gpufleet.server.metrics import ServerMetrics
from gpufleet.sources.kubernetes import KubernetesSource
from gpufleet.store import Store


@dataclass
class Components:
    """Everything that has been opened so far."""

    settings: Settings
    exit_stack: AsyncExitStack
    """Closes the components in reverse order when the server stops."""
    simulated: bool = False
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    routes: list[Route] = field(default_factory=list)
    probes: dict[str, Probe] = field(default_factory=dict)
    debug_counts: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Sizes of queues and caches, shown on /debug/vars."""
    kubernetes: KubeClient | None = None
    """The server's own client, for TokenReviews and SubjectAccessReviews."""
    identity_provider: Provider | None = None
    workload_tokens: WorkloadTokens | None = None
    kubernetes_sources: dict[str, KubernetesSource] = field(default_factory=dict)
    """By cluster, for the clusters on Kubernetes."""
    up_to_date: dict[str, Callable[[], bool]] = field(default_factory=dict)
    """By cluster: whether its fleet shows what its sources have now."""
    store: Store = field(init=False)
    """Set by `open_database`."""
    accounts: list[AccountedCluster] = field(default_factory=list)
    """Set by `open_accounting`."""
    clusters: Clusters = field(init=False)
    """Set by `open_clusters`."""
    background: Background = field(init=False)
    """Set by `open_clusters`; stops before the clusters and the store are closed."""
