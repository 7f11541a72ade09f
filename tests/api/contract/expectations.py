"""What the three documents of the live API promise, as plain data.

Written from the documents alone, by hand: nothing here is taken from the code. A field has a type in
words (`TYPES` of the checker knows them); a list has the shape of its items; what is not listed is
ours to add. Times are those of the fleet of known state.
"""

from dataclasses import dataclass, field
from typing import Any

SPAN = "start=1799998800&end=1800000000"
SPAN_MS = "start=1799998800000&end=1800000000000"


@dataclass(frozen=True)
class Promise:
    """One endpoint: how it is asked, and what its data looks like."""

    path: str
    family: str
    data: Any
    good: tuple[str, ...] = ("",)
    """Queries that are answered."""
    same: tuple[tuple[str, str], ...] = ()
    """Queries that mean the same, because one leaves a default out."""
    wrong: tuple[str, ...] = ()
    """Queries that are a 400."""
    unknown: tuple[str, ...] = ()
    """Paths or queries that are a 404."""
    message: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    """Every parameter with a value that is fine."""


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

PROMISES: tuple[Promise, ...] = (
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
"""Every route of the three documents."""

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
"""What somebody may put where a value belongs."""
