"""A cluster that two teams share, and a server with callers who may see one, none or all of its namespaces.

Every name that belongs to the other team contains `SECRET`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.accounting.histories import HOUR, STEP, Prometheus, Server, Time, World, pod

from gpufleet.accounting.current_hour import CurrentHour
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.kubernetes.objects import Node, Pod
from gpufleet.kubernetes.workload_objects import WorkloadEvent
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.reading import (
    GpuIdentity,
    GpuProcess,
    GpuRef,
    Processes,
    Quantity,
    Readings,
    TrainingPoint,
)
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.scheduler.state import Ledger
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.object_access import ObjectAccess
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.claim_view import ClaimState, ClaimView
from gpufleet.server.dashboard import dashboard_routes
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route
from gpufleet.server.routes.accounting.aggregation import aggregation_routes
from gpufleet.server.routes.accounting.focus import focus_routes
from gpufleet.server.routes.accounting.forecast import forecast_routes
from gpufleet.server.routes.accounting.namespace_use import namespace_use_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.events import event_routes
from gpufleet.server.routes.live.gpu_list import gpu_list_routes
from gpufleet.server.routes.live.gpu_map import gpu_map_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.occupancy import occupancy_routes
from gpufleet.server.routes.live.team_occupancy import team_occupancy_routes
from gpufleet.server.routes.live.training import training_routes
from gpufleet.server.routes.live.workload_metrics import workload_metric_routes
from gpufleet.server.routes.live.workload_objects import workload_object_routes
from gpufleet.server.routes.live.workloads import workload_routes
from gpufleet.server.routes.scheduling.claims import claim_routes
from gpufleet.server.routes.scheduling.fit import fit_routes
from gpufleet.server.routes.scheduling.queues import queue_routes
from gpufleet.server.routes.scheduling.waiting import waiting_routes
from gpufleet.server.start_times import StartTimes
from gpufleet.store import Store

SECRET = "zzsecret"
NOW = HOUR + 7300.0
GIB = 1024.0**3
CALLERS = {
    "all": Caller("admin", "operator"),
    "mine": Caller("alice", "viewer", namespaces=frozenset({"mine"})),
    "mine-operator": Caller("olga", "operator", namespaces=frozenset({"mine"})),
    "both": Caller("bob", "viewer", namespaces=frozenset({"mine", SECRET})),
    "none": Caller("nina", "viewer", namespaces=frozenset()),
}


class Gate(BearerGate):
    """Admits the callers above by their key as token."""

    async def authenticate(
        self, method: str, path: str, address: str, authorization: bytes | None, cookie: bytes | None = None
    ) -> Caller | None:
        return CALLERS[(authorization or b"Bearer all").partition(b" ")[2].decode()]


class Allowed(ObjectAccess):
    """Lets every caller read objects: what a caller sees is then decided by its namespaces alone."""

    async def check(self, *arguments: object) -> None:
        pass


class Objects:
    """Returns objects that contain the name that was asked for."""

    async def resource_of(self, api_version: str, kind: str) -> tuple[str, str]:
        return api_version.rpartition("/")[0], f"{kind.lower()}s"

    async def manifest(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": name, "namespace": namespace}}

    async def events(self, namespace: str, uids: Sequence[str]) -> list[WorkloadEvent]:
        return [WorkloadEvent("Pod", uid, "Normal", "Started", namespace, 1, "", "kubelet") for uid in uids]

    async def logs(
        self, namespace: str, pod: str, *, container: str = "", lines: int, previous: bool = False
    ) -> str:
        return f"log of {namespace}/{pod}"


def as_caller(name: str, **headers: str) -> dict[str, str]:
    """Return the headers of a request of one of `CALLERS`."""
    return {"authorization": f"Bearer {name}", **headers}


def _world() -> World:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=HOUR - 9000.0)
    world.nodes["b"] = FleetNode(name="b", gpu_count=2, gpu_model="H200", created=HOUR - 9000.0)
    ours = {"namespace": "mine", "labels": {"team": "blue"}, "annotations": {"cost-center": "cc-1"}}
    theirs = {
        "namespace": SECRET,
        "labels": {"team": f"{SECRET}-team"},
        "annotations": {"cost-center": f"{SECRET}-cc"},
    }
    job = OwnerRef("job", "PyTorchJob", "bert", "kubeflow.org/v1")
    other = OwnerRef(f"{SECRET}-job", "PyTorchJob", f"{SECRET}-bert", "kubeflow.org/v1")
    pods = [
        pod("mine-0", "a", 2, HOUR + 0.0, held=(0, 1), owner=job, **ours),
        pod(f"{SECRET}-0", "a", 2, HOUR + 0.0, held=(2, 3), owner=other, **theirs),
        pod("mine-half", "a", 1, HOUR + 0.0, held=(4,), share=0.5, **ours),
        pod(f"{SECRET}-half", "a", 1, HOUR + 0.0, held=(4,), share=0.5, **theirs),
        pod(f"{SECRET}-idle", "b", 1, HOUR + 0.0, held=(0,), **theirs),
    ]
    world.pods.update({each.uid: each for each in pods})
    return world


def _put_live(fleet: Fleet) -> None:
    """Add what only live routes show: owners, an ended and a waiting workload, a fault."""
    for uid, name, namespace, labels in (
        ("job", "bert", "mine", {"team": "blue"}),
        (f"{SECRET}-job", f"{SECRET}-bert", SECRET, {"team": f"{SECRET}-team"}),
    ):
        fleet.put_owner(
            FleetOwner(
                uid=uid,
                kind="PyTorchJob",
                name=name,
                namespace=namespace,
                api_version="kubeflow.org/v1",
                status=Status.RUNNING,
                created=HOUR + 0.0,
                labels=labels,
            )
        )
    for namespace in ("mine", SECRET):
        ended = f"{namespace}-ended"
        fleet.put_pod(pod(ended, "b", 1, HOUR + 100.0, namespace=namespace, held=(1,)))
        fleet.refresh()
        fleet.drop_pod(ended, HOUR + 200.0)
        fleet.put_pod(
            FleetPod(
                uid=f"{namespace}-waits",
                name=f"{namespace}-waits",
                namespace=namespace,
                kind="Pod" if namespace == "mine" else f"{SECRET}Kind",
                gpus=8,
                waiting_reason=f"{namespace} waits",
            )
        )
    sick = FleetGpu(index=1, health=Health.UNHEALTHY, health_reason="XID 79: fell off the bus")
    fleet.refresh()
    fleet.put_devices(NodeDevices(node="b", gpus=(FleetGpu(index=0), sick), total=2))
    fleet.refresh()


def _readings(at: float) -> Readings:
    gpus = [("a", index) for index in range(8)] + [("b", 0), ("b", 1)]
    utilization = np.array([50.0 + index if node == "a" else 90.0 for node, index in gpus])
    values = {
        Quantity.UTILIZATION: utilization,
        Quantity.POWER: utilization * 10,
        Quantity.TEMPERATURE: utilization,
        Quantity.MEMORY_USED: utilization * GIB,
        Quantity.MEMORY_TOTAL: np.full(len(gpus), 141.0 * GIB),
        Quantity.MEMORY_UTILIZATION: utilization / 1.41,
    }
    times = {quantity: np.full(len(gpus), at) for quantity in values}
    identities = tuple(GpuIdentity(GpuRef(*gpu), uuid=f"GPU-{gpu[0]}-{gpu[1]}", model="H200") for gpu in gpus)
    return Readings(taken_at=at, gpus=identities, values=values, times=times)


def _process(gpu: int, name: str) -> GpuProcess:
    return GpuProcess(
        GpuRef("a", gpu), 40 + gpu, name, f"{name}-user", f"python {name}.py", GIB, 1.0, 1.0, NOW
    )


async def _metrics(store: Store) -> EmbeddedMetrics:
    metrics = EmbeddedMetrics("prod", store.readings, store.training, MetricsSettings(), clock=lambda: NOW)
    for minutes in (20, 15, 10, 5, 0):
        await metrics.record(_readings(NOW - 5 - minutes * 60))
    await metrics.record_processes(
        Processes((_process(0, "mine"), _process(2, SECRET), _process(4, f"{SECRET}-half")))
    )
    for uid, metric in (("job", "loss"), (f"{SECRET}-job", f"{SECRET}_loss")):
        await metrics.record_training(uid, [TrainingPoint(metric, 0.5, NOW - 60 * n) for n in range(5)])
    return metrics


def _object(kind: type[Any], **fields: Any) -> Any:
    return msgspec.convert(fields, kind)


def _queues() -> list[GpuQueue]:
    """A queue of each team, and one of both whose condition names the other team's namespace."""
    message = f"namespace {SECRET} belongs to the older queue {SECRET}-queue"
    condition = {"type": "NamespacesAssigned", "status": "False", "message": message}
    both = {"namespaces": ["mine", SECRET], "conditions": [condition]}
    return [
        _object(GpuQueue, metadata={"name": "mine-queue"}, status={"namespaces": ["mine"]}),
        _object(GpuQueue, metadata={"name": f"{SECRET}-queue"}, status={"namespaces": [SECRET]}),
        _object(GpuQueue, metadata={"name": "both"}, status=both),
    ]


