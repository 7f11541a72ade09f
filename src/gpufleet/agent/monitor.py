"""Read this machine's GPUs: periodically, and immediately after an error or a sign of a fault.

One read asks the driver for inventory, readings and processes, feeds them to the health tracker and produces a
frozen `Observation` for the subscribers. If the driver hangs or is missing, the observation keeps the devices
of the last read, and the health tracker reports them as Unknown.

Between two reads, a short call asks the driver only for what tells a fault (`DeviceReader.health`), and the state of
the network ports is compared. If either differs from the last read, everything is read at once.

Errors arrive from two sources: NVML events, and the kernel log, whose text has more detail. Both may report the
same error, and either may miss it: virtual GPUs have no NVML events, and some agents may not read the kernel
log. The count of an XID is therefore the higher of the two.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpufleet.errors import DevicesUnavailable, DriverMismatch
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.health import HealthTracker, HealthVerdict, OpenFinding
from gpufleet.gpus.infiniband import PortMonitor, read_ports
from gpufleet.gpus.kernel_log import KernelLog, KernelRing, boot_time
from gpufleet.gpus.known_gpus import merge_known_gpus
from gpufleet.gpus.rules import Finding, finding
from gpufleet.gpus.topology import GpuPosition, gpu_positions
from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading, EventKind
from gpufleet.model.node import Health
from gpufleet.runtime.logs import get_logger

HealthListener = Callable[[Device, HealthVerdict, HealthVerdict], None]
"""Takes a GPU, its previous verdict and its new one."""

EVENT_WAIT = 1.0
"""Seconds that one call for events waits in the driver; a stop of the agent may have to wait for it.

