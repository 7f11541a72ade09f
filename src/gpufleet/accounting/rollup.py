"""Roll one hour of one cluster up: who held what, how well it was used, what it costs.

Pure: holdings, capacities and samples in, an `Hour` out, the same for the same input whatever
its order. Samples of the cluster, a namespace or a label value are the moments at which it was
looked at, each the mean over the GPUs held then; samples of a workload are the readings of its
GPUs. Means are weighted by GPUs, so that groups add up to the whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpufleet.accounting.allocation_periods import HourAllocation, clip, columns_of, stints
from gpufleet.accounting.percentiles import by_moment, spreads, sums
from gpufleet.accounting.replicas import Replicas, replicas
from gpufleet.accounting.samples import Ints, SampledHolder, Samples, take
from gpufleet.model.hours import (
    GPU_HOUR,
    HOUR_MS,
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

IDLE_BELOW = 5 * PERCENT
MICRO = 1_000_000
MOST_VALUE = 1024
"""Bytes of a value that count: an index takes little more, and a longer text is nobody's cost center."""


@dataclass(frozen=True)
class RollupPlan:
    """What the bills are broken down by, and what a GPU-hour costs."""

    label_keys: tuple[str, ...] = ()
    annotation_keys: tuple[str, ...] = ()
    excluded_namespaces: frozenset[str] = frozenset()
    missing_value: str = "(none)"
    """The value of a label for holders without it."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Per GPU-hour, by GPU model."""

    def value_of(self, said: Mapping[str, str], key: str) -> str:
        """The value of a label or annotation that a holder with these is counted under."""
        value = said.get(key) or self.missing_value
        if len(value) <= MOST_VALUE // 4:
            return value
        return value.encode()[:MOST_VALUE].decode(errors="ignore")


def roll_up(
    hour: int,
    holdings: Sequence[AllocationPeriod],
    capacities: Sequence[CapacityPeriod],
    samples: Samples,
    plan: RollupPlan,
) -> Hour:
    """The statistics of the hour that starts at `hour` (Unix seconds, a multiple of 3600)."""
    ordered = sorted(holdings, key=lambda h: (h.node, h.start, h.pod_uid))
    sheet = _Sheet(ordered, stints(ordered, capacities, hour), samples, plan)
    return Hour(
        start=hour,
        cluster=ClusterHour(capacity_gpu_hours=_capacity(capacities, hour), usage=sheet.whole()),
        namespaces=sheet.namespaces(),
        labels=sheet.labels(),
        workloads=sheet.workloads(hour),
    )


def _capacity(capacities: Sequence[CapacityPeriod], hour: int) -> float:
    total = 0
    for capacity in capacities:
        start, end = clip(capacity.start, capacity.end, hour)
        total += capacity.gpus * max(0, end - start)
    return total / HOUR_MS


