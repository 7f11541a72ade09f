"""The documented contract of the live API and of accounting, as plain data.

Written by hand from the documents alone; nothing here comes from the code. A field has the name of a
type (see `TYPES` in the checker), a list has the shape of its items, and answers may have fields that
are not listed. Times are those of the known fleet.
"""

from dataclasses import dataclass, field
from typing import Any

SPAN = "start=1799998800&end=1800000000"
HOURS = "start_time=2021-05-03T00:00:00Z&end_time=2021-05-03T01:00:00Z"
SPAN_MS = "start=1799998800000&end=1800000000000"


@dataclass(frozen=True)
class Promise:
    """One endpoint: its queries, and the shape of its data."""

    path: str
    envelope: str
    data: Any
    good: tuple[str, ...] = ("",)
    """Queries with status 200."""
    same: tuple[tuple[str, str], ...] = ()
    """Pairs of queries with the same answer, because one omits a default."""
    wrong: tuple[str, ...] = ()
    """Queries with status 400."""
    unknown: tuple[str, ...] = ()
    """Paths or queries with status 404."""
    message: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    """Every parameter with a valid value."""


_WRONG_PAGES = (
    "pageNum=0",
    "pageNum=-1",
    "pageNum=x",
    "pageNum=1.5",
    "pageSize=0",
    "pageSize=x",
    "pageSize=1001",
)
_SAME_PAGES = (("", "pageNum=1&pageSize=10"), ("", "pageNum=&pageSize="))
_HEAT = {
    "serial": "integer",
    "unit": "text",
    "yAxisMax": "integer",
    "yAxisMin": "integer",
    "data": [{"nodeName": "text", "deviceId": "integer", "value": "number", "gpuModel": "text"}],
}
_GRAPH = {
    "serial": "integer",
    "series": [{"name": "text", "points": ["point"]}],
    "config": {"yAxisUnit": "text"},
}
_TREE: dict[str, Any] = {"kind": "text", "name": "text", "namespace": "text", "uid": "text"}
_TREE["children"] = [_TREE]
_WORKLOAD = "/api/workloads/job"
_NONE = "/api/workloads/no-such-uid"

_AGGREGATION = "/api/v1/gpu-aggregation"
_SAME_HOURS = (
    (HOURS, f"{HOURS}&cluster="),
    (HOURS, f"{HOURS}&cluster=prod"),
    (HOURS, "start_time=2021-05-03T02:00:00%2B02:00&end_time=2021-05-02T20:00:00-05:00"),
    (HOURS, "start_time=2021-05-03T00:00:00Z&end_time=2021-05-03T01:59:59Z"),
)
_WRONG_HOURS = (
    "",
    "start_time=2021-05-03T00:00:00Z",
    "end_time=2021-05-03T00:00:00Z",
    "start_time=yesterday&end_time=2021-05-03T00:00:00Z",
    "start_time=2021-05-03&end_time=2021-05-04",
    "start_time=2021-05-03T00:00:00&end_time=2021-05-03T01:00:00",
    "start_time=2021-05-03T01:00:00Z&end_time=2021-05-03T00:00:00Z",
    f"{HOURS}&page=0",
    f"{HOURS}&page=x",
    f"{HOURS}&page_size=0",
    f"{HOURS}&page_size=1001",
)
_HOURS_ASKED = {
    "start_time": "2021-05-03T00:00:00Z",
    "end_time": "2021-05-03T01:00:00Z",
    "cluster": "prod",
    "page": "1",
    "page_size": "20",
}
_HOUR = {
    "id": "count",
    "cluster_name": "text",
    "stat_hour": "hour",
    "allocated_gpu_count": "amount",
    "avg_utilization": "percent or null",
    "max_utilization": "percent or null",
    "min_utilization": "percent or null",
    "created_at": "moment",
    "updated_at": "moment",
}
_SPREAD = {
    "p50_utilization": "percent or null",
    "p95_utilization": "percent or null",
    "sample_count": "count",
}
_CLUSTER_HOUR = {**_HOUR, **_SPREAD, "total_gpu_capacity": "count", "allocation_rate": "percent"}
_NAMESPACE_HOUR = {
    **_HOUR,
    "namespace": "text",
    "total_gpu_capacity": "count",
    "active_workload_count": "count",
}
_LABEL_HOUR = {
    **_HOUR,
    "dimension_type": "text",
    "dimension_key": "text",
    "dimension_value": "text",
    "active_workload_count": "count",
}
_WORKLOAD_HOUR = {
    **_HOUR,
    **_SPREAD,
    "namespace": "text",
    "workload_name": "text",
    "workload_type": "text",
    "requested_gpu_count": "amount",
    "avg_gpu_memory_used": "amount or null",
    "max_gpu_memory_used": "amount or null",
    "avg_gpu_memory_total": "amount or null",
    "avg_replica_count": "amount",
    "max_replica_count": "count",
    "min_replica_count": "count",
    "workload_status": "status",
    "owner_uid": "text",
    "owner_name": "text",
    "labels": "texts",
    "annotations": "texts",
}
_SNAPSHOT = {
    "id": "count",
    "cluster_name": "text",
    "snapshot_time": "moment",
    "dimension_type": "text",
    "total_gpu_capacity": "count",
    "allocated_gpu_count": "amount",
    "allocation_details": {},
    "created_at": "moment",
}
_GROUP = {
    "allocated_gpu": "amount",
    "utilization": "percent or null",
    "workload_count": "count",
    "workloads": [
        {
            "uid": "text",
            "name": "text",
            "namespace": "text",
            "kind": "text",
            "allocated_gpu": "amount",
            "utilization": "percent or null",
        }
    ],
}


