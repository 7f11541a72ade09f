"""Look at this machine's GPUs: regularly, and at once when the driver or the kernel tells of an error.

One look asks for inventory, readings and processes and takes them into the health ledger. What a
look has seen is one frozen `Observation`, which is told to those who subscribed. A driver that
hangs or is missing leaves the devices of the last look, which the ledger then calls Unknown.

Events come by two ways that wait in parallel: NVML, and the kernel log, whose text says more. Both
may tell of the same error, and either may miss it (virtual GPUs have no events, and not every agent may
read the log): an XID was seen as often as the one says that has seen it more.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.health import HealthTracker, HealthVerdict
from gpufleet.gpus.infiniband import PortWatch, read_ports
from gpufleet.gpus.kernel_log import KernelLog
from gpufleet.gpus.known_gpus import call_the_roll
from gpufleet.gpus.topology import GpuPosition, places
from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading, EventKind
from gpufleet.model.node import Health
from gpufleet.runtime.logs import get_logger

HealthListener = Callable[[Device, HealthVerdict, HealthVerdict], None]
"""Takes a GPU, what was said of it, and what is said now."""

EVENT_WAIT = 2.0
"""Seconds for which one question for events waits in the driver; the agent's end may have to wait for it."""
BREATH = 0.5
"""Seconds after an error until the next are heard, all at once: a program can make hundreds a second, and each is a look."""
_MOST_CODES = 64
"""Different XIDs counted for one GPU; there are about 170 in all."""
_log = get_logger("agent")