class _Sheet:
    """The hour in columns, summed by any grouping of its holdings."""

    def __init__(
        self,
        holdings: list[AllocationPeriod],
        found: list[HourAllocation],
        samples: Samples,
        plan: RollupPlan,
    ) -> None:
        self._holdings = holdings
        self._plan = plan
        self._stints = found
        self._taken: SampledHolder = take(samples, found, [holding.node for holding in holdings])
        self._moments = len(samples.times)
        columns = columns_of(found)
        self._holder: Ints = columns[:, 0]
        self._amount: Ints = columns[:, 2] * (columns[:, 4] - columns[:, 3])
        self._workload, self._workload_keys = _number([_workload(h) for h in holdings])
        self._model, self._models = _number(_models(holdings, found))
        """Of each stint."""
        excluded = [h.namespace in plan.excluded_namespaces for h in holdings]
        self._shown = ~np.array(excluded, dtype=np.bool_)

    def whole(self) -> Usage:
        """The cluster as one group."""
        return self._usage(np.zeros(len(self._holdings), dtype=np.int64), 1, by_gpu=False)[0]

    def namespaces(self) -> tuple[NamespaceHour, ...]:
        """One row a namespace that held anything."""
        groups, keys = _number([(h.namespace,) for h in self._holdings])
        return tuple(
            NamespaceHour(namespace=key[0], usage=usage)
            for key, usage in zip(keys, self._usage(groups, len(keys), by_gpu=False), strict=True)
            if usage.allocated and key[0] not in self._plan.excluded_namespaces
        )

    def labels(self) -> tuple[LabelHour, ...]:
        """One row a value of each configured label and annotation key."""
        rows: list[LabelHour] = []
        for kind, keys in (("label", self._plan.label_keys), ("annotation", self._plan.annotation_keys)):
            for key in keys:
                rows += self._label(kind, key)
        return tuple(rows)

    def _label(self, kind: str, key: str) -> list[LabelHour]:
        said = [h.labels if kind == "label" else h.annotations for h in self._holdings]
        groups, values = _number([(self._plan.value_of(each, key),) for each in said])
        return [
            LabelHour(dimension_type=kind, dimension_key=key, dimension_value=value[0], usage=usage)
            for value, usage in zip(values, self._usage(groups, len(values), by_gpu=False), strict=True)
            if usage.allocated
        ]

    def workloads(self, hour: int) -> tuple[WorkloadHour, ...]:
        """One row a workload."""
        count = len(self._workload_keys)
        usages = self._usage(self._workload, count, by_gpu=True)
        memory = self._memory(count)
        counted = replicas(self._stints, self._holdings, self._workload, count)
        latest: dict[int, AllocationPeriod] = {}
        for number, holding in enumerate(self._holdings):
            group = int(self._workload[number])
            if group not in latest or (latest[group].start, latest[group].pod_uid) < (
                holding.start,
                holding.pod_uid,
            ):
                latest[group] = holding
        return tuple(
            self._workload_row(key, latest[group], usages[group], memory[group], counted[group], hour)
            for group, key in enumerate(self._workload_keys)
            if usages[group].allocated and key[0] not in self._plan.excluded_namespaces
        )

    def _workload_row(
        self,
        key: tuple[str, ...],
        latest: AllocationPeriod,
        usage: Usage,
        memory: tuple[float | None, float | None, float | None],
        counted: Replicas,
        hour: int,
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
            running=counted.last_end >= hour * 1000 + HOUR_MS,
            requested_gpus=counted.most_gpus,
            mean_replicas=counted.mean,
            most_replicas=counted.most,
            fewest_replicas=counted.fewest,
            mean_memory_used=memory[0],
            most_memory_used=memory[1],
            mean_memory_total=memory[2],
            usage=usage,
        )

    def _usage(self, groups: Ints, count: int, *, by_gpu: bool) -> list[Usage]:
        taken = self._taken
        amount = sums(groups[self._holder], self._amount, count)
        sampled = groups[taken.holder]
        idle_amount = np.where(taken.utilization < IDLE_BELOW, taken.covered * taken.ppm, 0)
        idle = sums(sampled, idle_amount, count)
        spread: list[Distribution]
        if by_gpu:
            spread = spreads(sampled, taken.utilization, taken.ppm, count)
        else:
            spread = by_moment(
                sampled, taken.column, taken.utilization, taken.ppm, count, max(1, self._moments)
            )
        pairs = np.unique(groups[self._holder] * len(self._workload_keys) + self._workload[self._holder])
        active = np.bincount(pairs // max(1, len(self._workload_keys)), minlength=count)
        costs = self._costs(groups, count)
        return [
            Usage(
                allocated=int(amount[g]),
                idle=int(idle[g]),
                utilization=spread[g],
                workloads=int(active[g]),
                cost=costs[g],
            )
            for g in range(count)
        ]

    def _costs(self, groups: Ints, count: int) -> list[float]:
        prices = [round(self._plan.prices.get(model[0], 0.0) * MICRO) for model in self._models]
        if not any(prices):
            return [0.0] * count
        cells = groups[self._holder] * len(prices) + self._model
        amounts = sums(cells, self._amount, count * len(prices)).tolist()
        return [
            sum(amounts[group * len(prices) + m] * price for m, price in enumerate(prices))
            / (GPU_HOUR * MICRO)
            for group in range(count)
        ]

    def _memory(self, count: int) -> list[tuple[float | None, float | None, float | None]]:
        used_mean, used_most = self._memory_of(self._taken.memory_used, count)
        total_mean, _ = self._memory_of(self._taken.memory_total, count)
        return list(zip(used_mean, used_most, total_mean, strict=True))

    def _memory_of(self, values: Ints, count: int) -> tuple[list[float | None], list[float | None]]:
        there = values >= 0
        groups, ppm, amounts = (
            self._workload[self._taken.holder[there]],
            self._taken.ppm[there],
            values[there],
        )
        weight = sums(groups, ppm, count).tolist()
        total = sums(groups, amounts * ppm, count).tolist()
        most = np.full(count, -1, dtype=np.int64)
        np.maximum.at(most, groups, amounts)
        return (
            [total[g] / (weight[g] * 1024) if weight[g] else None for g in range(count)],
            [int(most[g]) / 1024 if weight[g] else None for g in range(count)],
        )


def _models(holdings: Sequence[AllocationPeriod], found: Iterable[HourAllocation]) -> list[tuple[str, ...]]:
    """The model of each stint's GPU."""
    usual = [(holding.model,) for holding in holdings]
    named = {
        (number, gpu): (model,)
        for number, holding in enumerate(holdings)
        if holding.models
        for gpu, model in zip(holding.held, holding.models, strict=True)
    }
    return [named.get((stint.holder, stint.gpu), usual[stint.holder]) for stint in found]


def _workload(holding: AllocationPeriod) -> tuple[str, ...]:
    return (holding.namespace, holding.workload_kind, holding.workload_name, holding.workload_uid)


def _number(keys: list[tuple[str, ...]]) -> tuple[Ints, list[tuple[str, ...]]]:
    """Number the distinct keys in their own order, and say which number each entry has."""
    distinct = sorted(set(keys))
    numbers = {key: number for number, key in enumerate(distinct)}
    return np.fromiter((numbers[key] for key in keys), dtype=np.int64, count=len(keys)), distinct