def _ledger() -> Ledger:
    """A node of four GPUs: one of ours and three of theirs; a claim of each team waits for all four."""
    ledger = Ledger()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    ledger.put_node(_object(Node, metadata={"name": "a"}, status=ready))
    devices = [{"id": index, "health": "Healthy"} for index in range(4)]
    ledger.put_report(
        _object(
            GpuNodeStatus,
            metadata={"name": "a"},
            spec={"nodeName": "a"},
            status={"devices": devices, "total": 4},
        )
    )
    for namespace, gpus in (("mine", (0,)), (SECRET, (1, 2, 3))):
        name = f"{namespace}-held"
        for claim, count in ((name, len(gpus)), (f"{namespace}-wants", 4)):
            ledger.claims[namespace, claim] = _object(
                GpuClaim,
                metadata={"name": claim, "namespace": namespace, "uid": f"{claim}-claim"},
                spec={"devices": {"count": count}},
            )
        for uid, claim, node in ((name, name, "a"), (f"{namespace}-waits", f"{namespace}-wants", "")):
            meta = {
                "name": f"pod-{uid}",
                "namespace": namespace,
                "uid": uid,
                "annotations": {"gpu.scheduling/claim": claim},
            }
            ledger.put_pod(_object(Pod, metadata=meta, spec={"nodeName": node, "containers": []}))
        holder = {name: LeaseHolder(namespace=namespace, pod=f"pod-{name}", claim=name, milli=1000)}
        for gpu in gpus:
            lease = new_lease("gpu-system", "a", gpu, holder, "", datetime.fromtimestamp(NOW, UTC))
            meta = {**msgspec.to_builtins(lease.metadata), "uid": f"lease-{gpu}", "resourceVersion": "1"}
            ledger.put_lease(
                msgspec.structs.replace(lease, metadata=msgspec.convert(meta, type(lease.metadata)))
            )
    return ledger


