"""Open the clusters of a server: for each its picture, its metric source and its sources.

A source fills the picture in the background. The server starts to answer when all have told what
there is, or have said why they can't, or after `PATIENCE`: an API server that is away makes the
service degraded, not dead. Holding periods are written from the moment at which a cluster's sources
are all heard, so that a pod which is merely not listed yet doesn't end.
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
from gpufleet.fleet.clusters import Cluster, Clusters, RefreshLog
from gpufleet.fleet.listing import Listing
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import NODES, PODS, KubeClient
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.background import Background
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import KubernetesSettings, MetricsSettings, Settings
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.machine_sources import (
    KINDS,
    MachineSource,
    follow_machines,
    open_machines,
    probe_machines,
)
from gpufleet.sources.kubernetes import KubernetesSource, kind_of

PATIENCE = 30.0
"""Seconds that the server waits for the first full picture before it answers without."""

_NODES, _PODS = kind_of(NODES), kind_of(PODS)
_log = get_logger("clusters")


@dataclass(frozen=True)
class FollowedCluster:
    """A cluster and what fills it."""

    cluster: Cluster
    kubernetes: KubernetesSource | None
    machines: tuple[MachineSource, ...] = ()


async def open_clusters(parts: Components) -> None:
    """Every cluster of the settings, followed in the background."""
    opened = [await _open(name, settings, parts) for name, settings in parts.settings.clusters.items()]
    parts.clusters = Clusters([each.cluster for each in opened])
    parts.background = await parts.closing.enter_async_context(Background())
    for each in opened:
        _follow(each, parts, parts.settings.clusters[each.cluster.name])
        parts.visible[each.cluster.name] = partial(_visible, each)
    parts.probes["metrics"] = lambda: _probe_metrics(opened)
    if any(each.kubernetes for each in opened):
        parts.probes["kubernetes"] = lambda: _probe_kubernetes(opened, parts.metrics)
    for kind in KINDS:
        if followed := [(e.cluster.name, m) for e in opened for m in e.machines if m.name == kind]:
            parts.probes[kind] = probe_machines(kind, followed)
    parts.counts["background"] = parts.background.running
    await asyncio.gather(*(_first_picture(each) for each in opened))


async def _open(name: str, settings: Settings, parts: Components) -> FollowedCluster:
    store, closing = parts.store, parts.closing
    fleet = Fleet(name, simulated=parts.simulated)
    metrics_settings, kube = settings[MetricsSettings], settings[KubernetesSettings]
    metrics: MetricSource
    if metrics_settings.url:
        metrics = await closing.enter_async_context(PrometheusSource(metrics_settings, pushed=store.training))
    else:
        metrics = EmbeddedMetrics(name, store.readings, store.training, metrics_settings)
    machines = open_machines(settings, fleet, metrics)
    source = None
    # Where other sources are named, kubectl's own cluster is followed only if it is named too.
    if names_an_api(kube, {} if machines else os.environ):
        client = parts.followed[name] = await closing.enter_async_context(KubeClient.from_settings(kube))
        source = KubernetesSource(
            client, fleet, lease_namespace=kube.lease_namespace, fault_taints=kube.fault_taints
        )
    cluster = Cluster(name, fleet, Listing(fleet), metrics, unsynced_reason=lambda: _unseen(source, machines))
    return FollowedCluster(cluster, source, machines)


def names_an_api(settings: KubernetesSettings, environ: Mapping[str, str]) -> bool:
    """Whether there is a Kubernetes API to follow: one that is named, the pod's own, or kubectl's."""
    named = settings.kubeconfig is not None or settings.context
    return bool(
        named
        or "KUBERNETES_SERVICE_HOST" in environ
        or ("HOME" in environ and (Path(environ["HOME"]) / ".kube" / "config").is_file())
    )


def _follow(opened: FollowedCluster, parts: Components, settings: Settings) -> None:
    cluster, source, background = opened.cluster, opened.kubernetes, parts.background
    refresh = settings[MetricsSettings].refresh
    if source is not None:
        background.start(f"kubernetes of {cluster.name}", source.run)
        parts.metrics.age("kubernetes", cluster.name, lambda: _lag(source))
    follow_machines(cluster, opened.machines, parts)
    background.start(f"readings of {cluster.name}", lambda: cluster.refresh_readings(refresh, parts.metrics))
    background.start(f"changes of {cluster.name}", cluster.publish_changes)
    background.once(f"billing of {cluster.name}", _bill(opened))


async def _bill(opened: FollowedCluster) -> None:
    if opened.kubernetes is not None:
        await opened.kubernetes.synced()
    for machine in opened.machines:
        await machine.polling.synced()
    # The models of GPUs, and with them their prices, may be known to the metric source alone.
    await opened.cluster.read.wait()
    for _ in opened.cluster.fleet.start_accounting_steps():
        await asyncio.sleep(0)  # requests are served between two steps
    _log.info("cluster followed", cluster=opened.cluster.name, nodes=len(opened.cluster.fleet.views()))


async def _first_picture(opened: FollowedCluster) -> None:
    source = opened.kubernetes
    heard = asyncio.ensure_future(source.synced() if source is not None else asyncio.sleep(0))
    try:
        async with asyncio.timeout(PATIENCE):
            while not heard.done() and not (source is not None and _problem(source)):
                await asyncio.wait([heard], timeout=0.05)
            for machine in opened.machines:
                await machine.polling.tried()
    except TimeoutError:
        _log.warning("cluster not complete yet, answering all the same", cluster=opened.cluster.name)
    finally:
        heard.cancel()
    for (
        _
    ) in opened.cluster.fleet.refresh_steps():  # else the first request would have to do all of it at once
        await asyncio.sleep(0)


def _unseen(source: KubernetesSource | None, machines: Sequence[MachineSource]) -> str:
    """Why no source has told anything yet; empty once one has, and where there is none to wait for."""
    reasons = []
    if source is not None:
        if source.heard:
            return ""
        reasons.append(_problem(source) or "its nodes and pods are being read")
    for machine in machines:
        if machine.polling.succeeded is not None:
            return ""
        reasons.append(machine.polling.problem or f"{machine.name} is being read")
    return "; ".join(reasons)


def _problem(source: KubernetesSource) -> str:
    """Why nodes or pods can't be followed; empty if they are."""
    states = source.states()
    return next((states[kind].error for kind in (_NODES, _PODS) if states[kind].error), "")


