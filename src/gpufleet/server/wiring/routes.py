"""Add the routes over the open clusters, and the metrics that count their nodes and GPUs."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from gpufleet.accounting.current_hour import CurrentHour
from gpufleet.errors import SettingsError, StoreUnavailable
from gpufleet.fleet.changes import Change
from gpufleet.fleet.stragglers import StragglerWatch
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import (
    AccountingSettings,
    AuthSettings,
    Settings,
    StoreSettings,
    TrainingSettings,
)
from gpufleet.server.auth.workload_tokens import WorkloadTokens, read_key
from gpufleet.server.claim_view import ClaimView, WatchedState
from gpufleet.server.dashboard import dashboard_routes
from gpufleet.server.fleet_metrics import FleetMetrics
from gpufleet.server.http.answers import Prepared
from gpufleet.server.routes.accounting.aggregation import aggregation_routes
from gpufleet.server.routes.accounting.focus import focus_routes
from gpufleet.server.routes.accounting.forecast import forecast_routes
from gpufleet.server.routes.accounting.namespace_use import namespace_use_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.events import event_routes
from gpufleet.server.routes.live.gpu_list import gpu_list_routes
from gpufleet.server.routes.live.gpu_map import PreparedMaps, gpu_map_routes
from gpufleet.server.routes.live.gpus import PreparedMetrics, gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.occupancy import occupancy_routes
from gpufleet.server.routes.live.stragglers import straggler_routes
from gpufleet.server.routes.live.team_occupancy import team_occupancy_routes
from gpufleet.server.routes.live.training import training_routes
from gpufleet.server.routes.live.workload_metrics import workload_metric_routes
from gpufleet.server.routes.live.workload_objects import workload_object_routes
from gpufleet.server.routes.live.workloads import workload_routes
from gpufleet.server.routes.scheduling.claims import claim_routes
from gpufleet.server.routes.scheduling.fault_costs import costs_of, fault_cost_routes
from gpufleet.server.routes.scheduling.faults import fault_routes
from gpufleet.server.routes.scheduling.fit import fit_routes
from gpufleet.server.routes.scheduling.queues import queue_routes
from gpufleet.server.routes.scheduling.waiting import waiting_routes
from gpufleet.server.start_times import StartTimes
from gpufleet.server.wiring.accounting import currency_of
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.login import has_login, object_access
from gpufleet.server.wiring.straggler_alerts import start_straggler_alerts
from gpufleet.store.training import TrainingStore

KEY_FILE = "workload-tokens.key"
_STRAGGLERS_EVERY = 15.0
_STEPS_OF = 86_400.0
"""Seconds after which a job without steps no longer counts as one that reports them."""
_log = get_logger("api")


def add_routes(components: Components) -> None:
    """Add all routes, the pages of the dashboard and the fleet's metrics."""
    clusters, store = components.clusters, components.store
    components.workload_tokens = workload_tokens(components.settings)
    sources = components.kubernetes_sources.items()
    claim_views = {name: ClaimView(WatchedState(source).read) for name, source in sources}
    watches = {cluster.name: StragglerWatch(cluster.fleet) for cluster in clusters}
    start_times = {
        name: StartTimes(
            name,
            claim_views[name].ledger,
            partial(store.allocation_periods.latest, name),
            store.start_calibrations,
            source.gpu_queues.cache.__iter__,
        )
        for name, source in sources
    }
    currency = partial(currency_of, components.settings)
    metrics_answers: PreparedMetrics = {}
    map_answers: PreparedMaps = {}
    queues: list[deque[Change]] = []
    components.debug_counts |= {
        "event_queues": lambda: {"clients": len(queues), "changes": sum(map(len, queues))},
        "prepared_answers": lambda: {
            "gpu_metrics": _sizes(metrics_answers.values()),
            "gpu_map": _sizes(map_answers.values()),
        },
    }
    components.routes += [
        *aggregation_routes(
            store,
            clusters.default.name,
            currency_of=currency,
            current={each.recorder.cluster: CurrentHour(each, store) for each in components.accounts},
        ),
        *report_routes(
            store,
            clusters.default.name,
            currency_of=currency,
            faults={
                name: partial(costs_of, source) for name, source in components.kubernetes_sources.items()
            },
        ),
        *namespace_use_routes(
            store,
            clusters.default.name,
            {name: own[AccountingSettings].prices for name, own in components.settings.clusters.items()},
            currency_of=currency,
        ),
        *focus_routes(store, clusters.default.name, currency),
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters, store.allocation_periods),
        *workload_object_routes(
            clusters, {name: source.workload_objects for name, source in sources}, object_access(components)
        ),
        *training_routes(
            clusters, store.training, components.workload_tokens, components.settings[TrainingSettings]
        ),
        *gpu_routes(clusters, metrics_answers),
        *gpu_map_routes(clusters, map_answers),
        *node_routes(clusters),
        *gpu_list_routes(clusters),
        *occupancy_routes(clusters, store.allocation_periods),
        *team_occupancy_routes(clusters, store.allocation_periods),
        *event_routes(clusters, components.lifecycle, queues=queues),
        *queue_routes(clusters, {name: source.gpu_queues.cache.__iter__ for name, source in sources}),
        *fault_cost_routes(clusters, components.kubernetes_sources),
        *fault_routes(clusters, components.kubernetes_sources, watches),
        *straggler_routes(clusters, watches),
        *claim_routes(clusters, claim_views, start_times),
        *waiting_routes(clusters, start_times),
        *fit_routes(clusters, claim_views, start_times),
        *forecast_routes(store, clusters.default.name),
    ]
    components.routes += dashboard_routes()
    components.metrics.registry.register(FleetMetrics(clusters))
    components.background.start("stragglers", lambda: _watch_stragglers(watches.values(), store.training))
    start_straggler_alerts(components, watches)


def workload_tokens(settings: Settings) -> WorkloadTokens:
    """Return the tokens of workloads, with a key that lasts if the server has a login."""
    auth = settings[AuthSettings]
    if auth.workload_key_file is not None:
        return WorkloadTokens(read_key(auth.workload_key_file, make=False))
    if has_login(settings):
        try:
            return WorkloadTokens(read_key(settings[StoreSettings].data / KEY_FILE, make=True))
        except SettingsError as error:
            _log.warning("workload_tokens_end_with_process", error=str(error))
    return WorkloadTokens(secrets.token_bytes(32))


async def _watch_stragglers(watches: Iterable[StragglerWatch], training: TrainingStore) -> None:
    """Compare the GPUs and ranks of each job about as often as they are read."""
    while True:
        for watch in watches:
            now = time.time()
            try:
                progress = await training.progress(watch.jobs(), now - _STEPS_OF)
            except StoreUnavailable as error:
                _log.warning("steps_not_read", error=str(error))
                progress = {}
            for _ in watch.check_steps(now, progress):
                await asyncio.sleep(0)
        await asyncio.sleep(_STRAGGLERS_EVERY)


def _sizes(answers: Iterable[tuple[object, Prepared[Any]]]) -> dict[str, int]:
    sizes = [len(prepared.encoded) for _, prepared in answers]
    return {"answers": len(sizes), "bytes": sum(sizes)}
