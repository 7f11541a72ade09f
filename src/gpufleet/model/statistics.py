"""Statistics as they are stored and returned by the API. Rates are 0–100, times UTC.

A field is None, never 0, if nothing was measured.
"""

from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec

from gpufleet.model.namespaces import Namespaces, is_visible


class ClusterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a cluster."""

    id: int
    cluster_name: str
    stat_hour: datetime
    total_gpu_capacity: int
    """The number of GPUs for most of the observed time."""
    capacity_gpu_hours: float
    allocated_gpu_count: float
    allocation_rate: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    sample_count: int
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | msgspec.UnsetType = msgspec.UNSET
    """The unit of the cost, if one is configured."""
    energy_kwh: float | None
    """Energy of the allocated GPUs; null without a reading of power."""
    observed_share: float
    """The part of the hour, 0 to 1, in which a server followed the cluster."""
    partial: bool = False
    """Whether the hour is not over yet."""
    created_at: datetime
    updated_at: datetime


class NamespaceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a namespace."""

    id: int
    cluster_name: str
    namespace: str
    stat_hour: datetime
    total_gpu_capacity: int
    allocated_gpu_count: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    sample_count: int
    active_workload_count: int
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | msgspec.UnsetType = msgspec.UNSET
    """The unit of the cost, if one is configured."""
    energy_kwh: float | None
    """Energy of the allocated GPUs; null without a reading of power."""
    observed_share: float
    """The part of the hour, 0 to 1, in which a server followed the cluster."""
    partial: bool = False
    """Whether the hour is not over yet."""
    created_at: datetime
    updated_at: datetime


class LabelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of all pods with one value of a label or annotation."""

    id: int
    cluster_name: str
    dimension_type: str
    dimension_key: str
    dimension_value: str
    stat_hour: datetime
    allocated_gpu_count: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    sample_count: int
    active_workload_count: int
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | msgspec.UnsetType = msgspec.UNSET
    """The unit of the cost, if one is configured."""
    energy_kwh: float | None
    """Energy of the allocated GPUs; null without a reading of power."""
    observed_share: float
    """The part of the hour, 0 to 1, in which a server followed the cluster."""
    partial: bool = False
    """Whether the hour is not over yet."""
    created_at: datetime
    updated_at: datetime


class WorkloadStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a workload; memory in GiB per GPU."""

    id: int
    cluster_name: str
    namespace: str
    workload_name: str
    workload_type: str
    stat_hour: datetime
    allocated_gpu_count: float
    requested_gpu_count: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    avg_gpu_memory_used: float | None
    max_gpu_memory_used: float | None
    avg_gpu_memory_total: float | None
    avg_replica_count: float
    max_replica_count: int
    min_replica_count: int
    workload_status: str
    sample_count: int
    owner_uid: str
    owner_name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    source: str
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | msgspec.UnsetType = msgspec.UNSET
    """The unit of the cost, if one is configured."""
    energy_kwh: float | None
    """Energy of the allocated GPUs; null without a reading of power."""
    observed_share: float
    """The part of the hour, 0 to 1, in which a server followed the cluster."""
    partial: bool = False
    """Whether the hour is not over yet."""
    created_at: datetime
    updated_at: datetime


class HoursQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The hours of a cluster to read, by number (Unix seconds / 3600), both inclusive."""

    cluster: str
    first: int
    last: int
    limit: int
    offset: int = 0
    descending: bool = False
    currency: str = ""
    """The unit of the costs; empty if none is configured."""
    namespaces: Namespaces = None
    """The namespaces that the caller may see."""


class WorkloadHoursQuery(HoursQuery, frozen=True, kw_only=True):
    """The hours of workloads to read; an empty name means all."""

    namespace: str = ""
    name: str = ""
    kind: str = ""
    dimension_type: str = "label"
    """`label` or `annotation`."""
    dimension_key: str = ""
    """Only workloads with this label or annotation."""
    dimension_value: str = ""
    """Only with this value of it; empty means any."""
    by_utilization: bool = False

    def selects(self, row: WorkloadStatistics) -> bool:
        """Return whether the filters select a row."""
        labels = row.labels if self.dimension_type == "label" else row.annotations
        return (
            is_visible(self.namespaces, row.namespace)
            and self.namespace in ("", row.namespace)
            and self.name in ("", row.workload_name)
            and self.kind in ("", row.workload_type)
            and (not self.dimension_key or self.dimension_key in labels)
            and (not self.dimension_value or labels.get(self.dimension_key) == self.dimension_value)
        )


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group over some days; GPU time in millisecond-millionths (see `GPU_HOUR`)."""

    name: str
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    runs: int = 0
    """How many runs of a workload were merged; 0 if none were."""
    allocated: int
    idle: int
    cost: Decimal
    energy: int | None = None
    """Millijoules; None without a reading of power."""
    utilization: float | None
    """Weighted by allocated GPU time."""


class UsageAmount(NamedTuple):
    """The usage of an hour or a day; GPU time in millisecond-millionths, energy in millijoules."""

    allocated: int = 0
    cost: Decimal = Decimal(0)
    energy: int | None = None


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity and usage of a cluster over the same days."""

    hours: float = 0.0
    """Hours in which a server followed the cluster, of those with data."""
    capacity: int = 0
    allocated: int = 0
    idle: int = 0
    cost: Decimal = Decimal(0)
    energy: int | None = None
    utilization: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity, allocation and utilization of a cluster at one moment."""

    id: int
    cluster_name: str
    snapshot_time: datetime
    dimension_type: str = "cluster"
    dimension_key: str = ""
    dimension_value: str = ""
    total_gpu_capacity: int
    allocated_gpu_count: int | float
    utilization: float | None
    allocation_details: msgspec.Raw
    created_at: datetime
