"""The seam between those who need readings and those who have them.

`fleet`, `accounting` and the API ask a `MetricSource`; Prometheus (in any vocabulary) and the
embedded source answer. Times are seconds since the epoch. `latest`, `processes`, `storage`
and `rdma` never raise because the source is down: they answer what was last known, whose
timestamps say how old it is, and `errors` and `health()` say why. `series`, `samples` and
`training` are asked for the past, where nothing stands in for an answer: they raise
`MetricsUnavailable`, or `InvalidRequest` for a span that is too long or makes no sense.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpufleet.errors import InvalidRequest
from gpufleet.model.reading import (
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
"""Most points of one series, as Prometheus itself has it."""


@dataclass(frozen=True)
class MetricHealth:
    """How one thing that is refreshed (a quantity, `holders`, `processes`, …) fares."""

    last_success: float | None
    error: str = ""
    """Why the newest try failed; empty if it did not."""

    def age(self, now: float) -> float | None:
        """Seconds since it was last read, or None if it never was."""
        return None if self.last_success is None else max(0.0, now - self.last_success)


@dataclass(frozen=True)
class SourceHealth:
    """Whether a metric source can be relied on right now."""

    healthy: bool
    last_success: float | None
    last_error: str = ""
    """The newest error, also if it is over; empty if there never was one."""
    metrics: Mapping[str, MetricHealth] = field(default_factory=dict)
    exporters: tuple[str, ...] = ()
    """Which exporters' names were found."""


class MetricSource(Protocol):
    """Readings of a cluster's GPUs, live and past."""

    async def latest(self) -> Readings:
        """The newest readings of all GPUs; callers share one refresh."""
        ...

    async def processes(self) -> Processes:
        """The processes on the GPUs; callers share one refresh."""
        ...

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """One quantity of the GPUs named, on the times start, start+step, … end; GPUs without a point are left out."""
        ...

    def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        """One quantity of all GPUs in blocks of time on the grid start, start+step, …, before `end`."""
        ...

    async def training(
        self, workload_uid: str, start: float, end: float, controllers: Collection[str] = ()
    ) -> Sequence[TrainingPoint]:
        """What a workload reported of its training, in order of time.

        `controllers` are the uids of what stands between it and its pods: whoever reads a pod's log on its node
        knows the pod's own controller only, the ReplicaSet and not the Deployment.
        """
        ...

    async def storage(self) -> StorageUse | None:
        """The cluster's file systems, or None if nothing measures them."""
        ...

    async def rdma(self) -> RdmaPorts | None:
        """The cluster's InfiniBand ports, or None if nothing measures them."""
        ...

    def health(self) -> SourceHealth:
        """How the source fares, from memory: nothing is asked."""
        ...


def check_span(start: float, end: float, step: float) -> None:
    """Refuse a span that makes no sense or has more than `MAX_POINTS` points."""
    if not step > 0:
        raise InvalidRequest(f"step must be more than 0 seconds, not {step:g}")
    if not start <= end:
        raise InvalidRequest(f"start ({start:.15g}) must not be after end ({end:.15g})")
    points = (end - start) // step + 1
    if not points <= MAX_POINTS:
        raise InvalidRequest(
            f"{points:.0f} points per series asked for, at most {MAX_POINTS} are answered; "
            f"take a step of at least {(end - start) / (MAX_POINTS - 1):.0f} seconds or a shorter span"
        )
