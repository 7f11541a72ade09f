"""Fifty questions about a demo fleet, answered with the tools, and compared with the API."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import pytest
from dashboard.tools.demo_process import Demo, running_demo
from mcp import Client
from tests.mcp_server.conftest import over_http

from gpufleet.mcp.fleet_api import FleetApi, open_client
from gpufleet.mcp.server import build_server

pytestmark = pytest.mark.long
MONTH = "MONTH"
"""Stands for the month in which a question is asked."""
REPORT = f"/api/v1/gpu-aggregation/report?period={MONTH}&group_by="
WASTE = "/api/v1/gpu-aggregation/waste?page_size="
Json = Any


@dataclass(frozen=True)
class Question:
    """A question, the tool that answers it, and where the number is in the tool's answer and in the API."""

    text: str
    tool: str
    arguments: dict[str, Any]
    found: Callable[[Json], Json]
    path: str
    expected: Callable[[Json], Json]

    def asked_in(self, month: str) -> Self:
        """Return the question about a month."""
        arguments = {name: month if value == MONTH else value for name, value in self.arguments.items()}
        return replace(self, arguments=arguments, path=self.path.replace(MONTH, month))


def overview(text: str, field: str) -> Question:
    return Question(
        text, "fleet_overview", {}, lambda d: d[field], "/api/clusters/overview", lambda d: d[field]
    )


def nodes(text: str, tail: str, arguments: dict[str, Any], pick: Callable[[Json], Json]) -> Question:
    return Question(text, "list_nodes", arguments, pick, f"/api/nodes?pageSize=50{tail}", pick)


def workloads(text: str, tail: str, arguments: dict[str, Any], pick: Callable[[Json], Json]) -> Question:
    return Question(text, "list_workloads", arguments, pick, f"/api/workloads?pageSize=50{tail}", pick)


def report(text: str, group_by: str, pick: Callable[[Json], Json]) -> Question:
    arguments = {"period": MONTH, "group_by": group_by, "groups": 100}
    return Question(text, "usage_report", arguments, pick, f"{REPORT}{group_by}&groups=100", pick)


def total(data: Json) -> Json:
    return data["total"]


def first(data: Json) -> Json:
    return data["data"][0]["name"]


def free(data: Json, least: int = 0) -> list[int]:
    rows = [n for n in data["data"] if n["ready"] and not n["cordoned"] and n["state"] != "faulty"]
    return [count for n in rows if (count := n["gpuTotal"] - n["gpuAllocated"]) >= least]


