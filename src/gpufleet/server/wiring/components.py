"""What the steps that put a server together hand to each other."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from litestar.types import ControllerRouterHandler

from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes import KubeClient
from gpufleet.runtime.background import Background
from gpufleet.runtime.settings import Settings
from gpufleet.server.auth.caller import Probe, TokenReviewer
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route
from gpufleet.server.metrics import ServerMetrics
from gpufleet.store import Store


@dataclass
class Components:
    """What the steps have opened so far."""

    settings: Settings
    closing: AsyncExitStack
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    routes: list[Route] = field(default_factory=list)
    pages: list[ControllerRouterHandler] = field(default_factory=list)
    """Static files of the dashboard; public."""
    probes: dict[str, Probe] = field(default_factory=dict)
    counts: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Sizes of queues and caches, shown on /debug/vars."""
    kubernetes: KubeClient | None = None
    followed: dict[str, KubeClient] = field(default_factory=dict)
    """By cluster: the Kubernetes API that it is read from, where it is."""
    reviewer: TokenReviewer | None = None
    simulated: bool = False
    visible: dict[str, Callable[[], bool]] = field(default_factory=dict)
    """By cluster: whether its picture is up to date."""
    store: Store = field(init=False)
    """There once `open_database` has run."""
    clusters: Clusters = field(init=False)
    """There once `open_clusters` has run."""
    workload_tokens: WorkloadTokens | None = None
    background: Background = field(init=False)
    """There once `open_clusters` has run; ends before the clusters and the store are closed."""


Step = Callable[[Components], Awaitable[None]]
