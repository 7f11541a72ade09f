"""Turn the hour that is not over yet into the same rows as stored hours, with `partial` set.

Its rows have the id 0, because they are not stored.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from gpufleet.model.hours import Hour, WorkloadHour
from gpufleet.model.statistics import (
    ClusterStatistics,
    HoursQuery,
    LabelStatistics,
    NamespaceStatistics,
    WorkloadStatistics,
)
from gpufleet.store.hours.statistics import cluster_row, label_row, namespace_row
from gpufleet.store.hours.workload_pages import workload_row
from gpufleet.store.hours.writer import usage_columns, workload_columns
from gpufleet.store.postgres.jsonb import jsonb

T = TypeVar("T", ClusterStatistics, NamespaceStatistics, LabelStatistics, WorkloadStatistics)


class CurrentRows(NamedTuple):
    """The rows of the hour so far, in the order of stored ones."""

    cluster: list[ClusterStatistics]
    namespaces: list[NamespaceStatistics]
    labels: list[LabelStatistics]
    workloads: list[WorkloadStatistics]


NO_ROWS = CurrentRows([], [], [], [])


def current_rows(
    query: HoursQuery, hour: Hour, now: float, status: Callable[[WorkloadHour], str]
) -> CurrentRows:
    """Return the rows of an hour that was computed at `now` and is not stored."""
    moment, total = datetime.fromtimestamp(now, UTC), hour.cluster
    elapsed = max(1.0, now - hour.start)
    common: dict[str, Any] = {
        "hour": hour.start // 3600,
        "cluster": 0,
        "capacity": total.capacity_gpu_hours,
        "gpus": total.gpus,
        "observed": total.observed,
        "created_at": moment,
        "updated_at": moment,
    }

    def row(convert: Callable[[HoursQuery, Any], T], columns: dict[str, Any]) -> T:
        converted = convert(query, {**common, **columns})
        mean = converted.allocated_gpu_hours * 3600 / elapsed
        return msgspec.structs.replace(converted, id=0, partial=True, allocated_gpu_count=mean)

    return CurrentRows(
        [row(cluster_row, usage_columns(total.usage))],
        [
            row(namespace_row, {**usage_columns(each.usage), "namespace": 0, "name": each.namespace})
            for each in hour.namespaces
        ],
        [
            row(
                label_row,
                {
                    **usage_columns(each.usage),
                    "label": 0,
                    "type": each.dimension_type,
                    "key": each.dimension_key,
                    "value": each.dimension_value,
                },
            )
            for each in hour.labels
        ],
        [
            row(
                workload_row,
                {
                    **workload_columns(each),
                    "workload": 0,
                    "namespace_name": each.namespace,
                    "kind_name": each.kind,
                    "name": each.name,
                    "uid": each.uid,
                    "source": each.source,
                    "labels": jsonb(each.labels),
                    "annotations": jsonb(each.annotations),
                    "status": status(each),
                },
            )
            for each in hour.workloads
        ],
    )
