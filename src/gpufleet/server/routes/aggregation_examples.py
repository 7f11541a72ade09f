"""Example answers of `/api/v1/gpu-aggregation` for `/docs`."""

from datetime import UTC, datetime

import msgspec

from gpufleet.model.statistics import (
    ClusterStatistics,
    LabelStatistics,
    NamespaceStatistics,
    Snapshot,
    WorkloadStatistics,
)

_HOUR = datetime(2025, 11, 5, 14, tzinfo=UTC)
_CREATED = datetime(2025, 11, 5, 15, 0, 41, tzinfo=UTC)

CLUSTER = ClusterStatistics(
    id=2102929408032769,
    cluster_name="prod",
    stat_hour=_HOUR,
    total_gpu_capacity=128,
    capacity_gpu_hours=128.0,
    allocated_gpu_count=96.5,
    allocation_rate=75.390625,
    avg_utilization=68.5,
    max_utilization=95.2,
    min_utilization=45.3,
    p50_utilization=70.1,
    p95_utilization=88.7,
    sample_count=12,
    allocated_gpu_hours=96.5,
    idle_gpu_hours=1.25,
    cost=337.75,
    currency="USD",
    created_at=_CREATED,
    updated_at=_CREATED,
)
NAMESPACE = NamespaceStatistics(
    id=2102929408032769,
    cluster_name="prod",
    namespace="ml-training",
    stat_hour=_HOUR,
    total_gpu_capacity=128,
    allocated_gpu_count=32.5,
    avg_utilization=72.3,
    max_utilization=89.5,
    min_utilization=55.2,
    p50_utilization=72.0,
    p95_utilization=88.1,
    sample_count=12,
    active_workload_count=5,
    allocated_gpu_hours=32.5,
    idle_gpu_hours=0.0,
    cost=113.75,
    currency="USD",
    created_at=_CREATED,
    updated_at=_CREATED,
)
LABEL = LabelStatistics(
    id=2102929408032769,
    cluster_name="prod",
    dimension_type="label",
    dimension_key="team",
    dimension_value="ai-research",
    stat_hour=_HOUR,
    allocated_gpu_count=64.0,
    avg_utilization=78.5,
    max_utilization=92.3,
    min_utilization=62.1,
    p50_utilization=78.0,
    p95_utilization=91.2,
    sample_count=12,
    active_workload_count=8,
    allocated_gpu_hours=64.0,
    idle_gpu_hours=0.5,
    cost=224.0,
    currency="USD",
    created_at=_CREATED,
    updated_at=_CREATED,
)
WORKLOAD = WorkloadStatistics(
    id=2102929408032769,
    cluster_name="prod",
    namespace="ml-training",
    workload_name="bert-training-job",
    workload_type="Job",
    stat_hour=_HOUR,
    allocated_gpu_count=8.0,
    requested_gpu_count=8.0,
    avg_utilization=85.67,
    max_utilization=98.2,
    min_utilization=72.34,
    p50_utilization=85.12,
    p95_utilization=96.5,
    avg_gpu_memory_used=28.5,
    max_gpu_memory_used=31.2,
    avg_gpu_memory_total=32.0,
    avg_replica_count=1.0,
    max_replica_count=1,
    min_replica_count=1,
    workload_status="Running",
    sample_count=96,
    owner_uid="abc-def-123",
    owner_name="bert-training-job",
    labels={"team": "research"},
    annotations={"cost-center": "cc-001"},
    source="k8s",
    allocated_gpu_hours=8.0,
    idle_gpu_hours=0.0,
    cost=28.0,
    currency="USD",
    created_at=_CREATED,
    updated_at=_CREATED,
)
SNAPSHOT = Snapshot(
    id=115779502080001,
    cluster_name="prod",
    snapshot_time=datetime(2025, 11, 5, 14, 25, tzinfo=UTC),
    total_gpu_capacity=128,
    allocated_gpu_count=8,
    utilization=85.3,
    allocation_details=msgspec.Raw(
        b'{"namespaces":{"ml-training":{"allocated_gpu":8,"utilization":85.3,"workload_count":1,"workloads":'
        b'[{"uid":"abc-123","name":"bert-training","namespace":"ml-training","kind":"PyTorchJob",'
        b'"allocated_gpu":8,"utilization":85.3}]}},"labels":{},"annotations":{}}'
    ),
    created_at=datetime(2025, 11, 5, 14, 25, 1, tzinfo=UTC),
)
