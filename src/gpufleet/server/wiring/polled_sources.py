"""Sources that are polled: Slurm, a container engine, this machine.

A cluster may have any of them, besides Kubernetes. One that fails affects only its own nodes.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from gpufleet.errors import Unavailable
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster
from gpufleet.fleet.state import Fleet
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.settings import DevicesSettings, DockerSettings, LocalSettings, Settings, SlurmSettings
from gpufleet.server.health import Probe
from gpufleet.server.wiring.components import Components
from gpufleet.sources.docker import DockerSource
from gpufleet.sources.local import LocalSource
from gpufleet.sources.polling import Polling
from gpufleet.sources.slurm.source import SlurmSource

NAMES = ("slurm", "docker", "local")
"""As `/api/healthz` shows them."""


class PolledSource(Protocol):
    """A source that reads everything in each poll."""

    name: str
    polling: Polling

    async def run(self) -> None:
        """Poll until cancelled."""

    def summary(self) -> str:
        """Return what is followed, in a few words."""


def open_sources(settings: Settings, fleet: Fleet, metrics: MetricSource) -> tuple[PolledSource, ...]:
    """Return the polled sources that the settings of a cluster enable."""
    sources: list[PolledSource] = []
    slurm, docker, local = settings[SlurmSettings], settings[DockerSettings], settings[LocalSettings]
    if slurm.enabled or slurm.url:
        sources.append(SlurmSource(slurm, fleet))
    if docker.url:
        sources.append(DockerSource(docker, fleet))
    if local.enabled:
        recorder = metrics if isinstance(metrics, EmbeddedMetrics) else None
        sources.append(LocalSource(local, settings[DevicesSettings], fleet, recorder))
    return tuple(sources)


def start_sources(cluster: Cluster, sources: Iterable[PolledSource], components: Components) -> None:
    """Run each source in the background and expose its age."""
    for source in sources:
        components.background.start(source.name, source.run, cluster=cluster.name)
        components.metrics.age(source.name, cluster.name, _age(source))
        components.metrics.failures(source.name, cluster.name, _failures(source))


def probe_sources(name: str, sources: list[tuple[str, PolledSource]]) -> Probe:
    """Return the health probe for the sources of one name, each given with its cluster."""

    async def probe() -> str:
        summaries = []
        for cluster, source in sources:
            if source.polling.problem:
                raise Unavailable(f"cluster {cluster}: {source.polling.problem}")
            if source.polling.succeeded is None:
                raise Unavailable(f"cluster {cluster}: {name} has not been read yet")
            summaries.append(source.summary() if len(sources) == 1 else f"{cluster}: {source.summary()}")
        return "; ".join(summaries)

    return probe


def _age(source: PolledSource) -> Callable[[], float | None]:
    def age() -> float | None:
        succeeded = source.polling.succeeded
        return None if succeeded is None else time.time() - succeeded

    return age


def _failures(source: PolledSource) -> Callable[[], float]:
    return lambda: source.polling.failures
