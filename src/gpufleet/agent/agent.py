"""Wire the agent's components and name the tasks that run them.

Without a Kubernetes client the agent only reads GPUs and serves metrics. With one, it first restores what an
earlier agent published, so that it notices a GPU that disappeared in between. It publishes nothing before its
own first read.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpufleet.agent.dra import DraDriver
from gpufleet.agent.exporter import Exporter
from gpufleet.agent.extended_resources import ExtendedResources
from gpufleet.agent.gpu_holders import LEASE_CHECK_S, GpuHolders
from gpufleet.agent.health_events import HealthEvents
from gpufleet.agent.memory import trim
from gpufleet.agent.monitor import Monitor
from gpufleet.agent.node_status import Holders, node_gpus, previous_state, released_until
from gpufleet.agent.pod_logs import PodLogs
from gpufleet.agent.pod_processes import OrphanAge, orphans
from gpufleet.agent.pod_resources import list_plugin_devices
from gpufleet.agent.status_publisher import StatusPublisher
from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.deadline_reader import DeadlineReader
from gpufleet.gpus.drivers.detect import health_rules, reader_from_settings
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.infiniband import PortMonitor
from gpufleet.gpus.kernel_log import KernelLog, KernelRing, open_kernel_log
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.crds.gpu_node_status import NodeGpus
from gpufleet.runtime.http_listener import HttpListener
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import AgentSettings, DevicesSettings, SlurmSettings
from gpufleet.training.log_patterns import LogPattern

if TYPE_CHECKING:
    from gpufleet.agent.slurm_drain import SlurmDrain

MAX_STUCK_CALLS = 4
"""Hanging driver calls at which the agent is not alive, so that the kubelet restarts it."""
START_TIMEOUT = 10.0
"""Seconds to wait at the start for what an earlier agent published, and for the holders of GPUs."""
READS_TO_SETTLE = 2
"""Reads after which the start is over: everything was imported, listed, read and published once."""

Task = Callable[[], Awaitable[None]]
_log = get_logger("agent")


class Agent:
    """The agent of one node."""

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        devices: DevicesSettings,
        client: KubeClient | None = None,
        lease_namespace: str = "default",
        reader: DeadlineReader | None = None,
        patterns: Sequence[LogPattern] = (),
        slurm: SlurmSettings | None = None,
        lease_check: float = LEASE_CHECK_S,
    ) -> None:
        """`patterns` are the users' own for the logs of training jobs."""
        self.node = node
        self._settings = settings
        self._devices = devices
        self._lease_check = lease_check
        self._patterns = patterns
        self._reader = reader or reader_from_settings(devices)
        rules = health_rules(devices)
        self.monitor = Monitor(
            self._reader,
            HealthTracker(rules),
            port_monitor=PortMonitor(rules.least_rails),
            processes=settings.processes,
            identify=devices.identify,
        )
        self.exporter = Exporter(
            node,
            lambda: self.monitor.observation,
            stale_after=max(10.0, 3 * settings.period),
            identify=devices.identify,
            agent_metrics=self._agent_metrics,
        )
        self.publisher: StatusPublisher | None = None
        self.holders: GpuHolders | None = None
        self.events: HealthEvents | None = None
        self.logs: PodLogs | None = None
        self.resources: ExtendedResources | None = None
        self.dra: DraDriver | None = None
        self.slurm: SlurmDrain | None = None
        self._kernel_log: KernelLog | None = None
        self._kernel_ring: KernelRing | None = None
        self._kernel_log_problem = "" if devices.kernel_log else "devices.kernel_log is off"
        self._orphans = OrphanAge()
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._started_at = self._read_at = time.monotonic()
        self._restored = asyncio.Event()
        self.monitor.subscribe(self._on_read)
        if settings.slurm_drain:
            self.slurm = self._slurm_drain(slurm or SlurmSettings())
        if client is not None:
            self._publish_through(client, lease_namespace)

    def _publish_through(self, client: KubeClient, lease_namespace: str) -> None:
        self.publisher = StatusPublisher(client, self.node, self._status)
        self.events = HealthEvents(client, self.node, self._published_uid)
        self.monitor.subscribe_to_health(self.events.add)
        kubelet, pod_logs = self._settings.kubelet, self._settings.pod_logs
        holders = self.holders = GpuHolders(
            client,
            self.node,
            lease_namespace,
            lambda: self.monitor.observation.devices,
            check=self._lease_check,
            plugin_devices=partial(list_plugin_devices, kubelet) if kubelet else None,
            on_change=self.publisher.wake,
        )
        if self._settings.extended_resources:
            self.resources = ExtendedResources(
                client, self.node, lambda: self.monitor.observation.devices, self._lease_check
            )
        if self._settings.dra:
            dra = self.dra = DraDriver(
                client, self.node, self._settings.kubelet_root, self.publisher.cordoned
            )
            self.monitor.subscribe(dra.on_read)
            self.publisher.watch.subscribe(lambda _changes: dra.slices.wake())
        if pod_logs is not None:
            self.logs = PodLogs(pod_logs, lambda: holders.pods.cache, holders.uids, self._patterns)

    def _slurm_drain(self, settings: SlurmSettings) -> "SlurmDrain":
        # Not at the top: most agents would have these modules in memory for nothing.
        from gpufleet.agent.slurm_drain import SlurmDrain
        from gpufleet.sources.slurm.commands import SlurmCommands

        name = self.node.partition(".")[0]
        return SlurmDrain(SlurmCommands(settings), name, lambda: self.monitor.observation)

    def _published_uid(self) -> str:
        found = self.publisher.published if self.publisher else None
        return found.metadata.uid if found else ""

    def tasks(self) -> dict[str, Task]:
        """Return the tasks to run, by name."""
        tasks: dict[str, Task] = {"devices": self._read_devices, "driver events": self.monitor.watch_driver}
        if self._devices.kernel_log:
            self._open_kernel_log()
        if self._kernel_log is not None:
            tasks["kernel log"] = partial(self.monitor.watch_kernel_log, self._kernel_log)
        if self._kernel_ring is not None:
            tasks["kernel log"] = partial(self.monitor.watch_kernel_ring, self._kernel_ring)
        if self.publisher is not None and self.holders is not None:
            tasks["own object"] = self.publisher.watch.run
            tasks["publish"] = self.publisher.run
            tasks["release driver"] = self._release_driver
            tasks["pods"] = self.holders.pods.run
            if self.events is not None:
                tasks["events"] = self.events.run
            tasks["holders"] = self.holders.run
        if self.resources is not None:
            tasks["extended resources"] = self.resources.run
        if self.dra is not None:
            tasks |= self.dra.tasks()
        if self.slurm is not None:
            tasks["slurm"] = self.slurm.run
        if self.logs is not None:
            tasks["training logs"] = self.logs.run
        return tasks

    def listener(self) -> HttpListener:
        """Return the HTTP port with metrics and probes."""
        return HttpListener(metrics=self.exporter.render, alive=self.not_alive, ready=self.not_ready)

    async def close(self) -> None:
        """Close the driver and all files."""
        if self._kernel_log is not None:
            self._kernel_log.close()
        if self.logs is not None:
            self.logs.close()
        await self._reader.close()

    def not_alive(self) -> str:
        """Return why the process must be restarted, or an empty string.

        A silent driver is no reason while reads still end. Too many hanging calls are: no more are tried then.
        """
        if self._reader.stuck >= MAX_STUCK_CALLS:
            return f"{self._reader.stuck} calls into the GPU driver do not return; a restart is needed"
        age = time.monotonic() - self._read_at
        limit = 4 * (self._settings.period + 3 * self._devices.deadline)
        return f"the GPUs were not read for {age:.0f} s" if age > limit else ""

    def not_ready(self) -> str:
        """Return why there are no metrics yet, or an empty string."""
        return "" if self.monitor.reads else "the GPUs were not read yet"

    async def _release_driver(self) -> None:
        """Close the driver while the repair of this node asks for it."""
        assert self.publisher is not None
        changed = asyncio.Event()
        stop = self.publisher.watch.subscribe(lambda _changes: changed.set())
        try:
            while True:
                await changed.wait()
                changed.clear()
                await self.monitor.release(released_until(self.publisher.published))
        finally:
            stop()

    async def _read_devices(self) -> None:
        await self._restore()
        await self.monitor.run(self._settings.period, self._settings.health_period)

    async def _restore(self) -> None:
        """Restore what an earlier agent published, if the API server answers in time."""
        if self.publisher is None or self._restored.is_set():
            return
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self.publisher.watch.synced()
        except TimeoutError:
            _log.warning("previous_status_not_read", node=self.node)
        if self.publisher.published is not None:
            self.monitor.restore(previous_state(self.publisher.published))
        self._restored.set()

    def _on_read(self, _observation: object) -> None:
        self._read_at = time.monotonic()
        if self.publisher is not None:
            self.publisher.wake()
        if self.resources is not None:
            self.resources.on_read()
        if self.holders is not None and self.monitor.reads == 1:
            self.holders.check_now()
        if self.monitor.reads == READS_TO_SETTLE:
            trim()

    def _status(self, cordoned: frozenset[int]) -> NodeGpus | None:
        if not self.monitor.reads:
            return None
        observation = self.monitor.observation
        if not observation.devices and observation.problem:
            return None  # nothing was ever published that could become Unknown
        if self.holders is None:
            return node_gpus(observation, {}, cordoned, kernel_log=self._kernel_log_problem)
        if not self.holders.ready and time.monotonic() - self._started_at < START_TIMEOUT:
            return None
        pods = {pod.metadata.uid for pod in self.holders.pods.cache}
        draining = orphans(observation.processes, pods) if self.holders.ready else {}
        self._judge_orphans(draining)
        return node_gpus(
            self.monitor.observation,
            self.holders.holders(),
            cordoned,
            draining,
            kernel_log=self._kernel_log_problem,
        )

    def _judge_orphans(self, draining: Holders) -> None:
        """Set the findings about processes of deleted pods, and look again when the next one is due."""
        now = time.monotonic()
        self.monitor.set_gpu_findings("orphan-processes", self._orphans.findings(draining, now))
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
            self._orphan_timer = None
        due = self._orphans.next_due(now)
        if due is not None and self.publisher is not None:
            self._orphan_timer = asyncio.get_running_loop().call_later(due - now, self.publisher.wake)

    def _open_kernel_log(self) -> None:
        try:
            opened = open_kernel_log()
        except DevicesUnavailable as error:
            self._kernel_log_problem = str(error)
            _log.info("kernel_log_not_read", reason=str(error))
            return
        if isinstance(opened, KernelLog):
            self._kernel_log = opened
        else:
            self._kernel_ring = opened

    def _agent_metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gpufleet_agent_stuck_calls",
            "Calls into the driver that do not return.",
            value=self._reader.stuck,
        )
        yield CounterMetricFamily("gpufleet_agent_looks", "Reads of the GPUs.", value=self.monitor.reads)
        if self.logs is not None:
            yield from self.logs.metrics()
        if self.dra is not None:
            yield GaugeMetricFamily(
                "gpufleet_agent_dra_registered",
                "Whether the kubelet has accepted the agent as DRA driver.",
                value=float(self.dra.plugin.registered),
            )
        if self.publisher is not None:
            yield CounterMetricFamily(
                "gpufleet_agent_status_writes", "Writes of the GpuNodeStatus.", value=self.publisher.writes
            )
            yield CounterMetricFamily(
                "gpufleet_agent_status_failures", "Writes that failed.", value=self.publisher.failures
            )
