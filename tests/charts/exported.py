"""At least one sample of every metric that gpufleet exports, as its processes expose them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.accounting.histories import Prometheus
from tests.agent.test_exporter import SIGHT

from gpufleet.agent.agent import Agent
from gpufleet.agent.exporter import Exporter
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetNode
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings import AgentSettings, DevicesSettings
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.server.fleet_metrics import FleetMetrics
from gpufleet.server.metrics import ServerMetrics
from gpufleet.webhook.server import Webhook


def exported_samples() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and labels of each exported series."""
    for text in (server_metrics(), scheduler_metrics(), agent_metrics(), webhook_metrics()):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                yield sample.name, sample.labels


def server_metrics() -> bytes:
    """Return /metrics of a server of one cluster with a running and a waiting workload."""
    fleet = Fleet("prod")
    fleet.put_node(FleetNode(name="node-a", gpu_count=8))
    fleet.put_pod(FleetPod(uid="p", name="p", namespace="ml", node="node-a", gpus=2, phase=Status.RUNNING))
    fleet.put_pod(FleetPod(uid="q", name="q", namespace="ml", gpus=4))
    metrics = ServerMetrics()
    metrics.registry.register(FleetMetrics(Clusters([Cluster("prod", fleet, Listing(fleet), Prometheus())])))
    metrics.observe("GET", "/api/nodes", 200, 0.01)
    for source in ("readings", "snapshots", "hours"):
        metrics.age(source, "prod", lambda: 5.0)
    metrics.source_error("kubernetes", "prod")
    metrics.store_error("snapshot")
    metrics.dependencies(lambda: {"store": "ok", "metrics": "ok"})
    metrics.gauge("gpufleet_clock_ahead_seconds", "Text.", lambda: 0.1)
    return metrics.exposition()


def scheduler_metrics() -> bytes:
    """Return /metrics of a scheduler that has done everything once."""
    metrics = SchedulerMetrics()
    metrics.leading.set(1)
    metrics.decisions.labels("bound").inc()
    metrics.refusals.labels("too few free GPUs").inc()
    metrics.held.labels("leases").set(3)
    metrics.recovered.labels("pod_deleted").inc()
    metrics.cleared.labels("overlap").inc()
    metrics.queue_budget.labels("research").set(0.5)
    with metrics.phase("filter"):
        pass
    return metrics.render()


def agent_metrics() -> bytes:
    """Return /metrics of an agent with a healthy and a lost GPU."""
    reader: Any = SimpleNamespace(stuck=0)
    agent = Agent("node-a", AgentSettings(), DevicesSettings(), reader=reader)
    agent.publisher = cast(Any, SimpleNamespace(writes=1, failures=1))
    return Exporter(
        "node-a", lambda: SIGHT, agent_metrics=agent._agent_metrics, clock=lambda: SIGHT.read_at
    ).render()


def webhook_metrics() -> bytes:
    """Return /metrics of a webhook after one review."""
    webhook = Webhook(cast(Any, None), cast(Any, None))
    webhook._reviews.labels("/mutate", "allowed").inc()
    webhook._seconds.labels("/mutate").observe(0.01)
    return generate_latest(webhook._registry)
