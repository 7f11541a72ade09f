"""Open the clusters of a server: each with its fleet, its metric source and the sources that fill it.

The sources run in the background. The server starts to answer when every source has synced or
failed, or after `SYNC_TIMEOUT`: an unreachable API server makes the service degraded, not dead.
Accounting of a cluster starts when all of its sources have synced, because a pod that is not
listed yet must not count as ended.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpufleet.errors import KubernetesUnavailable, MetricsUnavailable
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.exporters.scraping import AgentScraper
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.metric_nodes import MetricNodes
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.fleet.workloads.teams import TEAM_KEYS, USER_KEYS
from gpufleet.kubernetes import NODES, PODS, KubeClient
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.background import Background
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import (
    AccountingSettings,
    KubernetesSettings,
    MetricsSettings,
    ReportSettings,
    Settings,
)
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.polled_sources import (
    NAMES,
    PolledSource,
    open_sources,
    probe_sources,
    start_sources,
)
from gpufleet.sources.kubernetes import KubernetesSource, kind_of
from gpufleet.store import lead

SYNC_TIMEOUT = 30.0
"""Seconds to wait for the sources before the server answers with incomplete data."""

NAMESPACE_SHARE = 0.75
"""The part of `kubernetes.max_cache_bytes` that objects of one namespace may use."""

_NODES, _PODS = kind_of(NODES), kind_of(PODS)
_log = get_logger("clusters")


@dataclass(frozen=True)
class OpenCluster:
    """A cluster and the sources that fill it."""

    cluster: Cluster
    kubernetes: KubernetesSource | None
    polled: tuple[PolledSource, ...] = ()
    scraper: AgentScraper | None = None
    """Reads the agents, where no Prometheus does."""


async def open_clusters(components: Components) -> None:
    """Open every cluster of the settings and start its sources."""
    settings = components.settings.clusters
    opened = [await _open(name, own, components) for name, own in settings.items()]
    components.clusters = Clusters([each.cluster for each in opened])
    components.background = await components.exit_stack.enter_async_context(Background())
    for each in opened:
        _start(each, components, settings[each.cluster.name])
        components.up_to_date[each.cluster.name] = partial(_up_to_date, each)
    components.probes["metrics"] = lambda: _probe_metrics(opened)
    if components.kubernetes_sources:
        components.probes["kubernetes"] = lambda: _probe_kubernetes(components.kubernetes_sources)
    for name in NAMES:
        if sources := [(each.cluster.name, s) for each in opened for s in each.polled if s.name == name]:
            components.probes[name] = probe_sources(name, sources)
    components.debug_counts |= {
        "background": components.background.running,
        "reflector_caches": lambda: {
            name: source.cached() for name, source in components.kubernetes_sources.items()
        },
        "reading_caches": lambda: {
            cluster.name: cluster.metrics.cache_counts()
            for cluster in components.clusters
            if isinstance(cluster.metrics, PrometheusSource)
        },
        "readings": lambda: {each.name: len(each.fleet.gpu_columns.readings) for each in components.clusters},
    }
    components.lifecycle.nothing_known = partial(_nothing_known, components.clusters)
    await asyncio.gather(*(_first_sync(each) for each in opened))


async def _open(name: str, settings: Settings, components: Components) -> OpenCluster:
    store, exit_stack = components.store, components.exit_stack
    fleet = Fleet(name, simulated=components.simulated)
    metrics_settings, kube = settings[MetricsSettings], settings[KubernetesSettings]
    metrics: MetricSource
    if metrics_settings.url:
        metrics = await exit_stack.enter_async_context(
            PrometheusSource(metrics_settings, pushed=store.training)
        )
    else:
        metrics = EmbeddedMetrics(name, store.readings, store.training, metrics_settings)
    polled = open_sources(settings, fleet, metrics)
    kubernetes = scraper = None
    # A cluster with other sources uses Kubernetes only if its settings say so.
    if has_kubernetes(kube, {} if polled else os.environ):
        client = await exit_stack.enter_async_context(
            KubeClient.from_settings(kube, _annotations(settings), NAMESPACE_SHARE)
        )
        kubernetes = components.kubernetes_sources[name] = KubernetesSource(
            client, fleet, lease_namespace=kube.lease_namespace, fault_taints=kube.fault_taints
        )
        # The readings of a simulated fleet are simulated, too.
        if (
            isinstance(metrics, EmbeddedMetrics)
            and metrics_settings.scrape_agents
            and not components.simulated
        ):
            scraper = AgentScraper(client, kube.lease_namespace, metrics, metrics_settings)
    only_metrics = bool(metrics_settings.url) and kubernetes is None and not polled
    cluster = Cluster(
        name,
        fleet,
        Listing(fleet),
        metrics,
        unsynced_reason=(
            partial(_unread_reason, metrics)
            if only_metrics
            else partial(_unsynced_reason, kubernetes, polled)
        ),
        metric_nodes=MetricNodes(fleet) if only_metrics else None,
    )
    return OpenCluster(cluster, kubernetes, polled, scraper)


def _annotations(settings: Settings) -> frozenset[str]:
    """Return the annotations that the settings, the teams and the users are read from."""
    grouped = settings[ReportSettings].group_by
    named = {grouped.removeprefix("annotation:")} if grouped.startswith("annotation:") else set()
    return frozenset((*TEAM_KEYS, *USER_KEYS, *settings[AccountingSettings].annotation_keys, *named))


def has_kubernetes(settings: KubernetesSettings, environ: Mapping[str, str]) -> bool:
    """Return whether there is a Kubernetes API: from the settings, the pod's own, or kubectl's default."""
    return bool(
        settings.kubeconfig is not None
        or settings.context
        or "KUBERNETES_SERVICE_HOST" in environ
        or ("HOME" in environ and (Path(environ["HOME"]) / ".kube" / "config").is_file())
    )


def _start(opened: OpenCluster, components: Components, settings: Settings) -> None:
    cluster, kubernetes, background = opened.cluster, opened.kubernetes, components.background
    metrics, name, refresh = components.metrics, opened.cluster.name, settings[MetricsSettings].refresh
    if kubernetes is not None:
        background.start("kubernetes", kubernetes.run, cluster=name)
        metrics.age("kubernetes", name, lambda: _lag(kubernetes))
        metrics.failures("kubernetes", name, kubernetes.failures)
    if (scraper := opened.scraper) is not None:
        leadership = partial(components.store.leadership, f"agents of {name}")
        background.start("agents", lambda: lead(leadership, scraper.run), cluster=name)
        metrics.failures("agents", name, lambda: scraper.failures)
    start_sources(cluster, opened.polled, components)
    refreshed, failed = (
        partial(report, "readings", name) for report in (metrics.refreshed, metrics.source_error)
    )
    background.start("readings", lambda: cluster.refresh_readings(refresh, refreshed, failed), cluster=name)
    background.start("changes", cluster.publish_changes, cluster=name)
    background.once("accounting_start", _start_accounting(opened), cluster=name)


async def _start_accounting(opened: OpenCluster) -> None:
    """Start the allocation periods once all sources have synced."""
    if opened.kubernetes is not None:
        await opened.kubernetes.synced()
    for source in opened.polled:
        await source.polling.synced()
    # Prices depend on GPU models, which only the metric source may know.
    await opened.cluster.readings_tried.wait()
    for _ in opened.cluster.fleet.start_accounting_steps():
        await asyncio.sleep(0)  # serve requests between two steps
    _log.info("cluster_synced", cluster=opened.cluster.name, nodes=len(opened.cluster.fleet.views()))


async def _first_sync(opened: OpenCluster) -> None:
    """Wait until every source has synced or failed, at most for `SYNC_TIMEOUT`."""
    kubernetes = opened.kubernetes
    synced = asyncio.ensure_future(kubernetes.synced() if kubernetes is not None else asyncio.sleep(0))
    try:
        async with asyncio.timeout(SYNC_TIMEOUT):
            while not synced.done() and not (kubernetes is not None and _problem(kubernetes)):
                await asyncio.wait([synced], timeout=0.05)
            for source in opened.polled:
                await source.polling.first_attempt()
            if opened.cluster.metric_nodes is not None:
                await opened.cluster.readings_tried.wait()
    except TimeoutError:
        _log.warning("cluster_not_synced", cluster=opened.cluster.name, waited_s=SYNC_TIMEOUT)
    finally:
        synced.cancel()
    # In steps here, because the first request would do it in one.
    for _ in opened.cluster.fleet.refresh_steps():
        await asyncio.sleep(0)


def _nothing_known(clusters: Clusters) -> str:
    """Return why no cluster is synced yet; empty once one is. The others answer requests with the reason."""
    reasons = [
        f"cluster {each.name}: {each.unsynced_reason()}" for each in clusters if each.unsynced_reason()
    ]
    return "; ".join(reasons) if len(reasons) == len(list(clusters)) else ""


def _unsynced_reason(kubernetes: KubernetesSource | None, polled: Sequence[PolledSource]) -> str:
    """Return why no source has synced yet; empty once one has, and for a cluster without sources."""
    reasons = []
    if kubernetes is not None:
        if kubernetes.has_synced:
            return ""
        reasons.append(_problem(kubernetes) or "its nodes and pods are being read")
    for source in polled:
        if source.polling.succeeded is not None:
            return ""
        reasons.append(source.polling.problem or f"{source.name} is being read")
    return "; ".join(reasons)


def _unread_reason(metrics: MetricSource) -> str:
    """Return why the metric source, the only source of the cluster, was never read; empty once it was."""
    health = metrics.health()
    if health.last_success is not None:
        return ""
    return health.last_error or "the metric source is being read"


def _problem(source: KubernetesSource) -> str:
    """Return why nodes or pods can't be watched; empty if they are."""
    states = source.states()
    return states[_NODES].error or states[_PODS].error


