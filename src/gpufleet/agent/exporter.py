"""Metrics of this node's GPUs for Prometheus.

Names and labels are those of the earlier nvidia_gpu exporter, so that existing dashboards work: `node` and
`hostname`, `gpu` and `gpu_id` have the same value. A quantity that the driver does not report has no series,
and stale readings are left out. The output is bounded: the number of processes and the length of their labels
here, the number of XIDs by the monitor.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpufleet.agent.monitor import Observation
from gpufleet.model.device import DeviceProcess, DeviceReading
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.node import Health

PREFIX = "nvidia_gpu_"
_LABELS = ("node", "hostname", "gpu", "gpu_id", "gpu_name", "uuid")
_MAX_LABEL = {"process_name": 64, "user": 64, "command": 256}


@dataclass(frozen=True)
class ExportedQuantity:
    """A metric, the field of the reading it comes from, and its help text."""

    name: str
    field: str
    help: str
    counter: bool = False
    scale: float = 1.0


QUANTITIES = (
    ExportedQuantity("utilization_percent", "utilization_percent", "Share of time the GPU was busy."),
    ExportedQuantity("used_memory_bytes", "memory_used_bytes", "Memory in use."),
    ExportedQuantity("free_memory_bytes", "memory_free_bytes", "Free memory."),
    ExportedQuantity("total_memory_bytes", "memory_total_bytes", "Memory of the GPU."),
    ExportedQuantity("memory_utilization_percent", "memory_share_percent", "Share of memory in use."),
    ExportedQuantity(
        "memory_busy_percent", "memory_utilization_percent", "Share of time memory was read or written."
    ),
    ExportedQuantity("temperature_celsius", "temperature_celsius", "Temperature of the chip."),
    ExportedQuantity("power_watts", "power_watts", "Power drawn."),
    ExportedQuantity("power_limit_watts", "power_limit_watts", "Power limit."),
    ExportedQuantity(
        "energy_joules", "energy_joules", "Energy used since the driver was loaded.", counter=True
    ),
    ExportedQuantity("sm_clock_hertz", "sm_clock_mhz", "Clock of the streaming multiprocessors.", scale=1e6),
    ExportedQuantity("memory_clock_hertz", "memory_clock_mhz", "Clock of the memory.", scale=1e6),
    ExportedQuantity(
        "ecc_corrected_errors", "ecc_corrected", "Corrected memory errors since reset.", counter=True
    ),
    ExportedQuantity(
        "ecc_uncorrected_errors", "ecc_uncorrected", "Uncorrectable memory errors since reset.", counter=True
    ),
)
"""Every metric of a GPU."""

PROCESS_QUANTITIES = (
    ExportedQuantity("process_gpu_memory_bytes", "gpu_memory_bytes", "GPU memory of the process."),
    ExportedQuantity("process_cpu_percent", "cpu_percent", "CPU time of the process; 100 is one core."),
    ExportedQuantity("process_memory_percent", "memory_percent", "Share of the machine's memory."),
)
"""Every metric of a process."""


MAX_PROCESSES = 256
"""Processes with metrics, those with the most GPU memory first: each is a series in Prometheus."""


class Exporter:
    """Renders the latest observation in the Prometheus text format."""

    def __init__(
        self,
        node: str,
        observe: Callable[[], Observation],
        *,
        stale_after: float = 60.0,
        identify: bool = False,
        max_processes: int = MAX_PROCESSES,
        agent_metrics: Callable[[], Iterable[Metric]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Leave out readings that are older than `stale_after` seconds."""
        self._node = node
        self._observe = observe
        self._stale_after = stale_after
        self._identify = identify
        self._max_processes = max_processes
        self._agent_metrics = agent_metrics
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; called by the registry."""
        observation = self._observe()
        labels = {
            device.uuid: self._gpu(device.index, device.uuid, device.model) for device in observation.devices
        }
        if self._clock() - observation.read_at <= self._stale_after:
            yield from _families(QUANTITIES, _LABELS, _rows(observation.readings, labels))
            yield from self._process_families(observation.processes, labels)
        yield self._health(observation, labels)
        yield self._xids(observation, labels)
        yield GaugeMetricFamily(
            "gpufleet_agent_driver_answers",
            "Whether the GPU driver answered the last call.",
            value=float(not observation.problem and observation.read_at > 0),
        )
        yield from self._agent_metrics()

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: names are known only when metrics are collected."""
        return iter(())

    def _gpu(self, index: int, uuid: str, model: str | None) -> tuple[str, ...]:
        return (self._node, self._node, str(index), str(index), canonical_model(model or ""), uuid)

    def _health(self, observation: Observation, labels: dict[str, tuple[str, ...]]) -> Metric:
        family = GaugeMetricFamily(
            f"{PREFIX}healthy", "1 if the GPU can be allocated, else 0.", labels=_LABELS
        )
        for device in observation.devices:
            verdict = observation.verdicts.get(device.uuid)
            family.add_metric(labels[device.uuid], float(bool(verdict and verdict.health is Health.HEALTHY)))
        return family

    def _xids(self, observation: Observation, labels: dict[str, tuple[str, ...]]) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}xid_errors", "XIDs since the agent started.", labels=(*_LABELS, "xid")
        )
        for (uuid, code), count in sorted(observation.xids.items()):
            if uuid in labels:
                family.add_metric((*labels[uuid], str(code)), count)
        return family

    def _process_families(
        self, processes: Sequence[DeviceProcess], labels: dict[str, tuple[str, ...]]
    ) -> Iterator[Metric]:
        names = ("pid", "process_name", *(("user", "command") if self._identify else ()))
        largest = sorted(_merged(processes), key=lambda process: -(process.gpu_memory_bytes or 0))
        shown = largest[: self._max_processes]
        rows = [
            ((*labels[process.uuid], *_process_labels(process, names)), process)
            for process in shown
            if process.uuid in labels
        ]
        yield from _families(PROCESS_QUANTITIES, (*_LABELS, *names), rows)
        yield GaugeMetricFamily(
            "gpufleet_agent_processes_left_out",
            "Processes on GPUs without metrics, because there are too many.",
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


def _merged(processes: Iterable[DeviceProcess]) -> list[DeviceProcess]:
    """Return each process once per GPU, with the memory of all its MIG instances."""
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


def _process_labels(process: DeviceProcess, fields: Iterable[str]) -> Iterator[str]:
    values = {
        "pid": str(process.pid),
        "process_name": process.name,
        "user": process.user,
        "command": process.command,
    }
    for field in fields:
        yield (values[field] or "")[: _MAX_LABEL.get(field, 32)]
