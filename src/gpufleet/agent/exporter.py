"""What Prometheus reads of this node: one table of quantities, and who has them.

Names and labels are those that earlier exporters of this family served, so that dashboards go on
working: `node` and `hostname`, `gpu` and `gpu_id` say the same thing twice. A quantity that the driver
does not tell has no series, and readings that are too old are not served as if they were new. What is
served is bounded: series of processes by a number, their labels by a length, codes by the lookout.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpufleet.agent.monitor import Observation
from gpufleet.model.device import DeviceProcess, DeviceReading
from gpufleet.model.node import Health

PREFIX = "nvidia_gpu_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("node", "hostname", "gpu", "gpu_id", "gpu_name", "uuid")
_LONGEST = {"process_name": 64, "user": 64, "command": 256}


@dataclass(frozen=True)
class ExportedQuantity:
    """A row of the table: the metric, where its value is, what it means."""

    name: str
    field: str
    help: str
    counter: bool = False
    scale: float = 1.0


QUANTITIES = (
    ExportedQuantity("utilization_percent", "utilization_percent", "Time in which the GPU computed."),
    ExportedQuantity("used_memory_bytes", "memory_used_bytes", "Memory in use."),
    ExportedQuantity("free_memory_bytes", "memory_free_bytes", "Memory that is free."),
    ExportedQuantity("total_memory_bytes", "memory_total_bytes", "Memory of the GPU."),
    ExportedQuantity(
        "memory_utilization_percent", "memory_share_percent", "Share of the memory that is in use."
    ),
    ExportedQuantity(
        "memory_busy_percent", "memory_utilization_percent", "Time in which memory was read or written."
    ),
    ExportedQuantity("temperature_celsius", "temperature_celsius", "Temperature of the chip."),
    ExportedQuantity("power_watts", "power_watts", "Power drawn."),
    ExportedQuantity("power_limit_watts", "power_limit_watts", "Power that the GPU may draw."),
    ExportedQuantity(
        "energy_joules", "energy_joules", "Energy used since the driver was loaded.", counter=True
    ),
    ExportedQuantity("sm_clock_hertz", "sm_clock_mhz", "Clock of the processors.", scale=1e6),
    ExportedQuantity("memory_clock_hertz", "memory_clock_mhz", "Clock of the memory.", scale=1e6),
    ExportedQuantity(
        "ecc_corrected_errors", "ecc_corrected", "Corrected memory errors since reset.", counter=True
    ),
    ExportedQuantity(
        "ecc_uncorrected_errors", "ecc_uncorrected", "Uncorrectable memory errors since reset.", counter=True
    ),
)
"""Every quantity of a GPU that is served."""

PROCESS_QUANTITIES = (
    ExportedQuantity(
        "process_gpu_memory_bytes", "gpu_memory_bytes", "Memory of the GPU that the process holds."
    ),
    ExportedQuantity("process_cpu_percent", "cpu_percent", "CPU time of the process; 100 is one core."),
    ExportedQuantity("process_memory_percent", "memory_percent", "Share of the machine's memory."),
)
"""Every quantity of a process."""


class Exporter:
    """Serves the present sight as Prometheus's text."""

    def __init__(
        self,
        node: str,
        sight: Callable[[], Observation],
        *,
        stale_after: float = 60.0,
        identify: bool = False,
        max_processes: int = 256,
        own: Callable[[], Iterable[Metric]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`own` are metrics of the agent itself; readings older than `stale_after` seconds are left out."""
        self._node = node
        self._sight = sight
        self._stale_after = stale_after
        self._identify = identify
        self._max_processes = max_processes
        self._own = own
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The whole page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        sight = self._sight()
        labels = {device.uuid: self._gpu(device.index, device.uuid, device.model) for device in sight.devices}
        if self._clock() - sight.read_at <= self._stale_after:
            yield from _families(QUANTITIES, _LABELS, _rows(sight.readings, labels))
            yield from self._process_families(sight.processes, labels)
        yield self._health(sight, labels)
        yield self._xids(sight, labels)
        yield GaugeMetricFamily(
            "gpufleet_agent_driver_answers",
            "Whether the GPU driver answered the last question.",
            value=float(not sight.silence and sight.read_at > 0),
        )
        yield from self._own()

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are known when they are collected."""
        return iter(())

    def _gpu(self, index: int, uuid: str, model: str | None) -> tuple[str, ...]:
        return (self._node, self._node, str(index), str(index), model or "", uuid)

    def _health(self, sight: Observation, labels: dict[str, tuple[str, ...]]) -> Metric:
        family = GaugeMetricFamily(
            f"{PREFIX}healthy", "1 if the GPU can be given out, else 0.", labels=_LABELS
        )
        for device in sight.devices:
            verdict = sight.verdicts.get(device.uuid)
            family.add_metric(labels[device.uuid], float(bool(verdict and verdict.health is Health.HEALTHY)))
        return family

    def _xids(self, sight: Observation, labels: dict[str, tuple[str, ...]]) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}xid_errors", "XIDs since the agent started.", labels=(*_LABELS, "xid")
        )
        for (uuid, code), count in sorted(sight.xids.items()):
            if uuid in labels:
                family.add_metric((*labels[uuid], str(code)), count)
        return family

    def _process_families(
        self, processes: Sequence[DeviceProcess], labels: dict[str, tuple[str, ...]]
    ) -> Iterator[Metric]:
        who = ("pid", "process_name", *(("user", "command") if self._identify else ()))
        largest = sorted(_once(processes), key=lambda process: -(process.gpu_memory_bytes or 0))
        shown = largest[: self._max_processes]
        rows = [
            ((*labels[process.uuid], *_who(process, who)), process)
            for process in shown
            if process.uuid in labels
        ]
        yield from _families(PROCESS_QUANTITIES, (*_LABELS, *who), rows)
        yield GaugeMetricFamily(
            "gpufleet_agent_processes_left_out",
            "Processes on GPUs that are not among the metrics, since there are too many.",
            value=len(largest) - len(shown),
        )


def _families(
    table: Iterable[ExportedQuantity], labels: Sequence[str], rows: Sequence[tuple[tuple[str, ...], object]]
) -> Iterator[Metric]:
    for quantity in table:
        kind = CounterMetricFamily if quantity.counter else GaugeMetricFamily
        family = kind(PREFIX + quantity.name, quantity.help, labels=labels)
        for values, source in rows:
            value = getattr(source, quantity.field)
            if value is not None:
                family.add_metric(values, value * quantity.scale)
        if family.samples:
            yield family


def _rows(
    readings: Iterable[DeviceReading], labels: dict[str, tuple[str, ...]]
) -> list[tuple[tuple[str, ...], DeviceReading]]:
    return [(labels[reading.uuid], reading) for reading in readings if reading.uuid in labels]


def _once(processes: Iterable[DeviceProcess]) -> list[DeviceProcess]:
    """Each process once for each GPU: what it holds on several MIG instances is added up."""
    found: dict[tuple[str, int], DeviceProcess] = {}
    for process in processes:
        key = (process.uuid, process.pid)
        if key in found:
            both = (found[key].gpu_memory_bytes, process.gpu_memory_bytes)
            held = None if both == (None, None) else sum(part or 0 for part in both)
            found[key] = replace(found[key], gpu_memory_bytes=held)
        else:
            found[key] = process
    return list(found.values())


def _who(process: DeviceProcess, fields: Iterable[str]) -> Iterator[str]:
    told = {
        "pid": str(process.pid),
        "process_name": process.name,
        "user": process.user,
        "command": process.command,
    }
    for field in fields:
        yield (told[field] or "")[: _LONGEST.get(field, 32)]
