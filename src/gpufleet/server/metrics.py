"""The numbers that this process tells of itself on `/metrics`.

Other parts report into one `ServerMetrics` object through plain calls (`refreshed`, `source_error`,
`store_error`), handed to them by the wiring, and need not know that Prometheus reads it. Each
server has a registry of its own, so that two in one process don't mix.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Durations:
    """How long requests took. By hand: prometheus_client locks twice for each, and there is one thread."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.sum = 0.0


class ServerMetrics:
    """Counters and histograms of one server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = 0
        self._clock = clock
        self._refreshed: dict[tuple[str, str], float] = {}
        self._ages: dict[tuple[str, str], Callable[[], float | None]] = {}
        self._counts: dict[str, tuple[str, Callable[[], float]]] = {}
        self._requests: dict[tuple[str, str, int], _Durations] = {}
        self._source_errors = Counter(
            "gpufleet_source_errors",
            "Failed reads of a source (Prometheus, Kubernetes, Slurm, Docker).",
            ("source", "cluster"),
            registry=self.registry,
        )
        self._store_errors = Counter(
            "gpufleet_store_errors", "Failed database operations.", ("operation",), registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note one request; `route` is a template, so that callers can't make up series."""
        key = (method, route, status)
        durations = self._requests.get(key)
        if durations is None:
            durations = self._requests.setdefault((_known(method), route, status), _Durations())
        durations.counts[bisect_left(_BUCKETS, seconds)] += 1
        durations.sum += seconds

    def refreshed(self, source: str, cluster: str) -> None:
        """Record that the data of `source` ("readings") was refreshed just now."""
        self._refreshed[source, cluster] = self._clock()

    def age(self, source: str, cluster: str, read: Callable[[], float | None]) -> None:
        """Expose the age in seconds that `read` returns at each scrape; None for no data yet."""
        self._ages[source, cluster] = read

    def count(self, name: str, told: str, read: Callable[[], float]) -> None:
        """Tell a counter that somebody else keeps."""
        self._counts[name] = (told, read)

    def source_error(self, source: str, cluster: str) -> None:
        """Count a failed read of a source."""
        self._source_errors.labels(source, cluster).inc()

    def store_error(self, operation: str) -> None:
        """Note that a database operation failed."""
        self._store_errors.labels(operation).inc()

    def collect(self) -> Iterator[Metric]:
        """What is computed when asked for."""
        yield GaugeMetricFamily(
            "gpufleet_http_requests_in_flight", "Requests in work now.", value=self.in_flight
        )
        yield self._request_seconds()
        ages = GaugeMetricFamily(
            "gpufleet_refresh_age_seconds",
            "Time since each kind of data was refreshed.",
            labels=["source", "cluster"],
        )
        now = self._clock()
        for labels, moment in self._refreshed.items():
            ages.add_metric(labels, max(0.0, now - moment))
        for labels, read in self._ages.items():
            if (seconds := read()) is not None:
                ages.add_metric(labels, max(0.0, seconds))
        yield ages
        for name, (told, read_count) in self._counts.items():
            yield CounterMetricFamily(name, told, value=read_count())

    def _request_seconds(self) -> Metric:
        seconds = HistogramMetricFamily(
            "gpufleet_http_request_seconds",
            "Time from a request's arrival to the end of its answer.",
            labels=["method", "route", "status"],
        )
        bounds = [*map(str, _BUCKETS), "+Inf"]
        for (method, route, status), durations in self._requests.items():
            buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
            seconds.add_metric([method, route, str(status)], buckets, durations.sum)
        return seconds

    def exposition(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self.registry)


def _known(method: str) -> str:
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
