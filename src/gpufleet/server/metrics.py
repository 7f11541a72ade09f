"""The server's own metrics, exposed on `/metrics`.

Components report into one `ServerMetrics` object, which the wiring passes to them. Each server has its own
registry, so that two servers in one process do not share series.
"""

import collections
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ServerMetrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = 0
        self._clock = clock
        self._refreshed: dict[tuple[str, str], float] = {}
        self._ages: dict[tuple[str, str], Callable[[], float | None]] = {}
        self._dependencies: Callable[[], Mapping[str, str]] = dict
        self._counts: dict[str, tuple[str, Callable[[], float]]] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._request_seconds = Histogram(
            "gpufleet_http_request_seconds",
            "Time from the arrival of a request to the end of its response.",
            ("method", "route", "status"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._source_errors: collections.Counter[tuple[str, str]] = collections.Counter()
        self._failures: dict[tuple[str, str], Callable[[], float]] = {}
        self._store_errors = Counter(
            "gpufleet_store_errors", "Failed database operations.", ("operation",), registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one request; `route` is a path template, so that callers cannot create series."""
        method = method if method in _METHODS else "other"
        self._request_seconds.labels(method, route, status).observe(seconds)

    def refreshed(self, source: str, cluster: str) -> None:
        """Record that the data of `source` ("readings") was refreshed just now."""
        self._refreshed[source, cluster] = self._clock()

    def age(self, source: str, cluster: str, read: Callable[[], float | None]) -> None:
        """Expose the age in seconds that `read` returns at each scrape; None for no data yet."""
        self._ages[source, cluster] = read

    def count(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Expose a counter whose value `read` returns at each scrape."""
        self._counts[name] = (help_text, read)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Expose a gauge whose value `read` returns at each scrape."""
        self._gauges[name] = (help_text, read)

    def dependencies(self, read: Callable[[], Mapping[str, str]]) -> None:
        """Expose the states that `read` returns: 1 for `ok`, 0 for `down`, none for `off`."""
        self._dependencies = read

    def source_error(self, source: str, cluster: str) -> None:
        """Count a failed read of a source."""
        self._source_errors[source, cluster] += 1

    def failures(self, source: str, cluster: str, read: Callable[[], float]) -> None:
        """Expose the number of failed reads of a source that `read` returns at each scrape."""
        self._failures[source, cluster] = read

    def store_error(self, operation: str) -> None:
        """Count a failed database operation."""
        self._store_errors.labels(operation).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are computed at each scrape."""
        yield GaugeMetricFamily(
            "gpufleet_http_requests_in_flight", "Requests in progress.", value=self.in_flight
        )
        ages = GaugeMetricFamily(
            "gpufleet_refresh_age_seconds",
            "Time since each kind of data was refreshed.",
            labels=["source", "cluster"],
        )
        now = self._clock()
        for labels, refreshed in self._refreshed.items():
            ages.add_metric(labels, max(0.0, now - refreshed))
        for labels, read in self._ages.items():
            if (seconds := read()) is not None:
                ages.add_metric(labels, max(0.0, seconds))
        yield ages
        errors = CounterMetricFamily(
            "gpufleet_source_errors",
            "Failed reads of a source: readings, kubernetes (lists and watches), slurm, docker, local.",
            labels=["source", "cluster"],
        )
        for labels, counted in self._source_errors.items():
            errors.add_metric(labels, counted)
        for labels, read_failures in self._failures.items():
            errors.add_metric(labels, read_failures())
        yield errors
        up = GaugeMetricFamily(
            "gpufleet_dependency_up",
            "Whether each configured dependency works; the store also has to accept writes.",
            labels=["dependency"],
        )
        for name, state in self._dependencies().items():
            if state != "off":
                up.add_metric([name], float(state == "ok"))
        yield up
        for name, (help_text, read_count) in self._counts.items():
            yield CounterMetricFamily(name, help_text, value=read_count())
        for name, (help_text, read_value) in self._gauges.items():
            yield GaugeMetricFamily(name, help_text, value=read_value())

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