def _visible(opened: FollowedCluster) -> bool:
    source = opened.kubernetes
    return opened.cluster.fleet.accounting_started and not (source is not None and _problem(source))


def _lag(source: KubernetesSource) -> float:
    """Seconds of changes of nodes or pods that may be missing."""
    states = source.states()
    return max(states[_NODES].lag, states[_PODS].lag)


async def _probe_kubernetes(opened: list[FollowedCluster], notes: RefreshLog) -> str:
    told = {}
    for each in opened:
        if each.kubernetes is None:
            continue
        if problem := _problem(each.kubernetes):
            notes.source_error("kubernetes", each.cluster.name)
            raise KubernetesUnavailable(f"cluster {each.cluster.name}: {problem}")
        states = each.kubernetes.states()
        told[each.cluster.name] = f"{states[_NODES].objects} nodes, {states[_PODS].objects} pods"
    return _sentence(told)


async def _probe_metrics(opened: list[FollowedCluster]) -> str:
    told = {}
    for each in opened:
        health = each.cluster.metrics.health()
        if not health.healthy:
            why = health.last_error or "nothing was read yet"
            raise MetricsUnavailable(f"cluster {each.cluster.name}: {why}")
        told[each.cluster.name] = f"reads {', '.join(health.exporters) or 'nothing known'}"
    return _sentence(told)


def _sentence(told: Mapping[str, str]) -> str:
    """What is told of each cluster; a single one needs no name."""
    if len(told) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{name}: {words}" for name, words in told.items())
