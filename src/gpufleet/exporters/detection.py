"""Which vocabularies a cluster speaks, found from the names of its metrics.

The metric source is asked once in a while for all metric names (one cheap look into its
index); a vocabulary is spoken where any of its quantities is among them. A `DetectedExporter` is a
vocabulary as one cluster speaks it: with the prefix that its operator chose and only the
metrics that are there, so that nothing is asked for in vain.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from gpufleet.exporters.known_exporters import KNOWN_EXPORTERS, Exporter, FaultMetric, Metric
from gpufleet.model.reading import Quantity

_ANCHORS = ("gpu_gfx_activity", "gpu_used_vram", "gpu_total_vram", "gpu_package_power", "gpu_health")
"""Metrics by which a vocabulary without a prefix of its own is known; two of them make one."""


@dataclass(frozen=True)
class DetectedExporter:
    """A vocabulary as a cluster speaks it."""

    vocabulary: Exporter
    prefix: str
    names: frozenset[str]
    """The metrics that are there, with their prefix."""

    @cached_property
    def quantities(self) -> dict[Quantity, tuple[Metric, ...]]:
        """The metrics that carry each quantity, best first."""
        found = {
            quantity: tuple(metric for metric in metrics if self.full(metric.name) in self.names)
            for quantity, metrics in self.vocabulary.metrics.items()
        }
        return {quantity: metrics for quantity, metrics in found.items() if metrics}

    @cached_property
    def faults(self) -> tuple[FaultMetric, ...]:
        """The metrics that say what is wrong."""
        return tuple(
            fault
            for fault in self.vocabulary.faults
            if self.matching(fault.name) and not (fault.unless and self.full(fault.unless) in self.names)
        )

    @cached_property
    def processes(self) -> dict[str, str]:
        """The metrics of processes that are there, by field."""
        return {
            field: self.full(name)
            for field, name in self.vocabulary.processes.items()
            if self.full(name) in self.names
        }

    def full(self, name: str) -> str:
        """A metric's whole name."""
        return self.prefix + name

    def matching(self, name: str) -> list[str]:
        """The metrics that a name, or a name that ends in `*`, stands for."""
        if name.endswith("*"):
            return sorted(known for known in self.names if known.startswith(self.full(name[:-1])))
        return [self.full(name)] if self.full(name) in self.names else []


def detect_exporters(names: Iterable[str], only: Collection[str] = ()) -> tuple[DetectedExporter, ...]:
    """What is spoken where metrics have these `names`, in order of precedence; `only` limits it."""
    present = frozenset(names)
    spoken = []
    for vocabulary in KNOWN_EXPORTERS:
        if only and vocabulary.name not in only:
            continue
        prefixes = _prefixes(present) if vocabulary.any_prefix else [vocabulary.prefix]
        for prefix in prefixes:
            dialect = DetectedExporter(vocabulary, prefix, _of(vocabulary, prefix, present))
            if dialect.quantities:
                spoken.append(dialect)
    return tuple(spoken)


def assumed_exporters(only: Collection[str]) -> tuple[DetectedExporter, ...]:
    """The vocabularies named, in full: for a metric source that does not tell its names."""
    return tuple(
        DetectedExporter(vocabulary, vocabulary.prefix, frozenset(_written(vocabulary)))
        for vocabulary in KNOWN_EXPORTERS
        if vocabulary.name in only
    )


def _written(vocabulary: Exporter) -> Iterable[str]:
    for metrics in vocabulary.metrics.values():
        yield from (vocabulary.prefix + metric.name for metric in metrics)
    yield from (vocabulary.prefix + name for name in vocabulary.processes.values())
    if vocabulary.info:
        yield vocabulary.prefix + vocabulary.info


def _of(vocabulary: Exporter, prefix: str, present: frozenset[str]) -> frozenset[str]:
    exact = {metric.name for metrics in vocabulary.metrics.values() for metric in metrics}
    exact |= {vocabulary.info, *vocabulary.processes.values(), *(f.name for f in vocabulary.faults)}
    starts = tuple(prefix + f.name[:-1] for f in vocabulary.faults if f.name.endswith("*"))
    wanted = {prefix + name for name in exact if name}
    return frozenset(name for name in present if name in wanted or (starts and name.startswith(starts)))


def _prefixes(present: frozenset[str]) -> list[str]:
    seen: dict[str, int] = {}
    for anchor in _ANCHORS:
        for name in present:
            if name.endswith(anchor):
                prefix = name[: -len(anchor)]
                seen[prefix] = seen.get(prefix, 0) + 1
    return sorted(prefix for prefix, count in seen.items() if count >= 2 or prefix in ("", "amd_"))
