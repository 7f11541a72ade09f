"""The routes about findings, repairs and their costs, over an embedded API."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from msgspec import structs
from tests.repair.conftest import Cluster, cluster, fault

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster as FleetCluster
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.stragglers import Straggler, StragglerWatch
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.kubernetes import GPU_NODE_STATUSES, GPU_REPAIRS, NODES, KubeClient
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.crds.gpu_repair import Episode, GpuRepair, RepairSpec, RepairStatus
from gpufleet.kubernetes.objects import ObjectMeta
from gpufleet.kubernetes.repair_requests import change_repair
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.scheduling.fault_costs import fault_cost_routes
from gpufleet.server.routes.scheduling.faults import fault_routes, finding_rows

__all__ = ["cluster"]
OPENED, CLOSED = datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)
SPAN = f"start={int(OPENED.timestamp())}&end={int(CLOSED.timestamp())}"


class Listed:
    """What a server has watched."""

    def __init__(self, reports: list[GpuNodeStatus], repairs: list[GpuRepair], client: KubeClient) -> None:
        self._reports, self._repairs, self._client = reports, repairs, client

    def reports(self) -> list[GpuNodeStatus]:
        return self._reports

    def repairs(self) -> list[GpuRepair]:
        return self._repairs

    async def change_repair(self, node: str, spec: dict[str, object]) -> GpuRepair:
        uid = (await self._client.get(NODES, node)).metadata.uid
        return await change_repair(self._client, node, uid, spec)


class OneStraggler(StragglerWatch):
    """A watch that has found one."""

    def __init__(self) -> None:
        super().__init__(Fleet("k8s"))

    def stragglers(self) -> list[Straggler]:
        text = "power 210 W, the median of its job is 640 W"
        return [Straggler("uid", "llama", "ml", "llama-3", 29, "b", 5, "power", 210, 640, 1e9, text)]


async def ask(cluster: Cluster, path: str, body: object = None, status: int = 200) -> dict[str, Any]:
    reports = (await cluster.client.list(GPU_NODE_STATUSES)).items
    repairs = (await cluster.client.list(GPU_REPAIRS)).items
    source = Listed(reports, repairs, cluster.client)
    async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
        fleets = [
            FleetCluster(name, fleet := Fleet(name), Listing(fleet), metrics) for name in ("k8s", "slurm")
        ]
        clusters = Clusters(fleets)
        routes = fault_cost_routes(clusters, {"k8s": source})
        routes += fault_routes(clusters, {"k8s": source}, {"k8s": OneStraggler()})
        transport = httpx.ASGITransport(create_app(Api(routes=routes)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await (client.get(path) if body is None else client.post(path, json=body))
            assert answer.status_code == status, answer.text
            found: dict[str, Any] = answer.json().get("data")
            return found


@pytest.fixture
async def faulty(cluster: Cluster) -> Cluster:
    for name in ("a", "b"):
        await cluster.add_node(name)
    slow = {**fault(1, "pcie-width", "reboot"), "severity": "Degraded"}
    await cluster.report("a", slow, fault(2, "xid-79", "reboot"))
    made = await cluster.client.create(
        GPU_REPAIRS, GpuRepair(metadata=ObjectMeta(name="a"), spec=RepairSpec(node_name="a"))
    )
    earlier = Episode(cause="ecc", opened=OPENED, closed=CLOSED, gpus=2, model="H100", steps=("reset",))
    status = RepairStatus(phase="Cordoned", cause="xid-79", gpus=(2,), opened=CLOSED, history=(earlier,))
    await cluster.client.replace(GPU_REPAIRS, structs.replace(made, status=status), subresource="status")
    return cluster


async def test_findings_are_listed_the_worst_first(faulty: Cluster) -> None:
    page = await ask(faulty, "/api/findings")
    rows = page["data"]
    assert isinstance(rows, list)
    assert [(row["signal"], row["gpu"], row["severity"]) for row in rows] == [
        ("xid-79", 2, "Unhealthy"),
        ("pcie-width", 1, "Degraded"),
        ("straggler", 5, "Degraded"),
    ]
    assert rows[0]["advice"] == "Drain the node, then reboot it."
    assert (await ask(faulty, "/api/findings?severity=Degraded"))["total"] == 2
    assert (await ask(faulty, "/api/findings?node=c"))["total"] == 0
    assert page["kernelLogUnread"] == {}
    assert (await ask(faulty, "/api/findings?cluster=slurm"))["total"] == 0


async def test_repairs_have_their_history(faulty: Cluster) -> None:
    page = await ask(faulty, "/api/repairs?open=true")
    rows = page["data"]
    assert isinstance(rows, list)
    assert (rows[0]["node"], rows[0]["phase"], rows[0]["history"][0]["steps"]) == ("a", "Cordoned", ["reset"])
    assert (page["nodes"], page["disrupted"], page["drainsInHour"]) == (2, 0, 0)


async def test_costs_are_summed_by_cause_node_and_model(faulty: Cluster) -> None:
    costs = await ask(faulty, f"/api/repairs/costs?{SPAN}")
    assert (costs["faults"], costs["openFaults"], costs["lostGpuHours"]) == (2, 1, 4.0)
    assert costs["byCause"] == {"ecc": 4.0, "xid-79": 0.0}
    assert costs["byModel"] == {"H100": 4.0, "NVIDIA_H100": 0.0}
    assert costs["costliest"][0] == {
        "node": "a",
        "model": "H100",
        "cause": "ecc",
        "gpus": 2,
        "opened": "2026-01-01T10:00:00Z",
        "closed": "2026-01-01T12:00:00Z",
        "lostGpuHours": 4.0,
    }
    assert (costs["meanHoursToRepair"], costs["meanHoursBetweenFailures"]) == (2.0, 2.0)


async def test_a_straggler_is_a_finding_with_its_rank_and_job(faulty: Cluster) -> None:
    page = await ask(faulty, "/api/findings?node=b")
    (row,) = page["data"]
    assert (row["rank"], row["workload"], row["workloadUid"]) == (29, "llama", "uid")
    assert row["message"] == "ml/llama, rank 29: power 210 W, the median of its job is 640 W"


async def test_an_unknown_severity_is_refused(faulty: Cluster) -> None:
    await ask(faulty, "/api/findings?severity=Bad", status=400)


async def test_operators_acknowledge_silence_and_resume_a_repair(faulty: Cluster) -> None:
    row = await ask(faulty, "/api/repairs/a/acknowledge", {"by": "ana"})
    assert (row["acknowledgedBy"], row["phase"]) == ("ana", "Cordoned")
    page = await ask(faulty, "/api/findings?node=a")
    assert {each["acknowledgedBy"] for each in page["data"]} == {"ana"}
    row = await ask(faulty, "/api/repairs/a/silence", {"seconds": 600})
    assert row["silencedUntil"] is not None
    row = await ask(faulty, "/api/repairs/a/silence", {"seconds": 0})
    assert (row["silencedUntil"], row["acknowledgedBy"]) == (None, "ana")
    await ask(faulty, "/api/repairs/a/resume", {})
    found = await faulty.repair("a")
    assert found is not None
    assert found.spec.resumed_at is not None


async def test_a_node_without_a_fault_can_be_silenced(faulty: Cluster) -> None:
    row = await ask(faulty, "/api/repairs/b/silence", {"seconds": 600})
    assert (row["node"], row["phase"]) == ("b", "Healthy")
    await ask(faulty, "/api/repairs/b/silence?cluster=slurm", {"seconds": 600}, status=404)


def test_unhealthy_gpus_of_an_older_agent_are_findings() -> None:
    devices = (DeviceStatus(0, health="Healthy"), DeviceStatus(3, health="Unhealthy", health_reason="XID 79"))
    report = GpuNodeStatus(
        metadata=ObjectMeta(name="old"), spec=NodeGpusSpec("old"), status=NodeGpus(devices, 2)
    )
    (row,) = finding_rows([report])
    assert (row.node, row.gpu, row.severity, row.message) == ("old", 3, "Unhealthy", "XID 79")
