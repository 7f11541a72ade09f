"""The clusters of one server, each with its own fleet and metric source.

Clusters are independent. A cluster whose source fails keeps its last readings and reports why; the
others are not affected.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from gpufleet.errors import GpufleetError, NotFound, Unavailable
from gpufleet.fleet.gpu_series import read_series
from gpufleet.fleet.metric_nodes import MetricNodes
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.metric_source import MetricSource
from gpufleet.model.reading import GpuRef, GpuSeries, Processes, Quantity
from gpufleet.runtime.logs import get_logger

_log = get_logger("fleet")


def _ignore() -> None:
    return None


@dataclass(frozen=True)
class Cluster:
    """One cluster: its live state and its metric source."""

    name: str
    fleet: Fleet
    listing: Listing
    metrics: MetricSource
    readings_tried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first read of the metric source, whether or not it succeeded."""
    unsynced_reason: Callable[[], str] = str
    """Return why none of its sources is synced yet; empty once one is, or if there is none."""
    metric_nodes: MetricNodes | None = None
    """Puts the nodes in the readings into the fleet, if no other source does."""

    async def processes(self) -> Processes:
        """Return the processes on the GPUs, under the fleet's node names."""
        return self.fleet.node_names.resolve_processes(await self.metrics.processes())

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """Return one quantity of some GPUs over time, under the fleet's node names and not in the future."""
        return await read_series(self.fleet, self.metrics, quantity, gpus, start, end, step)

    async def refresh_readings(
        self,
        period: float,
        refreshed: Callable[[], None] = _ignore,
        failed: Callable[[], None] = _ignore,
    ) -> None:
        """Put the newest readings into the fleet every `period` seconds until cancelled.

        Call `refreshed` when there are newer readings, `failed` when some could not be read.
        """
        while True:
            before = self.fleet.gpu_columns.readings.taken_at
            try:
                readings = await self.metrics.latest()
                if self.metric_nodes is not None:
                    for _ in self.metric_nodes.update(readings):
                        await asyncio.sleep(0)
                for _ in self.fleet.put_readings_steps(readings):
                    await asyncio.sleep(0)  # serve requests between two steps
                if readings.taken_at > before:
                    refreshed()
                if readings.errors:
                    failed()
            except GpufleetError as error:
                _log.warning("readings_not_refreshed", cluster=self.name, error=str(error))
                failed()
            self.readings_tried.set()
            await asyncio.sleep(period)

    async def publish_changes(self, period: float = 1.0) -> None:
        """Refresh the fleet every `period` seconds, so that listeners get changes without any query."""
        while True:
            for _ in self.fleet.refresh_steps():
                await asyncio.sleep(0)  # serve requests between two steps
            await asyncio.sleep(period)


class Clusters:
    """Every cluster by name; the first is the default."""

    def __init__(self, clusters: list[Cluster]) -> None:
        self._clusters = {cluster.name: cluster for cluster in clusters}

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._clusters.values())

    @property
    def default(self) -> Cluster:
        """The cluster to use when a request names none."""
        return next(iter(self._clusters.values()))

    def get(self, name: str | None) -> Cluster:
        """Return the cluster of that name, or the default without a name. Raise NotFound if there is none."""
        if not name:
            return self.default
        if name not in self._clusters:
            raise NotFound(f"no cluster {name!r}; there are: {', '.join(sorted(self._clusters))}")
        return self._clusters[name]

    def synced(self, name: str | None) -> Cluster:
        """Return the cluster like `get`. Raise Unavailable until one of its sources is synced.

        Otherwise a server that can't reach its cluster would answer that there are no GPUs.
        """
        cluster = self.get(name)
        if reason := cluster.unsynced_reason():
            raise Unavailable(f"nothing is known of cluster {cluster.name} yet: {reason}")
        return cluster
