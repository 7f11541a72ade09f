"""Follows the GPUs of this machine and tells the fleet: gpufleet on one workstation.

Every turn reads devices, readings, processes and events through a reader that never hangs, keeps
their health, tells the fleet, and records readings and processes in the embedded metric source,
where history and the API find them. A driver that falls silent makes the GPUs Unknown and leaves
the rest as it was; a machine without any driver shows no GPU, says so, and is asked again.
"""

import socket
import time
from collections.abc import Callable
from typing import Protocol

from gpufleet.errors import DevicesUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.detect import health_rules, patient_reader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.infiniband import PortWatch, read_ports
from gpufleet.gpus.topology import GpuPosition, places
from gpufleet.model.device import Device
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity, Processes, Readings
from gpufleet.model.workload import FleetPod
from gpufleet.runtime.settings import DevicesSettings, LocalSettings
from gpufleet.sources.local.measured import identities, processes_from, readings_from
from gpufleet.sources.local.sessions import Sessions
from gpufleet.sources.polling import Polling


class ReadingRecorder(Protocol):
    """Where readings are kept; the embedded metric source is one."""

    async def record(self, readings: Readings) -> None:
        """Keep one refresh."""

    async def record_processes(self, processes: Processes) -> None:
        """Keep the processes of now."""


class LocalSource:
    """Keeps a fleet as this machine is; `run` it in a task of its own."""

    name = "local"

    def __init__(
        self,
        settings: LocalSettings,
        devices: DevicesSettings,
        fleet: Fleet,
        recorder: ReadingRecorder | None,
        *,
        reader: DeadlineReader | None = None,
        sessions: Sessions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`recorder` is None where something else measures this machine, a Prometheus for one."""
        self.node = settings.node or socket.gethostname()
        self.polling = Polling(f"local of {fleet.cluster}", clock)
        self._settings = settings
        self._fleet = fleet
        self._recorder = recorder
        self._reader = reader or patient_reader(devices)
        self._clock = clock
        self._health = HealthTracker(health_rules(devices))
        self._ports = PortWatch()
        self._sessions = sessions or Sessions(self.node)
        self._devices: tuple[Device, ...] = ()
        self._gpus: tuple[GpuIdentity, ...] = ()
        self._pods: dict[str, FleetPod] = {}
        self._others: dict[int, tuple[str, ...]] = {}
        self._driver = ""

    async def run(self) -> None:
        """Follow this machine until cancelled."""
        try:
            await self.polling.forever(self.look, self._settings.refresh)
        finally:
            await self._reader.close()

    def told(self) -> str:
        """What is followed, in a few words."""
        return f"{len(self._devices)} GPUs by {self._driver}"

    async def look(self) -> None:
        """Take one turn."""
        at = self._clock()
        try:
            self._devices = await self._reader.inventory()
            found = await self._reader.readings()
            running = await self._reader.processes(self._settings.identify)
            events = await self._reader.events(0)
            self._driver = self._driver or (await self._reader.describe())[0]
        except DevicesUnavailable as silence:
            self._health.see_silence(str(silence), at)
            if self._devices:
                self._tell_devices()
            raise
        self._health.see_devices(self._devices, at)
        self._health.see_readings(found)
        self._health.see_events(events)
        self._health.see_node("infiniband", self._ports.look(read_ports()), at)
        if self._settings.processes:
            pods, others = self._sessions.see(running, self._known_group)
            self._tell_processes(pods)
            self._others = dict(others)
        self._tell_devices()
        if self._recorder is not None:
            fresh = identities(self.node, self._devices)
            self._gpus = self._gpus if fresh == self._gpus else fresh
            readings = readings_from(self._gpus, found, at)
            self._fleet.put_readings(readings)
            await self._recorder.record(readings)
            await self._recorder.record_processes(processes_from(self.node, running, at))

    def _known_group(self, group: str) -> str | None:
        return self._fleet.ownership.uid_of_job(self.node, group)

    def _tell_devices(self) -> None:
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
        place = places(self._devices)
        gpus = tuple(self._gpu(device, place[device.uuid]) for device in self._devices)
        self._fleet.put_devices(NodeDevices(node=self.node, gpus=gpus, total=len(gpus)))

    def _gpu(self, device: Device, place: GpuPosition) -> FleetGpu:
        verdict = self._health.verdict(device.uuid)
        return FleetGpu(
            index=device.index,
            uuid=device.uuid,
            model=device.model or "",
            vendor=device.vendor.value,
            memory_bytes=device.memory_bytes,
            island=place.island,
            bandwidth_gbps=place.bandwidth_gbps,
            health=verdict.health,
            health_reason=verdict.reason,
            health_since=verdict.since,
            mig_profiles=tuple(instance.profile for instance in device.mig),
            in_use_by=self._others.get(device.index, ()),
        )

    def _tell_processes(self, pods: tuple[FleetPod, ...]) -> None:
        fresh = {pod.uid: pod for pod in pods}
        for uid in self._pods.keys() - fresh.keys():
            self._fleet.drop_pod(uid, self._clock())
        for uid, pod in fresh.items():
            if self._pods.get(uid) != pod:
                self._fleet.put_pod(pod)
        self._pods = fresh
