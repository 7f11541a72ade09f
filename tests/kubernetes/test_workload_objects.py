"""Manifests, events and logs of workloads, read from an API server."""

from collections.abc import Callable

import pytest
from aiohttp import web

from gpufleet.errors import NotFound, OperationRefused
from gpufleet.kubernetes.access_review import AccessReviews
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.kubernetes.workload_objects import MAX_LOG_BYTES, WorkloadObjects

from .faulty_server import FaultyServer, status

KINDS = {"resources": [{"name": "jobs", "kind": "Job", "namespaced": True, "verbs": ["get"]}]}


def answering(answers: dict[str, Callable[[web.Request], web.Response]]) -> FaultyServer:
    server = FaultyServer()

    def answer(request: web.Request) -> web.Response:
        found = answers.get(request.path)
        return status(404, "not found") if found is None else found(request)

    server.refuse = answer
    return server


async def test_a_manifest_comes_without_what_only_the_server_needs() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "kept"}
    job = {
        "kind": "Job",
        "metadata": {"name": "bert", "managedFields": [{"manager": "kubectl"}], "annotations": applied},
    }
    server = answering(
        {
            "/apis/batch/v1": lambda _: web.json_response(KINDS),
            "/apis/batch/v1/namespaces/ml/jobs/bert": lambda _: web.json_response(job),
        }
    )
    async with server.serving(), server.client() as client:
        objects = WorkloadObjects(client)
        found = await objects.manifest("batch/v1", "Job", "ml", "bert")
        assert await objects.resource_of("batch/v1", "Job") == ("batch", "jobs")
        with pytest.raises(NotFound):
            await objects.manifest("batch/v1", "Job", "ml", "gone")
    assert found == {"kind": "Job", "metadata": {"name": "bert", "annotations": {"note": "kept"}}}


async def test_events_of_all_objects_are_merged_newest_first() -> None:
    def events(request: web.Request) -> web.Response:
        uid = request.query["fieldSelector"].removeprefix("involvedObject.uid=")
        old = {"involvedObject": {"kind": "Job", "name": "bert"}, "reason": "SuccessfulCreate"}
        new = {"involvedObject": {"kind": "Pod", "name": "bert-0"}, "reason": "BackOff", "type": "Warning"}
        items = {
            "job": [{**old, "lastTimestamp": "2026-01-01T00:00:00Z", "count": None}],
            "pod": [
                {**new, "eventTime": None, "lastTimestamp": "2026-01-02T00:00:00Z", "count": 7},
                {
                    **new,
                    "eventTime": "2026-01-01T12:00:00.000000Z",
                    "lastTimestamp": None,
                    "series": {"count": 3, "lastObservedTime": "2026-01-03T00:00:00.000000Z"},
                },
            ],
        }[uid]
        return web.json_response({"items": items})

    server = answering({"/api/v1/namespaces/ml/events": events})
    async with server.serving(), server.client() as client:
        found = await WorkloadObjects(client).events("ml", ["job", "pod"])
    assert [(event.name, event.reason, event.count) for event in found] == [
        ("bert-0", "BackOff", 3),
        ("bert-0", "BackOff", 7),
        ("bert", "SuccessfulCreate", 1),
    ]


async def test_a_log_is_limited_and_bytes_that_are_no_text_are_replaced() -> None:
    def log(request: web.Request) -> web.Response:
        assert request.query["limitBytes"] == str(MAX_LOG_BYTES)
        if "container" not in request.query:
            return status(400, "a container name must be specified for pod bert-0")
        return web.Response(body=b"step 1 \xff\n", content_type="text/plain")

    server = answering({"/api/v1/namespaces/ml/pods/bert-0/log": log})
    async with server.serving(), server.client() as client:
        objects = WorkloadObjects(client)
        assert await objects.logs("ml", "bert-0", container="main", lines=10) == "step 1 �\n"
        assert "container name must be specified" in await objects.logs("ml", "bert-0", lines=10)


async def test_a_server_that_may_not_read_logs_says_how_to_allow_it() -> None:
    server = FaultyServer()
    server.refuse = lambda request: status(403, "cannot get resource pods/log")
    async with server.serving(), server.client() as client:
        with pytest.raises(OperationRefused, match=r"kubernetes\.readWorkloadObjects"):
            await WorkloadObjects(client).logs("ml", "bert-0", lines=10)


async def test_a_review_of_a_subresource_names_it() -> None:
    bodies = []

    async def review(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response({"status": {"allowed": True}})

    server = FaultyServer()
    server.faults["POST"].append(review)
    async with server.serving(), server.client() as client:
        assert await AccessReviews(client).allowed_on(TokenOwner("ann"), "get", "", "pods/log", "ml")
    assert bodies[0]["spec"]["resourceAttributes"] == {
        "group": "",
        "resource": "pods",
        "subresource": "log",
        "verb": "get",
        "namespace": "ml",
    }
