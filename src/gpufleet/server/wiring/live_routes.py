"""Give the server its routes and numbers over the clusters that are open."""

import asyncio
import secrets
import time

from gpufleet.errors import SettingsError, StoreUnavailable
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import AuthSettings, MetricsSettings, Settings, StoreSettings
from gpufleet.server.auth.workload_tokens import WorkloadTokens, read_key
from gpufleet.server.fleet_metrics import FleetMetrics
from gpufleet.server.routes.clusters import cluster_routes
from gpufleet.server.routes.events import event_routes
from gpufleet.server.routes.gpus import gpu_routes
from gpufleet.server.routes.nodes import node_routes
from gpufleet.server.routes.training import training_routes
from gpufleet.server.routes.workload_metrics import workload_metric_routes
from gpufleet.server.routes.workloads import workload_routes
from gpufleet.server.wiring.components import Components

KEY_FILE = "workload-tokens.key"
_FORGET_EVERY = 3600.0
_log = get_logger("api")


async def add_live_routes(parts: Components) -> None:
    """Clusters, workloads, GPUs, nodes, the stream of changes, training numbers in, counts for Prometheus."""
    clusters = parts.clusters
    parts.workload_tokens = workload_tokens(parts.settings)
    parts.routes += [
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters),
        *training_routes(clusters, parts.store.training, parts.workload_tokens),
        *gpu_routes(clusters),
        *node_routes(clusters),
        *event_routes(clusters, parts.lifecycle),
    ]
    parts.metrics.registry.register(FleetMetrics(clusters))
    parts.background.start("forgetting old training numbers", lambda: _forget(parts))


def workload_tokens(settings: Settings) -> WorkloadTokens:
    """The tokens of workloads; where nobody logs in, none is ever looked at."""
    auth = settings[AuthSettings]
    if auth.workload_key_file is not None:
        return WorkloadTokens(read_key(auth.workload_key_file, make=False))
    if auth.tokens_file or auth.token_review:
        try:
            return WorkloadTokens(read_key(settings[StoreSettings].data / KEY_FILE, make=True))
        except SettingsError as error:
            _log.warning("tokens of workloads end with this process", reason=str(error))
    return WorkloadTokens(secrets.token_bytes(32))


async def _forget(parts: Components) -> None:
    """Old training numbers, also of clusters whose readings Prometheus keeps."""
    clusters = parts.settings.clusters.items()
    keep = {name: settings[MetricsSettings].training_retention for name, settings in clusters}
    while True:
        try:
            await parts.store.training.prune(keep, time.time())
        except StoreUnavailable as error:
            parts.metrics.store_error("prune training")
            _log.warning("old training numbers not forgotten", reason=str(error))
        await asyncio.sleep(_FORGET_EVERY)
