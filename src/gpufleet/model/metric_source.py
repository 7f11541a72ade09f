"""The interface to metric sources.

`MetricSource` has two implementations: `PrometheusSource`, and `EmbeddedMetrics` on the store. Fleet,
accounting and the API depend only on this interface. Times are Unix seconds.

`latest`, `processes`, `storage` and `rdma` never raise if the source is down: they return the last known
values, whose timestamps show their age, and `errors` and `health()` give the reason. `series`, `samples`,
`extremes` and `training` read the past, which has no substitute: they raise `MetricsUnavailable`, or
`InvalidRequest` for an invalid or too long span.
"""

import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpufleet.errors import InvalidRequest
from gpufleet.model.reading import (
    ExtremeBlock,
    GpuRef,
    GpuSeries,
    Processes,
    Quantity,
    RdmaPorts,
    Readings,
    SampleBlock,
    StorageUse,
    TrainingPoint,
)

MAX_POINTS = 11_000
"""Most points of one series, the same limit as in Prometheus."""


@dataclass(frozen=True)
class MetricHealth:
    """The health of one thing that is read: a quantity, `holders`, `processes`, …"""

    last_success: float | None
    error: str = ""
    """Why the last read failed; empty if it succeeded."""

    def age(self, now: float) -> float | None:
        """Return the seconds since the last success, or None if there was none."""
        return None if self.last_success is None else max(0.0, now - self.last_success)


@dataclass(frozen=True)
class SourceHealth:
    """The health of a metric source."""

    healthy: bool
    last_success: float | None
    last_error: str = ""
    """The last error, even if it is over; empty if there was none."""
    metrics: Mapping[str, MetricHealth] = field(default_factory=dict)
    exporters: tuple[str, ...] = ()
    """The exporters that were detected."""
    empty_reason: str = ""
    """Why there may be no readings at all: nothing is configured, or no exporter was found."""


class MetricSource(Protocol):
    """Readings of a cluster's GPUs, live and past."""

    async def latest(self) -> Readings:
        """Return the newest readings of all GPUs; callers share one refresh."""
        ...

    async def processes(self) -> Processes:
        """Return the processes on the GPUs; callers share one refresh."""
        ...

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """Return one quantity of some GPUs at start, start+step, … end, without GPUs that have no point."""
        ...

    def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        """Yield one quantity of all GPUs in blocks of time on the grid start, start+step, … before `end`."""
        ...

    def extremes(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[ExtremeBlock]:
        """Yield the lowest and highest reading of all GPUs in each step of the same grid, in blocks of time."""
        ...

    async def training(
        self,
        workload_uid: str,
        start: float,
        end: float,
        controllers: Collection[str] = (),
        rank: int | None = None,
    ) -> Sequence[TrainingPoint]:
        """Return the numbers that a training workload, or one rank of it, reported, ordered by time.

        `controllers` are the uids between the workload and its pods: an agent that reads a pod's log
        knows only the pod's own controller, such as the ReplicaSet of a Deployment.
        """
        ...

    async def storage(self) -> StorageUse | None:
        """Return the usage of the cluster's storage, or None if it is not measured."""
        ...

    async def rdma(self) -> RdmaPorts | None:
        """Return the cluster's InfiniBand ports, or None if they are not measured."""
        ...

    def health(self) -> SourceHealth:
        """Return the health of the source, from memory."""
        ...


def check_span(start: float, end: float, step: float) -> None:
    """Raise InvalidRequest for an invalid span, or one with more than `MAX_POINTS` points."""
    if not step > 0:
        raise InvalidRequest(f"step must be more than 0 seconds, not {step:g}")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise InvalidRequest("start and end must be finite")
    if not start <= end:
        raise InvalidRequest(f"start ({start:.15g}) must not be after end ({end:.15g})")
    points = (end - start) // step + 1
    if not points <= MAX_POINTS:
        raise InvalidRequest(
            f"{points:.0f} points per series requested, at most {MAX_POINTS} are returned; "
            f"take a step of at least {_seconds(math.ceil((end - start) / (MAX_POINTS - 1)))} or a shorter span"
        )


def _seconds(count: int) -> str:
    return f"{count} second" if count == 1 else f"{count} seconds"