def _up_to_date(opened: OpenCluster) -> bool:
    kubernetes = opened.kubernetes
    return opened.cluster.fleet.accounting_started and not (kubernetes is not None and _problem(kubernetes))


def _lag(source: KubernetesSource) -> float:
    """Return for how many seconds changes of nodes or pods may be missing."""
    states = source.states()
    return max(states[_NODES].lag, states[_PODS].lag)


async def _probe_kubernetes(sources: Mapping[str, KubernetesSource]) -> str:
    summaries = {}
    for name, source in sources.items():
        if problem := _problem(source):
            raise KubernetesUnavailable(f"cluster {name}: {problem}")
        if left_out := source.left_out():
            raise KubernetesUnavailable(
                f"cluster {name}: objects of namespace {', '.join(left_out[:10])} are left out, because all objects of "
                f"a namespace together may need {NAMESPACE_SHARE:.0%} of kubernetes.max_cache_bytes"
            )
        states = source.states()
        summaries[name] = f"{states[_NODES].objects} nodes, {states[_PODS].objects} pods"
    return _joined(summaries)


async def _probe_metrics(opened: list[OpenCluster]) -> str:
    summaries = {}
    for each in opened:
        health = each.cluster.metrics.health()
        if not health.healthy:
            why = health.last_error or "nothing was read yet"
            raise MetricsUnavailable(f"cluster {each.cluster.name}: {why}")
        summaries[each.cluster.name] = f"reads {', '.join(health.exporters) or 'nothing known'}"
    return _joined(summaries)


def _joined(summaries: Mapping[str, str]) -> str:
    """Join the summaries of the clusters; a single one needs no name."""
    if len(summaries) == 1:
        return next(iter(summaries.values()))
    return "; ".join(f"{name}: {summary}" for name, summary in summaries.items())
