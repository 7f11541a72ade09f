"""Roll up one hour of one cluster: who held what, how well it was used, what it costs.

Pure: periods and samples in, an `Hour` out, independent of the order of the input. A sample of the
cluster, a namespace or a label value is the mean over its allocated GPUs at one moment; a sample of
a workload is the reading of one of its GPUs, and its minimum and maximum are of all readings between
the samples, too. Means are weighted by GPUs, so that groups add up to the whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gpufleet.accounting.hour_allocations import HourAllocation, as_columns, cut, hour_allocations
from gpufleet.accounting.hour_capacity import (
    Span,
    capacity_gpu_hours,
    cluster_size,
    observed_ms,
)
from gpufleet.accounting.percentiles import by_moment, distributions, sums
from gpufleet.accounting.prices import price_of
from gpufleet.accounting.replicas import Replicas, replicas
from gpufleet.accounting.samples import AttributedSamples, Ints, Samples, attribute
from gpufleet.model.hours import (
    GPU_HOUR,
    IDLE_BELOW,
    PERCENT,
    ClusterHour,
    Distribution,
    Hour,
    LabelHour,
    NamespaceHour,
    Usage,
    WorkloadHour,
)
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings.prices import Price

MICRO = 1_000_000
Key = TypeVar("Key", bound=tuple[str, ...])
MAX_VALUE = 1024
"""Bytes of a label value that are kept: a database index takes little more."""


MISSING_VALUE = "(none)"
"""The value that pods without a label are counted under; parentheses are not allowed in the value of a label."""


@dataclass(frozen=True)
class RollupPlan:
    """What the statistics are grouped by, and the price of a GPU-hour."""

    label_keys: tuple[str, ...] = ()
    annotation_keys: tuple[str, ...] = ()
    excluded_namespaces: frozenset[str] = frozenset()
    prices: tuple[Price, ...] = ()
    """Of a GPU-hour."""

    def value_of(self, labels: Mapping[str, str], key: str) -> str:
        """Return the value of a label or annotation that a pod is counted under."""
        value = labels.get(key) or MISSING_VALUE
        if len(value) <= MAX_VALUE // 4:
            return value
        return value.encode()[:MAX_VALUE].decode(errors="ignore")


def roll_up(
    hour: int,
    periods: Sequence[AllocationPeriod],
    capacity_periods: Sequence[CapacityPeriod],
    samples: Samples,
    plan: RollupPlan,
    observed: Sequence[Span] | None = None,
    until: float | None = None,
) -> Hour:
    """Return the statistics of the hour that starts at `hour` (Unix seconds, a multiple of 3600).

    `observed` has the spans in which a server followed the cluster; None means the whole hour. With
    `until`, only the time before it counts.
    """
    if until is not None:
        periods, capacity_periods = cut(periods, until), cut(capacity_periods, until)
    spans = [(hour, hour + 3600)] if observed is None else observed
    ordered = sorted(periods, key=lambda period: (period.node, period.start, period.pod_uid))
    table = _HourTable(ordered, hour_allocations(ordered, capacity_periods, hour), samples, plan, hour)
    return Hour(
        start=hour,
        cluster=ClusterHour(
            capacity_gpu_hours=capacity_gpu_hours(capacity_periods, hour),
            gpus=cluster_size(capacity_periods, spans, hour),
            observed=observed_ms(spans, hour),
            usage=table.whole(),
        ),
        namespaces=table.namespaces(),
        labels=table.labels(),
        workloads=table.workloads(hour + 3600 if until is None else until),
    )


class _HourTable:
    """The hour in columns, summed by any grouping of its periods."""

    def __init__(
        self,
        periods: list[AllocationPeriod],
        allocations: list[HourAllocation],
        samples: Samples,
        plan: RollupPlan,
        hour: int,
    ) -> None:
        self._periods = periods
        self._plan = plan
        self._allocations = allocations
        self._samples: AttributedSamples = attribute(samples, allocations, [p.node for p in periods])
        self._moments = len(samples.times)
        columns = as_columns(allocations)
        self._period: Ints = columns[:, 0]
        self._amount: Ints = columns[:, 2] * (columns[:, 4] - columns[:, 3])
        self._workload, self._workload_keys = _number([_workload(p) for p in periods])
        """The workload of each period."""
        self._billed, billed = _number(_billed_as(periods, allocations))
        """The model and source of each allocation, by which it has a price."""
        self._prices = [round(price_of(plan.prices, *key, hour) * MICRO) for key in billed]

    def whole(self) -> Usage:
        """Return the usage of the whole cluster."""
        return self._usage(np.zeros(len(self._periods), dtype=np.int64), 1, by_gpu=False)[0]

    def namespaces(self) -> tuple[NamespaceHour, ...]:
        """Return one row per namespace that held GPUs."""
        groups, keys = _number([(period.namespace,) for period in self._periods])
        return tuple(
            NamespaceHour(namespace=key[0], usage=usage)
            for key, usage in zip(keys, self._usage(groups, len(keys), by_gpu=False), strict=True)
            if usage.allocated and key[0] not in self._plan.excluded_namespaces
        )

    def labels(self) -> tuple[LabelHour, ...]:
        """Return one row per value of each configured label and annotation key."""
        rows: list[LabelHour] = []
        for kind, keys in (("label", self._plan.label_keys), ("annotation", self._plan.annotation_keys)):
            for key in keys:
                rows += self._label(kind, key)
        return tuple(rows)

    def _label(self, kind: str, key: str) -> list[LabelHour]:
        labels = [p.labels if kind == "label" else p.annotations for p in self._periods]
        groups, values = _number([(self._plan.value_of(each, key),) for each in labels])
        return [
            LabelHour(dimension_type=kind, dimension_key=key, dimension_value=value[0], usage=usage)
            for value, usage in zip(values, self._usage(groups, len(values), by_gpu=False), strict=True)
            if usage.allocated
        ]

    def workloads(self, end: float) -> tuple[WorkloadHour, ...]:
        """Return one row per workload; those that hold GPUs at `end` are running."""
        count = len(self._workload_keys)
        usages = self._usage(self._workload, count, by_gpu=True)
        memory = self._memory(count)
        pods = replicas(self._allocations, self._periods, self._workload, count)
        latest: dict[int, AllocationPeriod] = {}
        for number, period in enumerate(self._periods):
            group = int(self._workload[number])
            if group not in latest or _order(latest[group]) < _order(period):
                latest[group] = period
        return tuple(
            self._workload_row(key, latest[group], usages[group], memory[group], pods[group], end)
            for group, key in enumerate(self._workload_keys)
            if usages[group].allocated and key[0] not in self._plan.excluded_namespaces
        )

    def _workload_row(
        self,
        key: tuple[str, ...],
        latest: AllocationPeriod,
        usage: Usage,
        memory: tuple[float | None, float | None, float | None],
        pods: Replicas,
        end: float,
    ) -> WorkloadHour:
        namespace, kind, name, uid = key
        return WorkloadHour(
            namespace=namespace,
            kind=kind,
            name=name,
            uid=uid,
            source=latest.source,
            labels=latest.labels,
            annotations=latest.annotations,
            running=pods.last_end >= round(end * 1000),
            requested_gpus=pods.highest_gpus,
            mean_replicas=pods.mean,
            most_replicas=pods.highest,
            fewest_replicas=pods.lowest,
            mean_memory_used=memory[0],
            most_memory_used=memory[1],
            mean_memory_total=memory[2],
            usage=usage,
        )

    def _usage(self, groups: Ints, count: int, *, by_gpu: bool) -> list[Usage]:
        samples = self._samples
        amount = sums(groups[self._period], self._amount, count)
        sampled = groups[samples.period]
        idle_amount = np.where(samples.utilization < IDLE_BELOW * PERCENT, samples.covered * samples.ppm, 0)
        idle = sums(sampled, idle_amount, count)
        utilization: list[Distribution]
        if by_gpu:
            utilization = distributions(
                sampled, samples.utilization, samples.ppm, count, samples.lowest, samples.highest
            )
        else:
            utilization = by_moment(
                sampled, samples.column, samples.utilization, samples.ppm, count, max(1, self._moments)
            )
        pairs = np.unique(groups[self._period] * len(self._workload_keys) + self._workload[self._period])
        active = np.bincount(pairs // max(1, len(self._workload_keys)), minlength=count)
        costs = self._costs(groups, count)
        powered = groups[samples.energy_period]
        energy, readings = sums(powered, samples.energy, count), np.bincount(powered, minlength=count)
        return [
            Usage(
                allocated=int(amount[g]),
                idle=int(idle[g]),
                utilization=utilization[g],
                workloads=int(active[g]),
                cost=costs[g],
                energy=int(energy[g]) if readings[g] else None,
            )
            for g in range(count)
        ]

    def _costs(self, groups: Ints, count: int) -> list[float]:
        prices = self._prices
        if not any(prices):
            return [0.0] * count
        cells = groups[self._period] * len(prices) + self._billed
        amounts = sums(cells, self._amount, count * len(prices)).tolist()
        return [
            sum(amounts[group * len(prices) + m] * price for m, price in enumerate(prices))
            / (GPU_HOUR * MICRO)
            for group in range(count)
        ]

    def _memory(self, count: int) -> list[tuple[float | None, float | None, float | None]]:
        used_mean, used_highest = self._memory_of(self._samples.memory_used, count)
        total_mean, _ = self._memory_of(self._samples.memory_total, count)
        return list(zip(used_mean, used_highest, total_mean, strict=True))

    def _memory_of(self, values: Ints, count: int) -> tuple[list[float | None], list[float | None]]:
        present = values >= 0
        groups, ppm, amounts = (
            self._workload[self._samples.period[present]],
            self._samples.ppm[present],
            values[present],
        )
        weight = sums(groups, ppm, count).tolist()
        total = sums(groups, amounts * ppm, count).tolist()
        highest = np.full(count, -1, dtype=np.int64)
        np.maximum.at(highest, groups, amounts)
        return (
            [total[g] / (weight[g] * 1024) if weight[g] else None for g in range(count)],
            [int(highest[g]) / 1024 if weight[g] else None for g in range(count)],
        )


def _billed_as(
    periods: Sequence[AllocationPeriod], allocations: Iterable[HourAllocation]
) -> list[tuple[str, str]]:
    """Return the GPU model and the source of each allocation."""
    usual = [(period.model, period.source) for period in periods]
    known = {
        (number, gpu): (model, period.source)
        for number, period in enumerate(periods)
        if period.models
        for gpu, model in zip(period.held, period.models, strict=True)
    }
    return [known.get((each.period, each.gpu), usual[each.period]) for each in allocations]


def _workload(period: AllocationPeriod) -> tuple[str, ...]:
    return (period.namespace, period.workload_kind, period.workload_name, period.workload_uid)


def _order(period: AllocationPeriod) -> tuple[float, str]:
    return (period.start, period.pod_uid)


def _number(keys: Sequence[Key]) -> tuple[Ints, list[Key]]:
    """Return the position of each key among the sorted distinct keys, and those keys."""
    distinct = sorted(set(keys))
    numbers = {key: number for number, key in enumerate(distinct)}
    return np.fromiter((numbers[key] for key in keys), dtype=np.int64, count=len(keys)), distinct