def _paged(row: dict[str, Any]) -> dict[str, Any]:
    """A page of the accounting API."""
    return {"total": "count", "page": "count", "page_size": "count", "total_pages": "count", "data": [row]}


_LABELS = f"{HOURS}&dimension_type=label&dimension_key=team"
_ACCOUNTING: tuple[Promise, ...] = (
    Promise(f"{_AGGREGATION}/clusters", "aggregation", ["text"]),
    Promise(
        f"{_AGGREGATION}/namespaces",
        "aggregation",
        ["text"],
        good=("", HOURS, "cluster=prod&start_time=2021-05-03T00:00:00Z"),
        wrong=("start_time=x", "start_time=2021-05-03T01:00:00Z&end_time=2021-05-03T00:00:00Z"),
        unknown=("?cluster=elsewhere",),
        parameters={k: v for k, v in _HOURS_ASKED.items() if not k.startswith("page")},
    ),
    Promise(
        f"{_AGGREGATION}/dimension-keys",
        "aggregation",
        ["text"],
        good=("dimension_type=label", f"dimension_type=annotation&{HOURS}"),
        wrong=("", "dimension_type=taint", "dimension_type=label&end_time=never"),
        unknown=("?dimension_type=label&cluster=elsewhere",),
        parameters={"dimension_type": "label", "cluster": "prod"},
    ),
    Promise(
        f"{_AGGREGATION}/dimension-values",
        "aggregation",
        ["text"],
        good=("dimension_type=label&dimension_key=team", f"{_LABELS}&cluster=prod"),
        wrong=("", "dimension_type=label", "dimension_key=team", "dimension_type=x&dimension_key=team"),
        unknown=("?dimension_type=label&dimension_key=team&cluster=elsewhere",),
        parameters={"dimension_type": "label", "dimension_key": "team", "cluster": "prod"},
    ),
    Promise(
        f"{_AGGREGATION}/cluster/hourly-stats",
        "aggregation",
        [_CLUSTER_HOUR],
        good=(HOURS, f"{HOURS}&cluster=prod"),
        same=_SAME_HOURS,
        wrong=_WRONG_HOURS,
        unknown=(f"?{HOURS}&cluster=elsewhere",),
        parameters=_HOURS_ASKED,
    ),
    Promise(f"{_AGGREGATION}/cluster/hourly-stats?{HOURS}&page=1", "aggregation", _paged(_CLUSTER_HOUR)),
    Promise(
        f"{_AGGREGATION}/namespaces/hourly-stats",
        "aggregation",
        [_NAMESPACE_HOUR],
        good=(HOURS, f"{HOURS}&namespace=ml"),
        same=(*_SAME_HOURS, (HOURS, f"{HOURS}&namespace=")),
        wrong=_WRONG_HOURS,
        unknown=(f"?{HOURS}&cluster=elsewhere",),
        parameters={**_HOURS_ASKED, "namespace": "ml"},
    ),
    Promise(
        f"{_AGGREGATION}/namespaces/hourly-stats?{HOURS}&page_size=1", "aggregation", _paged(_NAMESPACE_HOUR)
    ),
    Promise(
        f"{_AGGREGATION}/labels/hourly-stats",
        "aggregation",
        [_LABEL_HOUR],
        good=(_LABELS, f"{_LABELS}&dimension_value=nlp", _LABELS.replace("label&", "annotation&")),
        same=((_LABELS, f"{_LABELS}&dimension_value="),),
        wrong=(HOURS, f"{HOURS}&dimension_type=label", f"{HOURS}&dimension_key=team", *_WRONG_HOURS),
        unknown=(f"?{_LABELS}&cluster=elsewhere",),
        parameters={
            **_HOURS_ASKED,
            "dimension_type": "label",
            "dimension_key": "team",
            "dimension_value": "nlp",
        },
    ),
    Promise(f"{_AGGREGATION}/labels/hourly-stats?{_LABELS}&page=1", "aggregation", _paged(_LABEL_HOUR)),
    Promise(
        f"{_AGGREGATION}/workloads/hourly-stats",
        "aggregation",
        _paged(_WORKLOAD_HOUR),
        good=(
            HOURS,
            f"{HOURS}&namespace=ml&workload_name=bert&workload_type=PyTorchJob",
            f"{HOURS}&page=1&page_size=50&order_by=utilization&order_direction=desc",
            f"{HOURS}&page=1000&page_size=1000",
        ),
        same=(
            *_SAME_HOURS,
            (HOURS, f"{HOURS}&page=1&page_size=20&order_by=time&order_direction=asc"),
            (HOURS, f"{HOURS}&namespace=&workload_name=&workload_type=&page=&page_size=&order_by="),
        ),
        wrong=(*_WRONG_HOURS, f"{HOURS}&order_by=name", f"{HOURS}&order_direction=down"),
        unknown=(f"?{HOURS}&cluster=elsewhere",),
        parameters={
            **_HOURS_ASKED,
            "namespace": "ml",
            "workload_name": "bert",
            "workload_type": "PyTorchJob",
            "order_by": "time",
            "order_direction": "asc",
        },
    ),
    Promise(
        f"{_AGGREGATION}/snapshots/latest",
        "aggregation",
        {
            **_SNAPSHOT,
            "dimension_key": "text",
            "dimension_value": "text",
            "allocation_details": {"namespaces": {"ml": _GROUP, "prod": _GROUP}, "annotations": {}},
        },
        good=("", "cluster=prod"),
        same=(("", "cluster="),),
        unknown=("?cluster=elsewhere",),
        parameters={"cluster": "prod"},
    ),
    Promise(
        f"{_AGGREGATION}/snapshots",
        "aggregation",
        [_SNAPSHOT],
        good=(
            "",
            HOURS,
            "start_time=2021-05-03T00:00:00Z",
            "end_time=2021-05-03T01:00:00Z",
            "start_time=0001-01-01T00:00:00Z&end_time=9999-12-31T23:59:59Z",
        ),
        same=(
            ("", "start_time=2021-05-02T02:01:40Z&end_time=2021-05-03T02:01:40Z"),
            ("", "start_time=0001-01-01T00:00:00Z&end_time=9999-12-31T23:59:59Z"),
        ),
        wrong=("start_time=x", "start_time=2021-05-03T01:00:00Z&end_time=2021-05-03T00:00:00Z"),
        unknown=("?cluster=elsewhere",),
        parameters={k: v for k, v in _HOURS_ASKED.items() if not k.startswith("page")},
    ),
)

