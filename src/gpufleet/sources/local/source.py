"""Update the fleet from the GPUs of this machine: gpufleet on one workstation.

Every refresh reads devices, readings, processes and events through a reader that never hangs. It updates
their health and the fleet, and records readings and processes in the embedded metric source, which serves
history and the API. A driver that stops responding makes the GPUs Unknown and changes nothing else. A
machine without a driver has no GPUs, reports why, and is retried.
"""

import socket
import time
from collections.abc import Callable

from gpufleet.errors import DevicesUnavailable
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.state import Fleet
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.detect import health_rules, reader_from_settings
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.infiniband import PortMonitor, read_ports
from gpufleet.gpus.topology import GpuPosition, gpu_positions
from gpufleet.model.device import Device
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity
from gpufleet.model.workload import FleetPod
from gpufleet.runtime.settings import DevicesSettings, LocalSettings
from gpufleet.sources.local.readings import identities, processes_from, readings_from
from gpufleet.sources.local.sessions import Sessions
from gpufleet.sources.polling import Polling, replace_pods

REFRESH_S = 15.0
"""Seconds between reads of the GPUs, as often as an agent reads them."""


class LocalSource:
    """Keep the fleet in sync with this machine; `run` it as a task."""

    name = "local"

    def __init__(
        self,
        settings: LocalSettings,
        devices: DevicesSettings,
        fleet: Fleet,
        recorder: EmbeddedMetrics | None,
        *,
        reader: DeadlineReader | None = None,
        sessions: Sessions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`recorder` is None if another metric source, such as Prometheus, has the readings of this machine."""
        self.node = settings.node or socket.gethostname()
        self.polling = Polling(self.name, fleet.cluster, clock)
        self._settings = settings
        self._fleet = fleet
        self._recorder = recorder
        self._reader = reader or reader_from_settings(devices)
        self._clock = clock
        self._health = HealthTracker(health_rules(devices))
        self._ports = PortMonitor()
        self._sessions = sessions or Sessions(self.node)
        self._devices: tuple[Device, ...] = ()
        self._gpus: tuple[GpuIdentity, ...] = ()
        self._pods: dict[str, FleetPod] = {}
        self._other_pods: dict[int, tuple[str, ...]] = {}
        self._driver = ""

    async def run(self) -> None:
        """Refresh until cancelled."""
        try:
            await self.polling.run(self.refresh, REFRESH_S)
        finally:
            await self._reader.close()

    def summary(self) -> str:
        """Describe in a few words what the source sees."""
        return f"{len(self._devices)} GPUs by {self._driver}"

    async def refresh(self) -> None:
        """Read the GPUs once and update the fleet."""
        at = self._clock()
        try:
            self._devices = await self._reader.inventory()
            found = await self._reader.readings()
            running = await self._reader.processes(self._settings.identify)
            events = await self._reader.events(0)
            self._driver = self._driver or (await self._reader.describe())[0]
        except DevicesUnavailable as error:
            self._health.mark_unresponsive(str(error), at)
            if self._devices:
                self._put_devices()
            raise
        self._health.observe_devices(self._devices, at)
        self._health.observe_readings(found)
        self._health.observe_events(events)
        self._health.set_node_finding("rails", self._ports.check(read_ports()), at)
        if self._settings.processes:
            pods, other_pods = self._sessions.observe(running, self._pod_uid)
            self._pods = replace_pods(self._fleet, self._pods, pods, self._clock())
            self._other_pods = dict(other_pods)
        self._put_devices()
        if self._recorder is not None:
            gpus = identities(self.node, self._devices)
            self._gpus = self._gpus if gpus == self._gpus else gpus
            readings = readings_from(self._gpus, found, at)
            self._fleet.put_readings(readings)
            await self._recorder.record(readings)
            await self._recorder.record_processes(processes_from(self.node, running, at))

    def _pod_uid(self, group: str) -> str | None:
        return self._fleet.ownership.uid_of_job(self.node, group)

    def _put_devices(self) -> None:
        views = self._fleet.views()
        if self.node not in views:
            models = {device.model for device in self._devices}
            self._fleet.put_node(
                FleetNode(
                    name=self.node,
                    source="local",
                    gpu_count=len(self._devices),
                    gpu_model=next(iter(models)) or "" if len(models) == 1 else "",
                    created=self._clock(),
                )
            )
        positions = gpu_positions(self._devices)
        gpus = tuple(self._gpu(device, positions[device.uuid]) for device in self._devices)
        self._fleet.put_devices(NodeDevices(node=self.node, gpus=gpus, total=len(gpus)))

    def _gpu(self, device: Device, position: GpuPosition) -> FleetGpu:
        verdict = self._health.verdict(device.uuid)
        return FleetGpu(
            index=device.index,
            uuid=device.uuid,
            model=device.model or "",
            vendor=device.vendor.value,
            memory_bytes=device.memory_bytes,
            island=position.island,
            bandwidth_gbps=position.bandwidth_gbps,
            health=verdict.health,
            health_reason=verdict.reason,
            health_since=verdict.since,
            mig_profiles=tuple(instance.profile for instance in device.mig),
            in_use_by=self._other_pods.get(device.index, ()),
        )
