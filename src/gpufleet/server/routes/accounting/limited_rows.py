"""The rows of the running hour for a caller who is limited to namespaces.

The rows of stored hours come from the database like this (`gpufleet.store.hours.limited_sql`). Here those of the cluster
are summed from its namespaces, and those of labels from its workloads.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpufleet.model.namespaces import Namespaces
from gpufleet.model.statistics import LabelStatistics, NamespaceStatistics, WorkloadStatistics
from gpufleet.store.hours.current_rows import CurrentRows
from gpufleet.store.hours.limited_sql import MISSING_VALUE

Part = NamespaceStatistics | WorkloadStatistics


def limited_rows(rows: CurrentRows, namespaces: Namespaces) -> CurrentRows:
    """Return the rows of an hour with what is in `namespaces` only."""
    if namespaces is None:
        return rows
    parts = [row for row in rows.namespaces if row.namespace in namespaces]
    workloads = [row for row in rows.workloads if row.namespace in namespaces]
    cluster = [
        msgspec.structs.replace(
            row,
            **(sums := _sums(parts)),
            allocation_rate=100 * sums["allocated_gpu_hours"] / row.capacity_gpu_hours
            if row.capacity_gpu_hours
            else 0.0,
        )
        for row in rows.cluster
    ]
    return CurrentRows(cluster, parts, _labels(rows.labels, workloads), workloads)


def _labels(
    labels: Sequence[LabelStatistics], workloads: Sequence[WorkloadStatistics]
) -> list[LabelStatistics]:
    """Return the rows of the values that the workloads have, in the same order."""
    found = []
    for row in labels:
        parts = [each for each in workloads if _value(each, row) == row.dimension_value]
        if parts:
            sums = _sums(parts)
            found.append(msgspec.structs.replace(row, **sums, active_workload_count=len(parts)))
    return found


def _value(workload: WorkloadStatistics, label: LabelStatistics) -> str:
    labels = workload.labels if label.dimension_type == "label" else workload.annotations
    return labels.get(label.dimension_key) or MISSING_VALUE


def _sums(parts: Sequence[Part]) -> dict[str, Any]:
    measured = [part for part in parts if part.avg_utilization is not None]
    weight = sum(part.allocated_gpu_hours for part in measured)
    used = sum(part.allocated_gpu_hours * (part.avg_utilization or 0.0) for part in measured)
    energy = [part.energy_kwh for part in parts if part.energy_kwh is not None]
    only = parts[0] if len(parts) == 1 else None
    return {
        "allocated_gpu_count": sum(part.allocated_gpu_count for part in parts),
        "allocated_gpu_hours": sum(part.allocated_gpu_hours for part in parts),
        "idle_gpu_hours": sum(part.idle_gpu_hours for part in parts),
        "cost": sum(part.cost for part in parts),
        "energy_kwh": sum(energy) if energy else None,
        "sample_count": max((part.sample_count for part in parts), default=0),
        "avg_utilization": round(used / weight, 4) if weight else None,
        "max_utilization": only.max_utilization if only else None,
        "min_utilization": only.min_utilization if only else None,
        "p50_utilization": only.p50_utilization if only else None,
        "p95_utilization": only.p95_utilization if only else None,
    }
