"""The clusters of one server, each with its own picture and metric source.

They share nothing: a cluster whose source fails shows old readings and says so, and the others
don't notice.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gpufleet.errors import GpufleetError, NotFound, Unavailable
from gpufleet.fleet.listing import Listing
from gpufleet.fleet.state import Fleet
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.logs import get_logger

_log = get_logger("fleet")


class RefreshLog(Protocol):
    """Whoever counts how refreshing goes; the server's own metrics do."""

    def refreshed(self, source: str, cluster: str) -> None:
        """Record that the data of `source` was refreshed just now."""

    def source_error(self, source: str, cluster: str) -> None:
        """Count a failed read of a source."""


@dataclass(frozen=True)
class Cluster:
    """One cluster: what is there now, and what is measured."""

    name: str
    fleet: Fleet
    listing: Listing
    metrics: MetricSource
    read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the metric source was asked for the first time, whether or not it answered."""
    unsynced_reason: Callable[[], str] = str
    """Why none of its sources has told anything yet; empty once one has, and where there is none."""

    async def refresh_readings(self, period: float, notes: RefreshLog | None = None) -> None:
        """Take the newest readings over every `period` seconds until cancelled."""
        while True:
            before = self.fleet.gpu_columns.readings
            try:
                readings = await self.metrics.latest()
                for _ in self.fleet.put_readings_steps(readings):
                    await asyncio.sleep(0)  # requests are served between two steps
                if notes is not None and readings.taken_at > before.taken_at:
                    notes.refreshed("readings", self.name)
                if notes is not None and readings.errors:
                    notes.source_error("readings", self.name)
            except GpufleetError as error:
                _log.warning("readings not refreshed", cluster=self.name, error=str(error))
                if notes is not None:
                    notes.source_error("readings", self.name)
            self.read.set()
            await asyncio.sleep(period)

    async def publish_changes(self, period: float = 1.0) -> None:
        """Look at what was touched also when nobody asks, so that listeners hear of changes."""
        while True:
            for _ in self.fleet.refresh_steps():
                await asyncio.sleep(0)  # requests are served between two steps
            await asyncio.sleep(period)


class Clusters:
    """Every cluster by name; the first is the default one."""

    def __init__(self, clusters: list[Cluster]) -> None:
        self._clusters = {cluster.name: cluster for cluster in clusters}

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._clusters.values())

    @property
    def default(self) -> Cluster:
        """The cluster that is meant when none is named."""
        return next(iter(self._clusters.values()))

    def get(self, name: str | None) -> Cluster:
        """The cluster of that name, the default one without a name; NotFound if there is none."""
        if not name:
            return self.default
        if name not in self._clusters:
            raise NotFound(f"no cluster {name!r}; there are: {', '.join(sorted(self._clusters))}")
        return self._clusters[name]

    def synced(self, name: str | None) -> Cluster:
        """As `get`, for those who look at nodes and workloads; Unavailable until a source has told of any.

        Without this a server that can't reach its cluster would answer that there are no GPUs.
        """
        cluster = self.get(name)
        if why := cluster.unsynced_reason():
            raise Unavailable(f"nothing is known of cluster {cluster.name} yet: {why}")
        return cluster