@dataclass(frozen=True)
class Observation:
    """What is known of this machine's GPUs."""

    devices: tuple[Device, ...] = ()
    places: Mapping[str, GpuPosition] = field(default_factory=dict)
    verdicts: Mapping[str, HealthVerdict] = field(default_factory=dict)
    readings: tuple[DeviceReading, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """XIDs seen since the agent started, by GPU and code."""
    read_at: float = 0.0
    """When the driver last answered."""
    silence: str = ""
    """Why there are no new readings; empty while the driver answers."""


@dataclass(frozen=True)
class MonitorMemory:
    """What an earlier agent published of this machine."""

    devices: tuple[Device, ...] = ()
    places: Mapping[str, GpuPosition] = field(default_factory=dict)
    health: Mapping[str, HealthVerdict] = field(default_factory=dict)
    """What it said of each GPU last."""


class Monitor:
    """Keeps the `sight` of this machine up to date."""

    def __init__(
        self,
        reader: DeadlineReader,
        ledger: HealthTracker,
        *,
        processes: bool = True,
        identify: bool = False,
        ports: Callable[[], dict[str, str]] = read_ports,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sight = Observation()
        self.looks = 0
        """Looks so far, whether or not the driver answered."""
        self._reader = reader
        self._ledger = ledger
        self._processes = processes
        self._identify = identify
        self._ports = ports
        self._port_watch = PortWatch()
        self._clock = clock
        self._known: tuple[Device, ...] = ()
        self._memory = MonitorMemory()
        self._told: Counter[tuple[str, int]] = Counter()
        self._logged: Counter[tuple[str, int]] = Counter()
        self._turn = asyncio.Lock()
        self._listeners: list[Callable[[Observation], None]] = []
        self._health_listeners: list[HealthListener] = []

    def subscribe_to_health(self, listener: HealthListener) -> None:
        """Call `listener` whenever the health of a GPU is not what it was."""
        self._health_listeners.append(listener)

    def subscribe(self, listener: Callable[[Observation], None]) -> None:
        """Call `listener` after every look and every event."""
        self._listeners.append(listener)

    def remember(self, memory: MonitorMemory) -> None:
        """Take over what the machine had before this process: a GPU that is gone since is a fault."""
        self._memory, self._known = memory, memory.devices
        self._ledger.see_devices(memory.devices, self._clock())
        for uuid, verdict in memory.health.items():
            if verdict.health is Health.UNHEALTHY:
                self._ledger.recall(uuid, verdict.reason, verdict.since)
        self.sight = replace(self.sight, devices=memory.devices, places=memory.places)

    async def look(self) -> Observation:
        """Look at everything once."""
        async with self._turn:
            try:
                sight = await self._ask()
            except DevicesUnavailable as error:
                sight = replace(self.sight, readings=(), processes=(), silence=self._silence(error))
                if sight.silence != self.sight.silence:
                    _log.warning("GPUs can't be read", error=str(error))
                self._ledger.see_silence(sight.silence, self._clock())
            self._ledger.see_node("infiniband", self._port_watch.look(self._ports()), self._clock())
            self.looks += 1
            return self._show(sight)

    async def _ask(self) -> Observation:
        found = await self._reader.inventory()
        devices = call_the_roll(self._known, found)
        readings = await self._reader.readings()
        processes = await self._reader.processes(self._identify) if self._processes else ()
        if self.sight.silence:
            _log.info("GPUs can be read again")
        now = self._clock()
        self._known = devices
        self._ledger.see_devices(devices, now)
        self._ledger.see_readings(readings)
        return Observation(devices, self._places(devices), {}, readings, processes, {}, now)

    def _places(self, devices: tuple[Device, ...]) -> dict[str, GpuPosition]:
        """Where each GPU stands; one that was gone before this process began stays on its island."""
        found = places(devices)
        for device in devices:
            if device.fault and not device.links and device.uuid in self._memory.places:
                found[device.uuid] = GpuPosition(self._memory.places[device.uuid].island, 0)
        return found

    def _silence(self, error: DevicesUnavailable) -> str:
        """Why nothing is read, in words that stay the same: they are published, and each change is a write."""
        since = self._reader.silent_since
        if since is None:
            return str(error)
        moment = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
        return f"the GPU driver does not answer since {moment}"

    async def run(self, period: float) -> None:
        """Look every `period` seconds."""
        while True:
            started = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, period - (time.monotonic() - started)))

    async def listen(self, wait: float = EVENT_WAIT, breath: float = BREATH) -> None:
        """Take in what the driver tells of errors, as it tells it."""
        while True:
            try:
                events = await self._reader.events(wait)
            except DevicesUnavailable as error:
                _log.debug("no events from the driver", error=str(error))
                await asyncio.sleep(wait)
                continue
            if events:
                await self.take(events)
                await asyncio.sleep(breath)

    async def read_kernel_log(self, log: KernelLog, breath: float = BREATH) -> None:
        """Take in the XIDs of the kernel log as they are written."""
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            while True:
                loop.add_reader(log.fileno(), readable.set)
                await readable.wait()
                loop.remove_reader(log.fileno())  # it would be told of what is not read yet, over and over
                readable.clear()
                if events := log.events():
                    await self.take(events, logged=True)
                    await asyncio.sleep(breath)
        finally:
            loop.remove_reader(log.fileno())

    async def take(self, events: Iterable[DeviceEvent], logged: bool = False) -> None:
        """Judge errors and show the verdict at once; then look, since an error seldom comes alone."""
        told = tuple(events)
        self._ledger.see_events(told)
        by_address = {device.pci_bus_id: device.uuid for device in self._known if device.pci_bus_id}
        same: dict[tuple[EventKind, int, str], list[DeviceEvent]] = {}
        for event in told:
            uuid = event.uuid or by_address.get(event.pci_bus_id or "", "")
            same.setdefault((event.kind, event.code, uuid), []).append(event)
            if event.kind is EventKind.XID and uuid:
                _count(self._logged if logged else self._told, uuid, event.code)
        for (kind, code, uuid), each in same.items():
            message = each[-1].message
            _log.warning("GPU error", kind=kind, code=code, gpu=uuid, times=len(each), message=message)
        self._show(self.sight)
        await self.look()

    def _show(self, sight: Observation) -> Observation:
        for device in sight.devices:
            before = self.sight.verdicts.get(device.uuid)
            verdict = self._ledger.verdict(device.uuid)
            if before is not None and before.health is not verdict.health:
                tell = _log.info if verdict.health is Health.HEALTHY else _log.warning
                why = verdict.reason or verdict.mended
                tell("health changed", gpu=device.index, health=verdict.health, reason=why)
                for listener in self._health_listeners:
                    listener(device, before, verdict)
        verdicts = {uuid: self._lasting(uuid, verdict) for uuid, verdict in self._ledger.verdicts().items()}
        self.sight = replace(sight, verdicts=verdicts, xids=dict(self._told | self._logged))
        for shown in self._listeners:
            shown(self.sight)
        return self.sight

    def _lasting(self, uuid: str, verdict: HealthVerdict) -> HealthVerdict:
        """The verdict since when it holds, which may be longer than this process runs."""
        before = self._memory.health.get(uuid)
        if before is None or before.health is not verdict.health:
            kept = {gpu: was for gpu, was in self._memory.health.items() if gpu != uuid}
            self._memory = replace(self._memory, health=kept)
            return verdict
        return replace(verdict, since=before.since)


def _count(xids: Counter[tuple[str, int]], uuid: str, code: int) -> None:
    known = sum(1 for gpu, _ in xids if gpu == uuid)
    if (uuid, code) in xids or known < _MOST_CODES:
        xids[uuid, code] += 1