PROMISES: tuple[Promise, ...] = (
    *_ACCOUNTING,
    Promise(
        "/api/clusters/overview",
        "clusters",
        {
            "totalNodes": "count",
            "healthyNodes": "count",
            "faultyNodes": "count",
            "fullyIdleNodes": "count",
            "partiallyIdleNodes": "count",
            "busyNodes": "count",
            "allocationRate": "rate",
            "utilization": "rate or null",
            "storageStat": {
                "totalCapacity": "text",
                "usedCapacity": "text",
                "availableCapacity": "text",
                "utilizationRate": "rate",
            },
            "rdmaClusterStat": {"totalPorts": "count", "activePorts": "count", "bandwidth": "text"},
        },
        good=("", "cluster=prod"),
        unknown=("?cluster=elsewhere",),
        parameters={"cluster": "prod"},
    ),
    Promise(
        "/api/clusters/consumers",
        "clusters",
        {
            "data": [
                {
                    "kind": "text",
                    "name": "text",
                    "namespace": "text",
                    "uid": "text",
                    "stat": {"gpuRequest": "count", "gpuUtilization": "rate or null"},
                    "pods": "null",
                    "source": "text",
                }
            ],
            "total": "count",
        },
        good=("", "pageNum=1&pageSize=20", "pageNum=2", "pageNum=1000&pageSize=1000"),
        same=_SAME_PAGES,
        wrong=_WRONG_PAGES,
        unknown=("?cluster=elsewhere",),
        parameters={"pageNum": "1", "pageSize": "10", "cluster": "prod"},
    ),
    Promise(
        "/api/clusters/gpuHeatmap",
        "clusters",
        {"power": _HEAT, "temperature": _HEAT, "utilization": _HEAT},
        good=("", "topK=1", "topK=1000"),
        same=(("", "topK=5"),),
        wrong=("topK=0", "topK=1001", "topK=five", "topK=1&topK=2"),
        unknown=("?cluster=elsewhere",),
        parameters={"topK": "5", "cluster": "prod"},
    ),
    Promise(
        "/api/workloads",
        "clusters",
        {
            "data": [
                {
                    "kind": "text",
                    "name": "text",
                    "namespace": "text",
                    "uid": "text",
                    "gpuAllocated": "count",
                    "gpuAllocation": "counts",
                    "status": "status",
                    "statusColor": "color",
                    "startAt": "seconds",
                    "endAt": "seconds",
                    "source": "text",
                }
            ],
            "total": "count",
        },
        good=(
            "",
            "pageNum=1&pageSize=20",
            "namespace=ml&status=Running",
            "kind=PyTorchJob&orderBy=start_at",
            "orderBy=end_at",
            "name=BER",
            *(f"status={status}" for status in ("Running", "Completed", "Failed", "Pending", "Unknown")),
        ),
        same=(*_SAME_PAGES, ("", "name=&kind=&namespace=&status=&orderBy=")),
        wrong=(*_WRONG_PAGES, "orderBy=name", "status=Dancing"),
        unknown=("?cluster=elsewhere",),
        parameters={
            "pageNum": "1",
            "pageSize": "10",
            "name": "bert",
            "kind": "Job",
            "namespace": "ml",
            "status": "Running",
            "orderBy": "start_at",
            "cluster": "prod",
        },
    ),
    Promise(
        _WORKLOAD,
        "clusters",
        {
            "apiVersion": "text",
            "kind": "text",
            "name": "text",
            "namespace": "text",
            "uid": "text",
            "gpuAllocation": "counts",
            "pods": [{"nodeName": "text", "podNamespace": "text", "podName": "text"}],
            "startTime": "seconds",
            "endTime": "seconds",
            "source": "text",
        },
        unknown=(_NONE, "?cluster=elsewhere"),
        parameters={"cluster": "prod"},
    ),
    Promise(
        "/api/workloads/dep/hierarchy",
        "clusters",
        _TREE,
        unknown=(f"{_NONE}/hierarchy", "?cluster=elsewhere"),
        parameters={"cluster": "prod"},
    ),
    Promise(
        f"{_WORKLOAD}/metrics",
        "clusters",
        {
            "GPU Utilization": _GRAPH,
            "GPU Memory Utilization": _GRAPH,
            "GPU Power": _GRAPH,
            "TrainingPerformance": _GRAPH,
        },
        good=(SPAN, f"{SPAN}&step=300"),
        same=((SPAN, f"{SPAN}&step=60"),),
        wrong=(
            "",
            "start=1799998800",
            "end=1800000000",
            "start=now&end=1800000000",
            "start=1800000000&end=1799998800",
            f"{SPAN}&step=0",
            f"{SPAN}&step=-1",
            f"{SPAN}&step=1m",
            "start=1790000000&end=1800000000&step=1",
        ),
        unknown=(f"{_NONE}/metrics?{SPAN}", f"?{SPAN}&cluster=elsewhere"),
        parameters={"start": "1799998800", "end": "1800000000", "step": "60", "cluster": "prod"},
    ),
    Promise(
        f"{_WORKLOAD}/trainingPerformance",
        "clusters",
        [{"metric": "text", "value": "number", "timestamp": "milliseconds"}],
        good=(SPAN_MS,),
        wrong=("", "start=1799998800000", "start=x&end=1", "start=1800000000000&end=1799998800000"),
        unknown=(f"{_NONE}/trainingPerformance?{SPAN_MS}", f"?{SPAN_MS}&cluster=elsewhere"),
        parameters={"start": "1799998800000", "end": "1800000000000", "cluster": "prod"},
    ),
    Promise(
        "/api/workloadMetadata",
        "clusters",
        {"namespaces": ["text"], "kinds": ["text"]},
        unknown=("?cluster=elsewhere",),
        parameters={"cluster": "prod"},
    ),
    Promise(
        "/api/healthz",
        "live",
        {"status": "health", "timestamp": "moment", "version": "text"},
        message="Service is healthy",
    ),
    Promise(
        "/api/v1/gpu/metrics",
        "live",
        [
            {
                "node_name": "text",
                "gpu_index": "count",
                "gpu_name": "text",
                "utilization": "percent or null",
                "memory_used": "number or null",
                "memory_total": "number or null",
                "memory_free": "number or null",
                "memory_utilization": "percent or null",
                "temperature": "number or null",
                "timestamp": "moment",
            }
        ],
        good=("", "node=half", "namespace=ml", "workload=job"),
        unknown=("?cluster=elsewhere",),
        message="GPU metrics retrieved successfully",
        parameters={"node": "half", "namespace": "ml", "workload": "job", "cluster": "prod"},
    ),
    Promise(
        "/api/v1/gpu/processes",
        "live",
        [
            {
                "node_name": "text",
                "gpu_index": "count",
                "pid": "count",
                "process_name": "text",
                "user": "text",
                "command": "text",
                "gpu_memory": "number or null",
                "cpu": "percent or null",
                "memory": "percent or null",
                "timestamp": "moment",
            }
        ],
        good=("", "node=half"),
        unknown=("?cluster=elsewhere",),
        message="GPU processes retrieved successfully",
        parameters={"node": "half", "cluster": "prod"},
    ),
)
"""Every route of the documents."""

