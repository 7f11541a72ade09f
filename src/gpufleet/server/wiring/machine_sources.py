"""The sources of a cluster beside Kubernetes: Slurm, a container engine, this machine.

They are alike: each is asked in turns, is heard or says why not, and costs only itself when it
fails. A cluster may have any of them, and Kubernetes too.
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
from gpufleet.server.auth.caller import Probe
from gpufleet.server.wiring.components import Components
from gpufleet.sources.docker import DockerSource
from gpufleet.sources.local import LocalSource
from gpufleet.sources.polling import Polling
from gpufleet.sources.slurm import SlurmSource

KINDS = ("slurm", "docker", "local")
"""Their names, as `healthz` shows them."""


class MachineSource(Protocol):
    """A source that is asked in turns."""

    name: str
    polling: Polling

    async def run(self) -> None:
        """Follow it until cancelled."""

    def told(self) -> str:
        """What is followed, in a few words."""


def open_machines(settings: Settings, fleet: Fleet, metrics: MetricSource) -> tuple[MachineSource, ...]:
    """The sources of these kinds that the settings of a cluster name."""
    found: list[MachineSource] = []
    slurm, docker, local = settings[SlurmSettings], settings[DockerSettings], settings[LocalSettings]
    if slurm.enabled or slurm.url:
        found.append(SlurmSource(slurm, fleet))
    if docker.url:
        found.append(DockerSource(docker, fleet))
    if local.enabled:
        recorder = metrics if isinstance(metrics, EmbeddedMetrics) else None
        found.append(LocalSource(local, settings[DevicesSettings], fleet, recorder))
    return tuple(found)


def follow_machines(cluster: Cluster, machines: Iterable[MachineSource], parts: Components) -> None:
    """Run each in the background and tell its age."""
    for machine in machines:
        what = f"{machine.name} of {cluster.name}"
        parts.background.start(what, machine.run)
        parts.metrics.age(machine.name, cluster.name, _age(machine))


def probe_machines(kind: str, followed: list[tuple[str, MachineSource]]) -> Probe:
    """How the sources of one kind are doing, those of all clusters together."""

    async def probe() -> str:
        told = []
        for cluster, machine in followed:
            if machine.polling.problem:
                raise Unavailable(f"cluster {cluster}: {machine.polling.problem}")
            if machine.polling.succeeded is None:
                raise Unavailable(f"cluster {cluster}: {kind} was not heard yet")
            told.append(machine.told() if len(followed) == 1 else f"{cluster}: {machine.told()}")
        return "; ".join(told)

    return probe


def _age(machine: MachineSource) -> Callable[[], float | None]:
    def age() -> float | None:
        heard = machine.polling.succeeded
        return None if heard is None else max(0.0, time.time() - heard)

    return age
