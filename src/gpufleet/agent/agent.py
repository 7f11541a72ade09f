"""The parts of the agent put together, and the tasks that keep them going.

Without a Kubernetes client the agent looks and serves metrics, nothing else. With one it first recalls
what an earlier agent published, so that a GPU that went missing while nobody looked is noticed, and
publishes nothing before it has looked once itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpufleet.agent.exporter import CONTENT_TYPE, Exporter
from gpufleet.agent.gpu_holders import GpuHolders
from gpufleet.agent.health_events import HealthEvents
from gpufleet.agent.http import serving
from gpufleet.agent.memory import give_back
from gpufleet.agent.monitor import Monitor
from gpufleet.agent.node_status import memory_of, report
from gpufleet.agent.pod_logs import PodLogs
from gpufleet.agent.pod_resources import list_plugin_devices
from gpufleet.agent.status_publisher import StatusPublisher
from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.detect import health_rules, patient_reader
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.kernel_log import KernelLog
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.crds.gpu_node_status import NodeGpus
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import AgentSettings, DevicesSettings
from gpufleet.training.log_patterns import LogPattern

MOST_STUCK = 4
"""Driver calls that hang before the kubelet is asked for a new process."""
PATIENCE = 10.0
"""Seconds to wait at the start for what an earlier agent published, and for the holders of GPUs."""
SETTLED = 2
"""Looks after which the start is over: everything was imported, listed, looked at and published once."""

Task = Callable[[], Awaitable[None]]
_log = get_logger("agent")


class Agent:
    """Everything that one node needs."""

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        devices: DevicesSettings,
        client: KubeClient | None = None,
        lease_namespace: str = "default",
        reader: DeadlineReader | None = None,
        patterns: Sequence[LogPattern] = (),
    ) -> None:
        """`patterns` are those of users, for the logs of training jobs."""
        self.node = node
        self._settings = settings
        self._devices = devices
        self._patterns = patterns
        self._reader = reader or patient_reader(devices)
        self.lookout = Monitor(
            self._reader,
            HealthTracker(health_rules(devices)),
            processes=settings.processes,
            identify=devices.identify,
        )
        self.exporter = Exporter(
            node,
            lambda: self.lookout.sight,
            stale_after=max(10.0, 3 * settings.period),
            identify=devices.identify,
            max_processes=settings.max_processes,
            own=self._own_metrics,
        )
        self.publisher: StatusPublisher | None = None
        self.holders: GpuHolders | None = None
        self.events: HealthEvents | None = None
        self.logs: PodLogs | None = None
        self._log: KernelLog | None = None
        self._began = self._looked_at = time.monotonic()
        self._recalled = asyncio.Event()
        self.lookout.subscribe(self._on_look)
        if client is not None:
            self._publish_through(client, lease_namespace)

    def _publish_through(self, client: KubeClient, lease_namespace: str) -> None:
        self.publisher = StatusPublisher(client, self.node, self._compose, heartbeat=self._settings.heartbeat)
        self.events = HealthEvents(client, self.node, self._published_uid)
        self.lookout.subscribe_to_health(self.events.note)
        book = self.holders = GpuHolders(
            client,
            self.node,
            lease_namespace,
            lambda: self.lookout.sight.devices,
            check=self._settings.lease_check,
            plugin=partial(list_plugin_devices, self._settings.kubelet) if self._settings.kubelet else None,
            changed=self.publisher.wake,
        )
        if self._settings.pod_logs is not None:
            self.logs = PodLogs(self._settings.pod_logs, lambda: book.pods.cache, book.uids, self._patterns)

    def _published_uid(self) -> str:
        found = self.publisher.published if self.publisher else None
        return found.metadata.uid if found else ""

    def tasks(self) -> dict[str, Task]:
        """What has to run, by name."""
        tasks: dict[str, Task] = {"devices": self._look, "driver events": self.lookout.listen}
        if self._devices.kernel_log:
            self._open_kernel_log()
        if self._log is not None:
            tasks["kernel log"] = partial(self.lookout.read_kernel_log, self._log)
        if self.publisher is not None and self.holders is not None:
            tasks["own object"] = self.publisher.watch.run
            tasks["publish"] = self.publisher.run
            tasks["pods"] = self.holders.pods.run
            if self.events is not None:
                tasks["events"] = self.events.run
            tasks["holders"] = self.holders.run
        if self.logs is not None:
            tasks["training logs"] = self.logs.run
        return tasks

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve metrics and probes within the block."""
        probes = {"/livez": self.not_alive, "/readyz": self.not_ready}
        settings = self._settings
        async with serving(settings.host, settings.port, self.exporter.text, CONTENT_TYPE, probes) as address:
            yield address

    async def close(self) -> None:
        """Let go of the driver and the kernel log."""
        if self._log is not None:
            self._log.close()
        if self.logs is not None:
            self.logs.close()
        await self._reader.close()

    def not_alive(self) -> str:
        """Why a new process is needed; empty if it isn't."""
        if self._reader.stuck >= MOST_STUCK:
            return (
                f"{self._reader.stuck} calls into the GPU driver do not return; only a new process can help"
            )
        silence = time.monotonic() - self._looked_at
        longest = 4 * (self._settings.period + 3 * self._devices.deadline)
        return f"the GPUs were not looked at for {silence:.0f} s" if silence > longest else ""

    def not_ready(self) -> str:
        """Why there is nothing to read here yet."""
        return "" if self.lookout.looks else "the GPUs were not looked at yet"

    async def _look(self) -> None:
        await self._recall()
        await self.lookout.run(self._settings.period)

    async def _recall(self) -> None:
        """Take over what an earlier agent published, if the API can tell in time."""
        if self.publisher is None or self._recalled.is_set():
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self.publisher.watch.synced()
        except TimeoutError:
            _log.warning("starting without what was published before", node=self.node)
        if self.publisher.published is not None:
            self.lookout.remember(memory_of(self.publisher.published))
        self._recalled.set()

    def _on_look(self, _sight: object) -> None:
        self._looked_at = time.monotonic()
        if self.publisher is not None:
            self.publisher.wake()
        if self.holders is not None and self.lookout.looks == 1:
            self.holders.check_now()
        if self.lookout.looks == SETTLED:
            give_back()

    def _compose(self, cordoned: frozenset[int]) -> NodeGpus | None:
        if not self.lookout.looks:
            return None
        sight = self.lookout.sight
        if not sight.devices and sight.silence:
            return None  # never seen, never published: there is nothing to mark Unknown
        if self.holders is None:
            return report(sight, {}, cordoned)
        if not self.holders.ready and time.monotonic() - self._began < PATIENCE:
            return None
        return report(sight, self.holders.holders(), cordoned)

    def _open_kernel_log(self) -> None:
        try:
            self._log = KernelLog()
        except DevicesUnavailable as error:
            _log.info("without the kernel log", reason=str(error))

    def _own_metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gpufleet_agent_stuck_calls",
            "Calls into the driver that do not return.",
            value=self._reader.stuck,
        )
        yield CounterMetricFamily("gpufleet_agent_looks", "Looks at the GPUs.", value=self.lookout.looks)
        if self.logs is not None:
            yield from self.logs.metrics()
        if self.publisher is not None:
            yield CounterMetricFamily(
                "gpufleet_agent_status_writes", "Writes of the GpuNodeStatus.", value=self.publisher.writes
            )
            yield CounterMetricFamily(
                "gpufleet_agent_status_failures", "Writes that failed.", value=self.publisher.failures
            )
