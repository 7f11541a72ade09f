"""Ways around a scope: other numbers of GPUs, forged owners, messages of dependencies, tokens of pods."""

import httpx
import numpy as np
import pytest
from tests.accounting.histories import Server
from tests.server.conftest import Client
from tests.server.scope.conftest import CALLERS, NOW, SECRET, Gate, as_caller
from tests.server.scope.test_live import data

from gpufleet.errors import InvalidRequest, MetricsUnavailable
from gpufleet.fleet.clusters import Cluster
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.visibility import visible_processes, visible_rows
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuProcess, GpuRef, Quantity, Readings
from gpufleet.model.workload import FleetPod, OwnerRef, Status
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.scope import scope_header
from gpufleet.server.http.routing import Route, get

MINE = frozenset({"mine"})


def test_gpus_are_matched_by_uuid_where_the_exporter_numbers_them_differently() -> None:
    fleet = Fleet("prod", clock=lambda: NOW)
    fleet.put_node(FleetNode(name="a", gpu_count=2))
    gpus = (FleetGpu(index=0, uuid="GPU-mine"), FleetGpu(index=1, uuid="GPU-theirs"))
    fleet.put_devices(NodeDevices(node="a", gpus=gpus, total=2))
    for index, namespace in ((0, "mine"), (1, SECRET)):
        fleet.put_pod(
            FleetPod(
                uid=namespace,
                name=namespace,
                namespace=namespace,
                node="a",
                gpus=1,
                held=(index,),
                phase=Status.RUNNING,
            )
        )
    identities = (
        GpuIdentity(GpuRef("a", 0), uuid="GPU-theirs", model=""),
        GpuIdentity(GpuRef("a", 1), uuid="GPU-mine", model=""),
    )
    values = {Quantity.UTILIZATION: np.array([10.0, 20.0])}
    readings = Readings(
        taken_at=NOW, gpus=identities, values=values, times={Quantity.UTILIZATION: np.full(2, NOW)}
    )
    fleet.put_readings(readings)
    assert visible_rows(fleet, readings, MINE) == {1}
    processes = [
        GpuProcess(GpuRef("a", index), index, "python", "u", "c", None, None, None, NOW) for index in (0, 1)
    ]
    assert [each.gpu.index for each in visible_processes(fleet, processes, MINE)] == [1]
    assert visible_processes(fleet, [], MINE) == []


async def test_a_pod_that_names_a_workload_of_another_namespace_as_its_owner_is_not_shown_with_it(
    http: httpx.AsyncClient, cluster: tuple[Cluster, Server]
) -> None:
    forged = OwnerRef("job", "PyTorchJob", "bert")
    cluster[0].fleet.put_pod(
        FleetPod(
            uid=f"{SECRET}-forged",
            name=f"{SECRET}-forged",
            namespace=SECRET,
            node="a",
            gpus=1,
            held=(6,),
            owner=forged,
            phase=Status.RUNNING,
            bound=NOW - 600,
        )
    )
    for path in ("", "/hierarchy", f"/metrics?start={int(NOW) - 600}&end={int(NOW)}"):
        answer = await http.get(f"/api/workloads/job{path}", headers=as_caller("mine"))
        assert answer.status_code == 200
        assert SECRET not in answer.text
        assert "GPU-6" not in answer.text
    own = cluster[0].fleet.workloads()[f"job@{SECRET}"]
    assert (own.namespace, own.labels, own.gpus) == (SECRET, {}, 1)
    assert SECRET not in str(await data(http, "/api/workloads/job/hierarchy", "all"))


def failing_routes() -> list[Route]:
    @get("/api/clusters/down", scope="public")
    async def down() -> None:
        """Fail like a metric source."""
        raise MetricsUnavailable(f'duplicate series {{namespace="{SECRET}"}}')

    @get("/api/clusters/wrong", scope="public")
    async def wrong() -> None:
        """Refuse a parameter."""
        raise InvalidRequest("parameter start: must not be after end")

    return [down, wrong]


async def test_messages_of_dependencies_are_hidden_from_limited_callers(client: Client) -> None:
    async with client(routes=failing_routes(), gate=Gate()) as http:
        hidden = await http.get("/api/clusters/down", headers=as_caller("mine"))
        shown = await http.get("/api/clusters/down", headers=as_caller("all"))
        wrong = await http.get("/api/clusters/wrong", headers=as_caller("mine"))
        health = await http.get("/api/healthz", headers=as_caller("mine"))
    assert (hidden.status_code, hidden.headers["retry-after"]) == (503, "5")
    assert SECRET not in hidden.text
    assert SECRET in shown.text
    assert wrong.json()["message"] == "parameter start: must not be after end"
    assert health.status_code == 200


async def test_a_pod_reports_its_own_training_whatever_its_account_may_see(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Caller("pod", "viewer", pod_uid="mine-0", namespaces=frozenset())
    monkeypatch.setitem(CALLERS, "pod", pod)
    rows = [{"metric": "loss", "value": 1.0, "timestamp": int(NOW * 1000)}]
    answers = [
        await http.post(f"/api/workloads/{uid}/trainingPerformance", json=rows, headers=as_caller("pod"))
        for uid in ("mine-0", "job", "mine-half", f"{SECRET}-job", "nothing")
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 404, 404]


def test_the_header_encodes_names_and_is_bounded() -> None:
    assert scope_header(frozenset({"b,c", "a\r\nx: y"})) == (b"x-gpufleet-scope", b"a%0D%0Ax%3A%20y,b%2Cc")
    _, long = scope_header(frozenset(f"namespace-{number:04}" for number in range(1000)))
    assert len(long) < 4200
    assert long.endswith(b",...")


def test_a_filtered_route_must_take_the_namespaces() -> None:
    async def forgetful() -> None:
        """Return everything."""

    with pytest.raises(TypeError, match="a filtered route, and no other, takes `namespaces`"):
        get("/api/forgetful", scope="filtered")(forgetful)


async def test_a_route_without_a_rule_refuses_limited_callers(client: Client) -> None:
    @get("/api/clusters/new")
    async def new() -> list[str]:
        """Return everything."""
        return [SECRET]

    async with client(routes=[new], gate=Gate()) as http:
        refused = await http.get("/api/clusters/new", headers=as_caller("mine"))
        shown = await http.get("/api/clusters/new", headers=as_caller("all"))
    assert (refused.status_code, shown.status_code) == (403, 200)