QUESTIONS = [
    overview("How many GPU nodes are there?", "totalNodes"),
    overview("How many nodes are healthy?", "healthyNodes"),
    overview("How many nodes are faulty?", "faultyNodes"),
    overview("How many nodes are fully idle?", "fullyIdleNodes"),
    overview("How many nodes are partly idle?", "partiallyIdleNodes"),
    overview("How many nodes are busy?", "busyNodes"),
    overview("How many GPUs are there?", "totalGpus"),
    overview("How many GPUs are allocated?", "allocatedGpus"),
    overview("How many GPUs can be scheduled?", "schedulableGpus"),
    overview("How many schedulable GPUs are allocated?", "schedulableAllocatedGpus"),
    overview("How many allocated GPUs are idle?", "idleGpus"),
    overview("Which share of the schedulable GPUs is allocated?", "allocationRate"),
    Question(
        "Which clusters are there?",
        "list_clusters",
        {},
        lambda d: [c["name"] for c in d["clusters"]],
        "/api/clusters",
        lambda d: [c["name"] for c in d],
    ),
    nodes("How many nodes are in the list?", "", {}, total),
    nodes("What is the first node?", "", {}, first),
    nodes("How many nodes are in state busy?", "&state=busy", {"state": "busy"}, total),
    nodes("How many nodes are in state idle?", "&state=idle", {"state": "idle"}, total),
    nodes("How many nodes are in state partial?", "&state=partial", {"state": "partial"}, total),
    nodes("How many H100 nodes are there?", "&model=h100", {"model": "h100"}, total),
    nodes("How many A100 nodes are there?", "&model=a100", {"model": "a100"}, total),
    nodes(
        "How many GPUs do the H100 nodes have?",
        "&model=h100",
        {"model": "h100"},
        lambda d: sum(n["gpuTotal"] for n in d["data"]),
    ),
    nodes(
        "How many GPUs are allocated on all nodes?",
        "",
        {},
        lambda d: sum(n["gpuAllocated"] for n in d["data"]),
    ),
    nodes("Which nodes are cordoned?", "", {}, lambda d: [n["name"] for n in d["data"] if n["cordoned"]]),
    nodes(
        "Which nodes come from Slurm?",
        "",
        {},
        lambda d: [n["name"] for n in d["data"] if n["source"] == "slurm"],
    ),
    workloads("How many workloads are known?", "", {}, total),
    workloads("How many workloads run?", "&status=Running", {"status": "Running"}, total),
    workloads("How many workloads wait?", "&status=Pending", {"status": "Pending"}, total),
    workloads("How many workloads failed?", "&status=Failed", {"status": "Failed"}, total),
    workloads("How many workloads completed?", "&status=Completed", {"status": "Completed"}, total),
    workloads("How many Jobs are known?", "&kind=Job", {"kind": "Job"}, total),
    workloads("How many PyTorchJobs are known?", "&kind=PyTorchJob", {"kind": "PyTorchJob"}, total),
    workloads(
        "How many Deployments run?",
        "&kind=Deployment&status=Running",
        {"kind": "Deployment", "status": "Running"},
        total,
    ),
    workloads("How many workloads used an H100?", "&model=h100", {"model": "h100"}, total),
    Question(
        "Which workload holds most GPUs?",
        "top_consumers",
        {"page_size": 1},
        lambda d: d["data"][0]["uid"],
        "/api/clusters/consumers?pageSize=1",
        lambda d: d["data"][0]["uid"],
    ),
    Question(
        "How many GPUs does it hold?",
        "top_consumers",
        {"page_size": 1},
        lambda d: d["data"][0]["stat"]["gpuRequest"],
        "/api/clusters/consumers?pageSize=1",
        lambda d: d["data"][0]["stat"]["gpuRequest"],
    ),
    Question(
        "How many workloads hold GPUs?",
        "top_consumers",
        {},
        total,
        "/api/clusters/consumers?pageSize=20",
        total,
    ),
    Question("How many claims are there?", "list_claims", {}, total, "/api/claims?pageSize=50", total),
    Question(
        "How many claims are bound?",
        "list_claims",
        {"phase": "Bound"},
        total,
        "/api/claims?phase=Bound",
        total,
    ),
    Question(
        "How many workloads are in the queue?",
        "queue",
        {},
        lambda d: d["waiting"],
        "/api/workloads?status=Pending&pageSize=100",
        total,
    ),
    Question(
        "How many GPUs does the queue wait for?",
        "queue",
        {},
        lambda d: d["gpus_requested_by_shown"],
        "/api/workloads?status=Pending&pageSize=100",
        lambda d: sum(w["gpuRequested"] for w in d["data"]),
    ),
    report("What did this month cost?", "namespace", lambda d: d["totals"]["cost"]),
    report(
        "How many GPU-hours were allocated this month?",
        "namespace",
        lambda d: d["totals"]["allocated_gpu_hours"],
    ),
    report("How many GPU-hours were idle this month?", "namespace", lambda d: d["totals"]["idle_gpu_hours"]),
    report("Which namespace used most GPU-hours?", "namespace", lambda d: d["rows"][0]["name"]),
    report("What did each team cost?", "label:team", lambda d: {r["name"]: r["cost"] for r in d["rows"]}),
    report("How much energy did the largest workload use?", "workload", lambda d: d["rows"][0]["energy_kwh"]),
    Question(
        "Which workload left most GPU-hours idle?",
        "idle_workloads",
        {"page_size": 1},
        lambda d: d["data"][0]["owner_uid"],
        f"{WASTE}1",
        lambda d: d["data"][0]["owner_uid"],
    ),
    Question(
        "How many nodes have a problem?",
        "findings",
        {},
        lambda d: d["faulty_nodes"],
        "/api/nodes?state=faulty",
        total,
    ),
    Question(
        "How many GPUs are free?",
        "fit_now",
        {"gpus": 1},
        lambda d: d["free_gpus"],
        "/api/nodes?pageSize=1000",
        lambda d: sum(free(d)),
    ),
    Question(
        "On how many nodes does a job with four H100s fit now?",
        "fit_now",
        {"gpus": 4, "model": "h100"},
        lambda d: d["nodes_that_fit_one"],
        "/api/nodes?pageSize=1000&model=h100",
        lambda d: len(free(d, 4)),
    ),
]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with running_demo(12, days=1.0) as running:
        yield running


@asynccontextmanager
async def connected(demo: Demo) -> AsyncIterator[Client]:
    async with open_client(demo.address) as api, Client(build_server(lambda _: FleetApi(api))) as client:
        yield client


def test_there_are_fifty_questions() -> None:
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS) == 50


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
async def test_a_question_is_answered_with_the_number_of_the_api(demo: Demo, question: Question) -> None:
    question = question.asked_in(f"{datetime.now(UTC):%Y-%m}")
    async with connected(demo) as client:
        for _ in range(5):  # the fleet changes between two reads
            before = question.expected(demo.get(question.path))
            result = await client.call_tool(question.tool, question.arguments)
            answer = result.structured_content
            assert isinstance(answer, dict), result.content
            assert answer["evidence"]
            found = question.found(answer["data"])
            if found in (before, question.expected(demo.get(question.path))):
                return
    raise AssertionError(f"{question.text} {found!r} instead of {before!r}")


async def test_the_demo_answers_over_http_too(demo: Demo) -> None:
    async with over_http(f"{demo.address}/mcp", "") as client:
        result = await client.call_tool("fleet_overview", {})
        assert isinstance(result.structured_content, dict)
        assert result.structured_content["data"]["totalNodes"] == 12