VALUES: dict[str, dict[str, Any]] = {
    "/api/clusters/gpuHeatmap": {
        "power.unit": "W",
        "temperature.unit": "℃",
        "utilization.unit": "%",
        "utilization.serial": 1,
        "power.serial": 2,
        "temperature.serial": 3,
        "utilization.yAxisMin": 0,
        "utilization.yAxisMax": 100,
        "temperature.yAxisMin": 20,
        "temperature.yAxisMax": 110,
    },
    f"{_WORKLOAD}/metrics?{SPAN}": {
        "GPU Utilization.serial": 1,
        "GPU Memory Utilization.serial": 2,
        "GPU Power.serial": 3,
        "TrainingPerformance.serial": 4,
        "GPU Utilization.config.yAxisUnit": "%",
        "GPU Memory Utilization.config.yAxisUnit": "%",
        "GPU Power.config.yAxisUnit": "W",
        "TrainingPerformance.config.yAxisUnit": "TFLOPS",
        "TrainingPerformance.series.0.name": "TFLOPS",
    },
}
"""Values that the documents fix."""

COLORS = {"Running": "green", "Completed": "green", "Failed": "red", "Pending": "yellow", "Unknown": "gray"}

ATTACKS: dict[str, bytes] = {
    "SQL": b"' OR '1'='1'; DROP TABLE training_point; --",
    "PromQL": b'job"} or up{x="',
    "a regular expression": b".*(a+)+$",
    "a path": b"../../../etc/passwd",
    "an encoded path": b"..%2f..%2fetc%2fpasswd",
    "a header": b"x\r\nX-Injected: yes",
    "too long": b"a" * 5000,
    "much too long": b"a" * 20_000,
    "no UTF-8": b"\xff\xfe\xc0\xaf",
    "NUL": b"job\x00",
    "a format": b"%s%n{0.__class__}${jndi:ldap://x}",
    "a right-to-left override": "\u202ejob".encode(),
}
"""Values that an attacker may send."""
