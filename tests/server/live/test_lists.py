"""Filters and orders of the lists of nodes and workloads: team, user, source, rack, every column."""

import httpx
import pytest
from tests.server.live.test_live import data

from gpufleet.fleet.clusters import Cluster
from gpufleet.fleet.workloads.teams import is_user
from gpufleet.model.node import FleetNode
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status

RACK = "topology.kubernetes.io/rack"


@pytest.fixture(autouse=True)
def _more(cluster: Cluster) -> None:
    fleet = cluster.fleet
    fleet.put_node(FleetNode(name="slurm-1", gpu_count=4, source="slurm", labels={RACK: "r7"}))
    fleet.put_owner(
        FleetOwner(
            uid="slurm:7",
            kind="SlurmJob",
            name="fold",
            namespace="bio",
            source="slurm",
            labels={"slurm/user": "Ann"},
            status=Status.RUNNING,
        )
    )
    fleet.put_pod(
        FleetPod(
            uid="slurm:7:0",
            name="7-slurm-1",
            namespace="bio",
            source="slurm",
            node="slurm-1",
            gpus=4,
            held=(0, 1, 2, 3),
            phase=Status.RUNNING,
            bound=10.0,
            owner=OwnerRef("slurm:7", "SlurmJob", "fold"),
        )
    )


async def names(http: httpx.AsyncClient, path: str) -> list[str]:
    return [row["name"] for row in (await data(http, path))["data"]]


@pytest.mark.parametrize("query", ["source=slurm", "rack=r7", "team=bio", "user=ann@example.com"])
async def test_nodes_are_filtered_by_source_rack_team_and_user(http: httpx.AsyncClient, query: str) -> None:
    assert await names(http, f"/api/nodes?{query}") == ["slurm-1"]


@pytest.mark.parametrize("order", ["model", "source", "rack", "fault"])
async def test_nodes_are_sorted_by_every_column_with_empty_values_last(
    http: httpx.AsyncClient, order: str
) -> None:
    rows = (await data(http, f"/api/nodes?sort={order}"))["data"]
    values = [row["gpuModel" if order == "model" else order] for row in rows]
    assert values == sorted(values, key=lambda value: (not value, value))
    assert len({value for value in values if value}) > 0
    assert await names(http, f"/api/nodes?sort={order}&reverse=true") == [row["name"] for row in rows][::-1]


async def test_workloads_are_filtered_by_team_and_user_and_name_both(http: httpx.AsyncClient) -> None:
    (fold,) = (await data(http, "/api/workloads?user=ann"))["data"]
    assert (fold["name"], fold["team"], fold["user"]) == ("fold", "bio", "Ann")
    assert (await names(http, "/api/workloads?team=nlp")) == ["bert"]
    meta = await data(http, "/api/workloadMetadata")
    assert {"nlp", "bio"} <= set(meta["teams"])
    assert (meta["users"], meta["racks"], meta["sources"]) == (["Ann"], ["r7"], ["k8s", "slurm"])


@pytest.mark.parametrize("order", ["namespace", "kind", "status", "source", "team"])
async def test_workloads_are_sorted_by_every_column(http: httpx.AsyncClient, order: str) -> None:
    rows = (await data(http, f"/api/workloads?sort={order}&pageSize=100"))["data"]
    values = [row[order] for row in rows]
    assert values == sorted(values)
    assert len(set(values)) > 1
    back = await names(http, f"/api/workloads?sort={order}&reverse=true&pageSize=100")
    assert back == [row["name"] for row in rows][::-1]


async def test_workloads_are_sorted_by_user_model_and_duration(http: httpx.AsyncClient) -> None:
    assert (await names(http, "/api/workloads?sort=user"))[0] == "fold", "unknown users come last"
    assert (await names(http, "/api/workloads?sort=duration"))[0] == "fold", "it started first and runs"
    models = [
        min(row["gpuAllocation"], default="")
        for row in (await data(http, "/api/workloads?sort=model&pageSize=100"))["data"]
        if row["gpuAllocation"]
    ]
    assert models == sorted(models)


@pytest.mark.parametrize(
    ("wanted", "user", "same"),
    [
        ("alice", "alice", True),
        ("Alice", "alice@example.com", True),
        ("alice@example.com", "alice", True),
        ("alice@example.com", "alice@example.org", False),
        ("alice", "bob", False),
    ],
)
def test_a_user_is_the_same_with_and_without_a_domain(wanted: str, user: str, same: bool) -> None:
    assert is_user(wanted, user) is same
