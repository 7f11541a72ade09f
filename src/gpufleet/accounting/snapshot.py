"""What is allocated at one moment, by namespace and workload, and by label and annotation.

Pure. The same corrections as for hours hold (`stints`): nobody has more of a GPU than there is.
Utilization of a group is weighted by GPUs; None where nothing was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from gpufleet.accounting.allocation_periods import stints
from gpufleet.accounting.hour_readings import fresh
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.model.hours import PPM
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.reading import Quantity, Readings

Number = int | float


class SnapshotOf(NamedTuple):
    """One moment of a cluster."""

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
    """What a group has, in millionths of GPUs."""

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
    holdings: Sequence[AllocationPeriod],
    capacities: Sequence[CapacityPeriod],
    readings: Readings,
    names: Mapping[str, str],
    plan: RollupPlan,
) -> SnapshotOf:
    """The cluster at `at` (Unix seconds), from the periods that last then."""
    ordered = sorted(holdings, key=lambda h: (h.node, h.start, h.pod_uid))
    values = _values(readings, names, at)
    whole = _Share()
    groups: dict[tuple[str, ...], _Share] = {}
    for stint in stints(ordered, capacities, at - at % 3600):
        if not stint.start <= at * 1000 < stint.end:
            continue
        holding = ordered[stint.holder]
        value = values.get((holding.node, stint.gpu))
        workload = (holding.namespace, holding.workload_kind, holding.workload_name, holding.workload_uid)
        whole.add(stint.ppm, value, workload)
        for group in _groups(holding, workload, plan):
            groups.setdefault(group, _Share()).add(stint.ppm, value, workload)
    total = sum(capacity.gpus for capacity in capacities if not capacity.end)
    details = msgspec.json.encode(_details(groups, plan))
    return SnapshotOf(total, float(whole.gpus), whole.utilization, details)


def _values(readings: Readings, names: Mapping[str, str], at: float) -> dict[tuple[str, int], float]:
    column = fresh(readings, Quantity.UTILIZATION, at)
    found = {}
    for row in np.flatnonzero(np.isfinite(column)).tolist():
        ref = readings.gpus[row].ref
        if not ref.partition:
            found[names.get(ref.node, ref.node), ref.index] = float(column[row])
    return found


def _groups(holding: AllocationPeriod, workload: tuple[str, ...], plan: RollupPlan) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    if holding.namespace not in plan.excluded_namespaces:
        found += [("namespace", holding.namespace), ("workload", *workload)]
    for kind, keys, said in (
        ("label", plan.label_keys, holding.labels),
        ("annotation", plan.annotation_keys, holding.annotations),
    ):
        found += [(kind, key, plan.value_of(said, key)) for key in keys]
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
