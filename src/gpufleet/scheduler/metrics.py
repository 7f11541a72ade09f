"""Prometheus metrics of the scheduler."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


class SchedulerMetrics:
    """The scheduler's metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "gpufleet_scheduler"
        self.decisions = Counter(
            f"{prefix}_decisions_total",
            "Decisions by outcome: chosen, refused, bound, bind_failed, allocated (a ResourceClaim).",
            ["outcome"],
            registry=self.registry,
        )
        self.latency = Histogram(
            f"{prefix}_phase_seconds",
            "Duration of each phase.",
            ["phase"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.refusals = Counter(
            f"{prefix}_refusals_total", "Nodes refused, by reason.", ["reason"], registry=self.registry
        )
        self.held = Gauge(
            f"{prefix}_held",
            "Pods with GPUs held in memory or by leases, and units with a reservation.",
            ["how"],
            registry=self.registry,
        )
        self.waiting = Gauge(f"{prefix}_waiting", "Pods and gangs in the queue.", registry=self.registry)
        self.recovered = Counter(
            f"{prefix}_leases_recovered_total",
            "Leases that did not match their pod and were released or recreated, by reason: "
            "pod_deleted, not_bound, surplus, lease_deleted.",
            ["why"],
            registry=self.registry,
        )
        self.foreign = Gauge(
            f"{prefix}_foreign_leases",
            "GPU leases that this scheduler did not make.",
            registry=self.registry,
        )
        self.delivery = Gauge(
            f"{prefix}_delivery",
            "1 for the mode in which pods get their GPUs: extender or dra.",
            ["mode"],
            registry=self.registry,
        )
        self.cleared = Counter(
            f"{prefix}_allocations_cleared_total",
            "Allocations of ResourceClaims that were cleared before a pod used them, by reason: kube_scheduler, "
            "unschedulable, gang_incomplete, overlap.",
            ["why"],
            registry=self.registry,
        )
        self.overlaps = Gauge(
            f"{prefix}_overlapping_gpus",
            "GPUs that two holders have, such as claims of gpufleet and ResourceClaims of others.",
            registry=self.registry,
        )
        self.queue_gpus = Gauge(
            f"{prefix}_queue_gpus",
            "GPUs of each GpuQueue: used, guaranteed (used inside the guarantee), borrowed, pending.",
            ["queue", "kind"],
            registry=self.registry,
        )
        self.queue_share = Gauge(
            f"{prefix}_queue_share_ratio",
            "Part of each GpuQueue in the recent use of all, from 0 to 1.",
            ["queue"],
            registry=self.registry,
        )
        self.queue_budget = Gauge(
            f"{prefix}_queue_budget_used_ratio",
            "Used part of the budget of each GpuQueue that has one.",
            ["queue"],
            registry=self.registry,
        )
        self.use_age = Gauge(
            f"{prefix}_use_age_seconds",
            "Time since the use of namespaces was read from the server; NaN before the first reading.",
            registry=self.registry,
        )
        self.use_age.set(float("nan"))
        self.fragmentation = Gauge(
            f"{prefix}_fragmentation_percent",
            "Share of the free GPUs that the current demand can't use.",
            registry=self.registry,
        )
        self.free = Gauge(f"{prefix}_free_gpus", "Free GPUs that can be allocated.", registry=self.registry)
        self.leading = Gauge(f"{prefix}_leading", "1 while this replica leads.", registry=self.registry)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Observe the duration of the with block."""
        started = perf_counter()
        try:
            yield
        finally:
            self.latency.labels(name).observe(perf_counter() - started)

    def set_delivery(self, mode: str) -> None:
        """Set the mode of delivery."""
        for name in ("extender", "dra"):
            self.delivery.labels(name).set(name == mode)

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
