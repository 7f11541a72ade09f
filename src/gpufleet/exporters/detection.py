"""Detect which exporters a cluster runs, from the names of its metrics.

From time to time the metric source is queried for all metric names, which is one cheap index lookup.
An exporter is present if any of its quantities is among them. A `DetectedExporter` knows the prefix that
the operator chose and the metrics that exist, so that no query is made in vain.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from gpufleet.exporters.known_exporters import KNOWN_EXPORTERS, ExporterDefinition, FaultMetric, Metric
from gpufleet.model.reading import Quantity

_PREFIX_HINTS = ("gpu_gfx_activity", "gpu_used_vram", "gpu_total_vram", "gpu_package_power", "gpu_health")
"""Metrics that reveal the prefix of an exporter with any prefix; it takes two of them."""


@dataclass(frozen=True)
class DetectedExporter:
    """An exporter as one cluster runs it."""

    definition: ExporterDefinition
    prefix: str
    names: frozenset[str]
    """The metrics that exist, with their prefix."""

    @cached_property
    def quantities(self) -> dict[Quantity, tuple[Metric, ...]]:
        """The metrics of each quantity, best first."""
        found = {
            quantity: tuple(metric for metric in metrics if self.full_name(metric.name) in self.names)
            for quantity, metrics in self.definition.metrics.items()
        }
        return {quantity: metrics for quantity, metrics in found.items() if metrics}

    @cached_property
    def faults(self) -> tuple[FaultMetric, ...]:
        """The metrics that report faults."""
        return tuple(
            fault
            for fault in self.definition.faults
            if self.matching(fault.name) and not (fault.unless and self.full_name(fault.unless) in self.names)
        )

    @cached_property
    def processes(self) -> dict[str, str]:
        """The metrics of processes by field."""
        return {
            field: self.full_name(name)
            for field, name in self.definition.processes.items()
            if self.full_name(name) in self.names
        }

    def full_name(self, name: str) -> str:
        """Return a metric's name with the prefix."""
        return self.prefix + name

    def matching(self, name: str) -> list[str]:
        """Return the metrics that a name, or a name ending in `*`, matches."""
        if name.endswith("*"):
            return sorted(known for known in self.names if known.startswith(self.full_name(name[:-1])))
        return [self.full_name(name)] if self.full_name(name) in self.names else []


def detect_exporters(names: Iterable[str], only: Collection[str] = ()) -> tuple[DetectedExporter, ...]:
    """Return the exporters that provide metrics of these `names`, in order of precedence.

    `only` limits them to some exporters.
    """
    present = frozenset(names)
    found = []
    for exporter in KNOWN_EXPORTERS:
        if only and exporter.name not in only:
            continue
        prefixes = _prefixes(present) if exporter.any_prefix else [exporter.prefix]
        for prefix in prefixes:
            detected = DetectedExporter(exporter, prefix, _metrics_of(exporter, prefix, present))
            if detected.quantities:
                found.append(detected)
    return tuple(found)


def assumed_exporters(only: Collection[str]) -> tuple[DetectedExporter, ...]:
    """Return the named exporters with all their metrics, for a source that does not list its names."""
    return tuple(
        DetectedExporter(exporter, exporter.prefix, frozenset(_all_metrics(exporter)))
        for exporter in KNOWN_EXPORTERS
        if exporter.name in only
    )


def _all_metrics(exporter: ExporterDefinition) -> Iterable[str]:
    for metrics in exporter.metrics.values():
        yield from (exporter.prefix + metric.name for metric in metrics)
    yield from (exporter.prefix + name for name in exporter.processes.values())
    if exporter.info:
        yield exporter.prefix + exporter.info


def _metrics_of(exporter: ExporterDefinition, prefix: str, present: frozenset[str]) -> frozenset[str]:
    exact = {metric.name for metrics in exporter.metrics.values() for metric in metrics}
    exact |= {exporter.info, *exporter.processes.values(), *(fault.name for fault in exporter.faults)}
    starts = tuple(prefix + fault.name[:-1] for fault in exporter.faults if fault.name.endswith("*"))
    names = {prefix + name for name in exact if name}
    return frozenset(name for name in present if name in names or (starts and name.startswith(starts)))


def _prefixes(present: frozenset[str]) -> list[str]:
    counts: dict[str, int] = {}
    for hint in _PREFIX_HINTS:
        for name in present:
            if name.endswith(hint):
                prefix = name[: -len(hint)]
                counts[prefix] = counts.get(prefix, 0) + 1
    return sorted(prefix for prefix, count in counts.items() if count >= 2 or prefix in ("", "amd_"))