@pytest.fixture
async def cluster(store: Store) -> tuple[Cluster, Server]:
    """The live cluster, and the accounting that recorded its first two hours."""
    world = _world()
    values: Mapping[tuple[str, int, int], float] = {
        ("a", gpu, HOUR + minute * STEP): 60.0 + gpu for gpu in range(4) for minute in range(25)
    }
    idle = {("b", 0, HOUR + minute * STEP): 1.0 for minute in range(25)}
    ours = {("a", 4, HOUR + minute * STEP): 1.0 for minute in range(25)}
    server = Server(world, store, Prometheus({**values, **idle, **ours}), Time(HOUR + 10.0))
    await server.round()
    for seconds in (3610.0, 7250.0):
        server.watch(HOUR + seconds)
        await server.round()
    server.time.now = NOW
    metrics = await _metrics(store)
    fleet = server.fleet
    _put_live(fleet)
    fleet.put_readings(await metrics.latest())
    return Cluster("prod", fleet, Listing(fleet), metrics), server


@pytest.fixture
def routes(cluster: tuple[Cluster, Server], store: Store) -> list[Route]:
    live, server = cluster
    clusters = Clusters([live])
    stopped = Lifecycle()
    stopped.stopping = True  # a stream ends after the events that it starts with

    async def claims() -> ClaimState:
        return ClaimState(_ledger(), has_claims=True)

    periods = partial(store.allocation_periods.latest, "prod")
    starts = {
        "prod": StartTimes("prod", ClaimView(claims).ledger, periods, store.start_calibrations, _queues)
    }
    return [
        *aggregation_routes(
            store,
            "prod",
            lambda: NOW,
            current={"prod": CurrentHour(server.account, store, lambda: NOW)},
        ),
        *report_routes(store, "prod", lambda: NOW),
        *focus_routes(store, "prod", lambda cluster: "USD"),
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters, store.allocation_periods),
        *workload_object_routes(clusters, {"prod": Objects()}, Allowed({})),
        *training_routes(clusters, store.training, WorkloadTokens(b"k" * 32), clock=lambda: NOW),
        *gpu_routes(clusters),
        *gpu_map_routes(clusters),
        *node_routes(clusters),
        *gpu_list_routes(clusters),
        *occupancy_routes(clusters, store.allocation_periods),
        *team_occupancy_routes(clusters, store.allocation_periods),
        *event_routes(clusters, stopped),
        *queue_routes(clusters, {"prod": _queues}),
        *namespace_use_routes(store, "prod", {}, lambda: NOW),
        *claim_routes(clusters, {"prod": ClaimView(claims)}, starts),
        *waiting_routes(clusters, starts),
        *fit_routes(clusters, {"prod": ClaimView(claims)}, starts),
        *forecast_routes(store, "prod"),
        *dashboard_routes(),
    ]


@pytest.fixture
async def http(routes: list[Route]) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Api(routes=routes, gate=Gate(), debug_counts={}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        yield client
