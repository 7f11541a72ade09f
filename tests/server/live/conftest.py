"""A cluster of known state, with every corner case of the contract, over a real store."""

from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuProcess, GpuRef, Processes, Quantity, Readings
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.health import Lifecycle
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.events import event_routes
from gpufleet.server.routes.live.gpu_list import gpu_list_routes
from gpufleet.server.routes.live.gpu_map import gpu_map_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.training import training_routes
from gpufleet.server.routes.live.workload_metrics import workload_metric_routes
from gpufleet.server.routes.live.workloads import workload_routes
from gpufleet.store import Store

NOW = 1_800_000_000.0
GIB = 1024**3
TOKENS = WorkloadTokens(b"k" * 32)


def known_fleet() -> Fleet:
    fleet = Fleet("prod", clock=lambda: NOW)
    fleet.put_node(FleetNode(name="idle", gpu_count=8, gpu_model="NVIDIA H200"))
    fleet.put_node(FleetNode(name="half", gpu_count=8, gpu_model="NVIDIA H200"))
    fleet.put_node(FleetNode(name="full", gpu_count=4, gpu_model="AMD Instinct MI300X OAM"))
    fleet.put_node(FleetNode(name="cordoned", gpu_count=8, gpu_model="NVIDIA H200", cordoned=True))
    fleet.put_node(FleetNode(name="broken", gpu_count=8, gpu_model="NVIDIA H200", ready=False))
    sick = FleetGpu(
        index=1, health=Health.UNHEALTHY, health_reason="XID 79: fell off the bus", health_since=NOW - 60
    )
    fleet.put_node(FleetNode(name="sick", gpu_count=2))
    fleet.put_devices(
        NodeDevices(node="sick", gpus=(FleetGpu(index=0, island="nvlink-group-0"), sick), total=2)
    )
    fleet.put_node(FleetNode(name="cpu-only"))
    job = OwnerRef("job", "PyTorchJob", "bert", "kubeflow.org/v1")
    fleet.put_owner(
        FleetOwner(
            uid="job",
            kind="PyTorchJob",
            name="bert",
            namespace="ml",
            api_version="kubeflow.org/v1",
            status=Status.RUNNING,
            created=NOW - 4000,
            labels={"team": "nlp"},
        )
    )
    fleet.put_pod(_pod("bert-0", "half", 2, held=(0, 1), owner=job, bound=NOW - 3000))
    fleet.put_pod(_pod("bert-1", "full", 4, owner=job, bound=NOW - 3000))
    fleet.put_owner(
        FleetOwner(
            uid="dep",
            kind="Deployment",
            name="chat",
            namespace="prod",
            api_version="apps/v1",
            created=NOW - 9000,
        )
    )
    fleet.put_owner(
        FleetOwner(
            uid="rs",
            kind="ReplicaSet",
            name="chat-1",
            namespace="prod",
            parent=OwnerRef("dep", "Deployment", "chat"),
        )
    )
    fleet.put_pod(
        _pod(
            "chat-a",
            "half",
            1,
            held=(5,),
            namespace="prod",
            owner=OwnerRef("rs", "ReplicaSet", "chat-1"),
            share=0.5,
        )
    )
    fleet.put_pod(_pod("bare", "half", 1, held=(5,), share=0.5))
    fleet.put_pod(_pod("done", "half", 4, phase=Status.COMPLETED, bound=NOW - 5000, ended=NOW - 4500))
    fleet.put_pod(
        _pod(
            "waits",
            "",
            8,
            phase=Status.PENDING,
            bound=0.0,
            model_requested="NVIDIA_H100",
            waiting_reason="0/6 nodes fit: 6 have other labels than the claim's selector",
        )
    )
    fleet.put_pod(_pod("web", "half", 0))
    return fleet


def _pod(name: str, node: str, gpus: int, **more: object) -> FleetPod:
    facts: dict[str, object] = {
        "namespace": "ml",
        "phase": Status.RUNNING,
        "bound": NOW - 600,
        "created": NOW - 700,
    }
    return FleetPod(uid=f"uid-{name}", name=name, node=node, gpus=gpus, **{**facts, **more})  # type: ignore[arg-type]


def known_readings(at: float = NOW - 5) -> Readings:
    rows = [("full", i, 50.0 + i, 700.0 + i) for i in range(4)]
    rows += [
        ("half", 0, 90.0, 600.0),
        ("half", 1, 70.0, 500.0),
        ("half", 5, float("nan"), float("nan")),
        ("idle", 0, 100.0, 650.0),
    ]
    rows.sort()
    utilization = np.array([row[2] for row in rows])
    power = np.array([row[3] for row in rows])
    used = np.array([80.0 * GIB if row[0] == "half" else np.nan for row in rows])
    total = np.array([141.0 * GIB if row[0] == "half" else np.nan for row in rows])
    values = {
        Quantity.UTILIZATION: utilization,
        Quantity.POWER: power,
        Quantity.MEMORY_USED: used,
        Quantity.MEMORY_TOTAL: total,
        Quantity.MEMORY_UTILIZATION: used / total * 100,
    }
    times = {quantity: np.where(np.isnan(column), np.nan, at) for quantity, column in values.items()}
    gpus = tuple(
        GpuIdentity(
            GpuRef(row[0], row[1]),
            uuid=f"GPU-{row[0]}-{row[1]}",
            model="NVIDIA H200" if row[0] != "full" else "AMD Instinct MI300X OAM",
        )
        for row in rows
    )
    return Readings(taken_at=at, gpus=gpus, values=values, times=times)


@pytest.fixture
async def metrics(store: Store) -> EmbeddedMetrics:
    source = EmbeddedMetrics("prod", store.readings, store.training, MetricsSettings(), clock=lambda: NOW)
    for minutes in (65, 60, 20, 15, 10, 5):
        await source.record(known_readings(NOW - minutes * 60))
    await source.record(known_readings())
    process = GpuProcess(
        GpuRef("half", 0), 4242, "python", "alice", "python train.py", 1024.0 * 1024**2, 8.5, None, NOW - 5
    )
    await source.record_processes(Processes((process,)))
    return source


@pytest.fixture
async def cluster(metrics: EmbeddedMetrics) -> Cluster:
    fleet = known_fleet()
    fleet.put_readings(await metrics.latest())
    return Cluster("prod", fleet, Listing(fleet), metrics)


@pytest.fixture
async def http(cluster: Cluster, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    clusters = Clusters([cluster])
    routes = [
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters, store.allocation_periods),
        *training_routes(clusters, store.training, TOKENS, clock=lambda: NOW),
        *gpu_routes(clusters),
        *gpu_map_routes(clusters),
        *node_routes(clusters),
        *gpu_list_routes(clusters),
        *event_routes(clusters, Lifecycle(), heartbeat=0.05),
    ]
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client