Also the time between two looks for errors where the driver or the kernel can't be waited for.
"""
ERROR_PAUSE = 0.5
"""Seconds between batches of errors. A program can cause hundreds a second, and each batch is a read."""
_MAX_CODES = 64
"""Different XIDs counted per GPU; about 170 exist."""
_log = get_logger("agent")


@dataclass(frozen=True)
class Observation:
    """The state of this machine's GPUs."""

    devices: tuple[Device, ...] = ()
    positions: Mapping[str, GpuPosition] = field(default_factory=dict)
    verdicts: Mapping[str, HealthVerdict] = field(default_factory=dict)
    findings: tuple[OpenFinding, ...] = ()
    ports: frozenset[str] = frozenset()
    """The network ports that are or were active."""
    links: Mapping[str, int] = field(default_factory=dict)
    """The largest number of NVLinks that were active, by GPU."""
    readings: tuple[DeviceReading, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """XIDs since the agent started, by GPU and code."""
    read_at: float = 0.0
    """When the driver last answered."""
    problem: str = ""
    """Why the driver could not be read; empty if it was."""


@dataclass(frozen=True)
class PreviousState:
    """What an earlier agent published about this machine."""

    devices: tuple[Device, ...] = ()
    positions: Mapping[str, GpuPosition] = field(default_factory=dict)
    health: Mapping[str, HealthVerdict] = field(default_factory=dict)
    """The last verdict on each GPU."""
    ports: frozenset[str] = frozenset()
    links: Mapping[str, int] = field(default_factory=dict)
    switch_error: OpenFinding | None = None
    """A fatal error of an NVSwitch."""


class Monitor:
    """Keeps the `observation` of this machine up to date."""

    def __init__(
        self,
        reader: DeadlineReader,
        tracker: HealthTracker,
        *,
        processes: bool = True,
        identify: bool = False,
        ports: Callable[[], dict[str, str]] = read_ports,
        port_monitor: PortMonitor | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.observation = Observation()
        self.reads = 0
        """Reads so far, successful or not."""
        self._reader = reader
        self._tracker = tracker
        self._processes = processes
        self._identify = identify
        self._ports = ports
        self._port_monitor = port_monitor or PortMonitor()
        self._clock = clock
        self._known: tuple[Device, ...] = ()
        self._previous = PreviousState()
        self._driver_xids: Counter[tuple[str, int]] = Counter()
        self._kernel_xids: Counter[tuple[str, int]] = Counter()
        self._reading = asyncio.Lock()
        self._released_until = 0.0
        self._health: tuple[object, ...] = ()
        self._port_states: dict[str, str] = {}
        self._listeners: list[Callable[[Observation], None]] = []
        self._health_listeners: list[HealthListener] = []

    def subscribe(self, listener: Callable[[Observation], None]) -> None:
        """Call `listener` after every read and every error."""
        self._listeners.append(listener)

    def subscribe_to_health(self, listener: HealthListener) -> None:
        """Call `listener` whenever the health of a GPU changes."""
        self._health_listeners.append(listener)

    def restore(self, previous: PreviousState) -> None:
        """Start from what an earlier agent published, so that a GPU lost since then is a fault."""
        self._previous, self._known = previous, previous.devices
        self._tracker.observe_devices(previous.devices, self._clock())
        for uuid, verdict in previous.health.items():
            if verdict.health is Health.UNHEALTHY:
                self._tracker.restore(uuid, verdict.reason, verdict.since)
        self._port_monitor.restore(previous.ports)
        self._tracker.links.restore(previous.links)
        error = previous.switch_error
        if error is not None and error.since > boot_time():
            self._tracker.set_node_finding(error.finding.key, error.finding, error.since)
        self.observation = replace(self.observation, devices=previous.devices, positions=previous.positions)

    async def release(self, until: float) -> None:
        """Close the driver until then, so that the GPUs can be reset; a time in the past opens it again."""
        if until == self._released_until:
            return
        self._released_until = until
        if self._released():
            _log.info("driver_released", seconds=round(until - self._clock()))
            async with self._reading:
                await self._reader.close()

    def _released(self) -> bool:
        return self._clock() < self._released_until

    async def read(self) -> Observation:
        """Read everything once; nothing while the driver is released."""
        async with self._reading:
            if self._released():
                return self._publish(self.observation)
            mismatch: Finding | None = None
            try:
                observation = await self._read_driver()
            except DevicesUnavailable as error:
                problem = self._problem(error)
                if problem != self.observation.problem:
                    _log.warning("gpus_unreadable", error=str(error))
                observation = replace(self.observation, readings=(), processes=(), problem=problem)
                self._tracker.mark_unresponsive(problem, self._clock())
                mismatch = finding("driver-mismatch") if isinstance(error, DriverMismatch) else None
            self._tracker.set_node_finding("driver-mismatch", mismatch, self._clock())
            self._port_states = self._ports()
            self._tracker.set_node_finding(
                "rails", self._port_monitor.check(self._port_states), self._clock()
            )
            self.reads += 1
            return self._publish(observation)

    async def shows_fault(self) -> bool:
        """Return whether the network ports or what the driver says of the GPUs' health differ from the last read.

        While the driver is not usable only the ports count: `read` retries it.
        """
        async with self._reading:
            if self._released():
                return False
            if self._ports() != self._port_states:
                return True
            if self.observation.problem:
                return False
            try:
                return await self._reader.health() != self._health
            except DevicesUnavailable:
                return True

    async def _read_driver(self) -> Observation:
        self._health = await self._reader.health()  # first, so that no later change is missed
        found = await self._reader.inventory()
        devices = merge_known_gpus(self._known, found)
        readings = await self._reader.readings()
        processes = await self._reader.processes(self._identify) if self._processes else ()
        if self.observation.problem:
            _log.info("gpus_readable_again")
        now = self._clock()
        self._known = devices
        self._tracker.observe_devices(devices, now)
        self._tracker.observe_readings(readings)
        return Observation(
            devices=devices,
            positions=self._positions(devices),
            readings=readings,
            processes=processes,
            read_at=now,
        )

    def _positions(self, devices: tuple[Device, ...]) -> dict[str, GpuPosition]:
        """Return positions; a GPU lost before this process started keeps its island."""
        found = gpu_positions(devices)
        for device in devices:
            if device.fault and not device.links and device.uuid in self._previous.positions:
                found[device.uuid] = GpuPosition(self._previous.positions[device.uuid].island, 0)
        return found

    def _problem(self, error: DevicesUnavailable) -> str:
        """Return a text that stays the same while the driver hangs: it is published, and a change is a write."""
        since = self._reader.silent_since
        if since is None:
            return str(error)
        moment = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
        return f"the GPU driver has not answered since {moment}"

    async def run(self, period: float, health_period: float) -> None:
        """Read every `period` seconds, and at once if a look every `health_period` seconds shows a fault."""
        while True:
            read_again_at = time.monotonic() + period
            await self.read()
            while (left := read_again_at - time.monotonic()) > 0:
                await asyncio.sleep(min(left, health_period))
                if left > health_period and await self.shows_fault():
                    break

    async def watch_driver(self, wait: float = EVENT_WAIT, pause: float = ERROR_PAUSE) -> None:
        """Handle errors that the driver reports."""
        while True:
            if self._released():
                await asyncio.sleep(pause)
                continue
            try:
                events = await self._reader.events(wait)
            except DevicesUnavailable as error:
                _log.debug("no_driver_events", error=str(error))
                await asyncio.sleep(wait)
                continue
            if events:
                await self.handle(events)
                await asyncio.sleep(pause)

    async def watch_kernel_log(self, log: KernelLog, pause: float = ERROR_PAUSE) -> None:
        """Handle XIDs in the kernel log."""
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            while True:
                loop.add_reader(log.fileno(), readable.set)
                await readable.wait()
                loop.remove_reader(log.fileno())  # or it fires again and again until the log is read
                readable.clear()
                if events := log.events():
                    await self.handle(events, from_kernel_log=True)
                    await asyncio.sleep(pause)
        finally:
            loop.remove_reader(log.fileno())

    async def watch_kernel_ring(self, ring: KernelRing, period: float = EVENT_WAIT) -> None:
        """Handle XIDs in the kernel's log buffer."""
        while True:
            await asyncio.sleep(period)
            if events := ring.events():
                await self.handle(events, from_kernel_log=True)

    async def handle(self, events: Iterable[DeviceEvent], from_kernel_log: bool = False) -> None:
        """Count and judge errors, publish the verdicts, then read: one error is often followed by others."""
        events = tuple(events)
        self._tracker.observe_events(events)
        by_address = {device.pci_bus_id: device.uuid for device in self._known if device.pci_bus_id}
        same: dict[tuple[EventKind, int, str], list[DeviceEvent]] = {}
        for event in events:
            uuid = event.uuid or by_address.get(event.pci_bus_id or "", "")
            same.setdefault((event.kind, event.code, uuid), []).append(event)
            if event.kind is EventKind.XID and uuid:
                _count(self._kernel_xids if from_kernel_log else self._driver_xids, uuid, event.code)
        for (kind, code, uuid), each in same.items():
            message = each[-1].message
            _log.warning("gpu_error", kind=kind, code=code, gpu=uuid, times=len(each), message=message)
        self._publish(self.observation)
        await self.read()

    def set_gpu_findings(self, key: str, findings: Mapping[int, Finding]) -> None:
        """Set findings that the driver does not report on these GPUs, clear them on all others, and tell changes."""
        before = self._tracker.open_findings()
        self._tracker.set_gpu_findings(key, findings, self._clock())
        if [each.finding for each in before] != [each.finding for each in self._tracker.open_findings()]:
            self._publish(self.observation)

    def _publish(self, observation: Observation) -> Observation:
        for device in observation.devices:
            before = self.observation.verdicts.get(device.uuid)
            verdict = self._tracker.verdict(device.uuid)
            if before is not None and before.health is not verdict.health:
                log = _log.info if verdict.health is Health.HEALTHY else _log.warning
                reason = verdict.reason or verdict.recovery_reason
                log("gpu_health_changed", gpu=device.index, health=verdict.health, reason=reason)
                for listener in self._health_listeners:
                    listener(device, before, verdict)
        verdicts = {uuid: self._dated(uuid, verdict) for uuid, verdict in self._tracker.verdicts().items()}
        xids = dict(self._driver_xids | self._kernel_xids)
        self.observation = replace(
            observation,
            verdicts=verdicts,
            xids=xids,
            findings=tuple(self._tracker.open_findings()),
            ports=frozenset(self._port_monitor.used),
            links=dict(self._tracker.links.most),
        )
        for subscriber in self._listeners:
            subscriber(self.observation)
        return self.observation

    def _dated(self, uuid: str, verdict: HealthVerdict) -> HealthVerdict:
        """Return the verdict with the time since when it holds, which may be before this process started."""
        before = self._previous.health.get(uuid)
        if before is None or before.health is not verdict.health:
            kept = {gpu: was for gpu, was in self._previous.health.items() if gpu != uuid}
            self._previous = replace(self._previous, health=kept)
            return verdict
        return replace(verdict, since=before.since)


def _count(xids: Counter[tuple[str, int]], uuid: str, code: int) -> None:
    known = sum(1 for gpu, _ in xids if gpu == uuid)
    if (uuid, code) in xids or known < _MAX_CODES:
        xids[uuid, code] += 1
