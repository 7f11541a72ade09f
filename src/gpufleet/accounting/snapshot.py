"""Summarise what is allocated at one moment, by namespace, workload, label and annotation.

Pure. The corrections of `hour_allocations` apply, so that no GPU is allocated more than once. The
utilization of a group is weighted by GPUs; None if nothing was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from gpufleet.accounting.hour_allocations import hour_allocations
from gpufleet.accounting.hour_readings import valid_values
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.model.hours import PPM
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.reading import Quantity, Readings

Number = int | float


class TakenSnapshot(NamedTuple):
    """Capacity and use of a cluster at one moment."""

    capacity: int
    allocated: float
    utilization: float | None
    details: bytes
    """JSON."""


class _Workload(msgspec.Struct):
    uid: str
    name: str
    namespace: str
    kind: str
    allocated_gpu: Number
    utilization: float | None


class _Group(msgspec.Struct):
    allocated_gpu: Number
    utilization: float | None
    workload_count: int


class _Namespace(_Group):
    workloads: list[_Workload]


class _Details(msgspec.Struct):
    namespaces: dict[str, _Namespace]
    labels: dict[str, dict[str, _Group]]
    annotations: dict[str, dict[str, _Group]]


@dataclass
class _Share:
    """What a group holds, in millionths of GPUs."""

    ppm: int = 0
    measured: int = 0
    used: float = 0.0
    workloads: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, ppm: int, value: float | None, workload: tuple[str, ...]) -> None:
        self.ppm += ppm
        self.workloads.add(workload)
        if value is not None:
            self.measured += ppm
            self.used += ppm * value

    @property
    def gpus(self) -> Number:
        whole, rest = divmod(self.ppm, PPM)
        return self.ppm / PPM if rest else whole

    @property
    def utilization(self) -> float | None:
        return round(self.used / self.measured, 4) if self.measured else None


def snapshot(
    at: int,
    periods: Sequence[AllocationPeriod],
    capacity_periods: Sequence[CapacityPeriod],
    readings: Readings,
    plan: RollupPlan,
) -> TakenSnapshot:
    """Return the snapshot of `at` (Unix seconds), from the periods that are open then."""
    ordered = sorted(periods, key=lambda period: (period.node, period.start, period.pod_uid))
    values = _values(readings, at)
    whole = _Share()
    groups: dict[tuple[str, ...], _Share] = {}
    for each in hour_allocations(ordered, capacity_periods, at - at % 3600):
        if not each.start <= at * 1000 < each.end:
            continue
        period = ordered[each.period]
        value = values.get((period.node, each.gpu))
        workload = (period.namespace, period.workload_kind, period.workload_name, period.workload_uid)
        whole.add(each.ppm, value, workload)
        for group in _groups(period, workload, plan):
            groups.setdefault(group, _Share()).add(each.ppm, value, workload)
    total = sum(capacity.gpus for capacity in capacity_periods if not capacity.end)
    details = msgspec.json.encode(_details(groups, plan))
    return TakenSnapshot(total, float(whole.gpus), whole.utilization, details)


def _values(readings: Readings, at: float) -> dict[tuple[str, int], float]:
    column = valid_values(readings, Quantity.UTILIZATION, at)
    found = {}
    for row in np.flatnonzero(np.isfinite(column)).tolist():
        ref = readings.gpus[row].ref
        if not ref.partition:
            found[ref.node, ref.index] = float(column[row])
    return found


def _groups(period: AllocationPeriod, workload: tuple[str, ...], plan: RollupPlan) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    if period.namespace not in plan.excluded_namespaces:
        found += [("namespace", period.namespace), ("workload", *workload)]
    for kind, keys, labels in (
        ("label", plan.label_keys, period.labels),
        ("annotation", plan.annotation_keys, period.annotations),
    ):
        found += [(kind, key, plan.value_of(labels, key)) for key in keys]
    return found


def _details(groups: Mapping[tuple[str, ...], _Share], plan: RollupPlan) -> _Details:
    namespaces: dict[str, _Namespace] = {}
    labelled: dict[str, dict[str, dict[str, _Group]]] = {
        "label": {key: {} for key in plan.label_keys},
        "annotation": {key: {} for key in plan.annotation_keys},
    }
    for group, share in sorted(groups.items()):
        amounts = (share.gpus, share.utilization, len(share.workloads))
        if group[0] == "namespace":
            namespaces[group[1]] = _Namespace(*amounts, workloads=[])
        elif group[0] == "workload":
            _, namespace, kind, name, uid = group
            row = _Workload(uid, name, namespace, kind, share.gpus, share.utilization)
            namespaces[namespace].workloads.append(row)
        else:
            labelled[group[0]][group[1]][group[2]] = _Group(*amounts)
    return _Details(namespaces, labelled["label"], labelled["annotation"])
