"""The requests that the client sends, and how it reads the responses."""

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.kubernetes import faulty_server as faults
from tests.kubernetes.faulty_server import FaultyServer, status
from yarl import URL

from gpufleet.kubernetes import (
    EVENTS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    PODS,
    Connection,
    Discovery,
    EventRecorder,
    KubeClient,
    Selection,
    Timing,
)
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.errors import Gone, ObjectNotFound
from gpufleet.kubernetes.client.resources import Deleted, Modified
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.objects import (
    KubeObject,
    Lease,
    LeaseSpec,
    ObjectMeta,
    ObjectReference,
    Owner,
    micro_time,
)


class Recorder(FaultyServer):
    """Records requests and returns a fixed response."""

    def __init__(self, reply: Any = None, code: int = 200) -> None:
        super().__init__()
        self.reply = reply or {"metadata": {"name": "one-a"}}
        self.code = code
        self.sent: list[tuple[str, str, str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kind = request.headers.get("Content-Type", "")
        self.sent.append((request.method, request.path_qs, kind, json.loads(body) if body else None))
        self.headers.append(dict(request.headers))
        return web.json_response(self.reply, status=self.code)


@pytest.mark.parametrize(
    ("made", "kind", "query", "body"),
    [
        (
            patch.merge({"metadata": {"labels": {"a": None}}}),
            "application/merge-patch+json",
            "fieldManager=gpufleet",
            {"metadata": {"labels": {"a": None}}},
        ),
        (
            patch.json([{"op": "add", "path": "/spec/x", "value": 1}]),
            "application/json-patch+json",
            "fieldManager=gpufleet",
            [{"op": "add", "path": "/spec/x", "value": 1}],
        ),
        (
            patch.apply(Lease(spec=LeaseSpec(holder_identity="")), manager="agent"),
            "application/apply-patch+yaml",
            "fieldManager=agent&force=true",
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "one-a", "namespace": "default"},
                "spec": {"holderIdentity": ""},
            },
        ),
    ],
)
async def test_each_patch_has_its_content_type_and_query(
    made: patch.Patch, kind: str, query: str, body: Any
) -> None:
    server = Recorder()
    async with server.serving(), server.client() as client:
        await client.patch(LEASES, "one-a", made, "default", subresource="status")
    path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/one-a/status?{query}"
    assert server.sent == [("PATCH", path, kind, body)]


async def test_a_merge_patch_with_a_version_is_not_repeated() -> None:
    assert patch.merge({"spec": {}}).repeatable
    assert not patch.merge({"metadata": {"resourceVersion": "7"}}).repeatable


async def test_a_binding_carries_uid_and_annotations() -> None:
    server = Recorder({"kind": "Status", "status": "Success"}, code=201)
    async with server.serving(), server.client() as client:
        await client.bind("default", "pod-a", "uid-1", "node-a", {"gpu.scheduling/allocated": "node-a:0,1"})
    ((method, path, _, body),) = server.sent
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/pod-a/binding")
    assert body["metadata"]["uid"] == "uid-1"
    assert body["metadata"]["annotations"] == {"gpu.scheduling/allocated": "node-a:0,1"}
    assert body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a"}


async def test_a_delete_carries_its_preconditions() -> None:
    server = Recorder()
    async with server.serving(), server.client() as client:
        await client.delete(LEASES, "one-a", "default", uid="u", resource_version="7", grace_seconds=0)
        await client.delete(NODES, "node-a")
    first, second = (body for _, _, _, body in server.sent)
    assert first["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert first["gracePeriodSeconds"] == 0
    assert "preconditions" not in second


async def test_a_status_is_written_under_its_own_path() -> None:
    server = Recorder()
    item = GpuNodeStatus(
        metadata=ObjectMeta(name="node-a", resource_version="3"),
        spec=NodeGpusSpec("node-a"),
        status=NodeGpus(devices=(DeviceStatus(id=0, health="Healthy"),), total=1, free=1),
    )
    server.reply = json.loads(GPU_NODE_STATUSES.encode(item))
    async with server.serving(), server.client() as client:
        assert await client.replace(GPU_NODE_STATUSES, item, subresource="status") == item
    ((method, path, _, body),) = server.sent
    assert (method, path.partition("?")[0]) == (
        "PUT",
        "/apis/gpu.scheduling/v1/gpunodestatuses/node-a/status",
    )
    assert body["kind"] == "GpuNodeStatus"
    assert body["status"]["devices"] == [{"id": 0, "health": "Healthy"}]


async def test_selectors_are_sent_unchanged() -> None:
    server = Recorder({"metadata": {"resourceVersion": "5"}, "items": None})
    select = Selection("team-a", labels="app in (a,b),!c", fields="spec.nodeName=node&1")
    async with server.serving(), server.client() as client:
        page = await client.list(PODS, select)
    assert (page.items, page.resource_version) == ([], "5")
    ((_, path, _, _),) = server.sent
    assert dict(URL(path).query) == {
        "labelSelector": "app in (a,b),!c",
        "fieldSelector": "spec.nodeName=node&1",
        "limit": "500",
    }


async def test_only_metadata_is_requested_if_the_type_reads_nothing_else() -> None:
    server = Recorder({"kind": "APIResourceList", "resources": []})
    server.reply = {
        "resources": [
            {"name": "rayjobs", "kind": "RayJob", "namespaced": True, "verbs": ["get"]},
            {"name": "rayjobs/status", "kind": "RayJob", "namespaced": True, "verbs": ["get"]},
        ]
    }
    async with server.serving(), server.client() as client:
        discovery = Discovery(client)
        rayjobs = await discovery.find("ray.io/v1", "RayJob", KubeObject)
        again = await discovery.find("ray.io/v1", "RayJob", Owner)
        assert [path for _, path, _, _ in server.sent] == ["/apis/ray.io/v1"], "asked once"
        server.reply = {"metadata": {"name": "one"}, "spec": {"huge": []}}
        await client.get(rayjobs, "one", "default")
        await client.get(again, "one", "default")
    accepted = [headers["Accept"] for headers in server.headers[1:]]
    assert accepted[0].startswith("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
    assert accepted[1] == "application/json"
    assert server.sent[-1][1] == "/apis/ray.io/v1/namespaces/default/rayjobs/one"


async def test_an_unknown_kind_is_not_found_and_looked_up_again_after_a_second() -> None:
    server = FaultyServer()
    server.refuse = lambda request: status(404, "NotFound")
    time = 0.0
    async with (
        server.serving() as url,
        KubeClient(Connection(url), timing=Timing(monotonic=lambda: time)) as client,
    ):
        discovery = Discovery(client)
        for _ in range(5):
            with pytest.raises(ObjectNotFound, match=r"no kind RayJob in ray\.io/v1"):
                await discovery.find("ray.io/v1", "RayJob", KubeObject)
        assert len(server.requests) == 1
        time = 1.1
        with pytest.raises(ObjectNotFound):
            await discovery.find("ray.io/v1", "RayJob", KubeObject)
        assert len(server.requests) == 2


async def test_a_watch_yields_batches_and_raises_the_servers_errors() -> None:
    server = FaultyServer()
    await server.put("a", spec={"holderIdentity": "x"})
    version = server.version
    await server.put("a", spec={"holderIdentity": "y"})
    await server.remove("a")

    async def all_then_gone(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        response = await faults.opened(request)
        lines = b"".join(faults.line(kind, item) for at, kind, item in server.history if at > version)
        # Split anywhere, even inside a character: the reader joins the lines again.
        for start in range(0, len(lines), 37):
            await response.write(lines[start : start + 37])
            await asyncio.sleep(0)
        await response.write(faults.line("BOOKMARK", {"metadata": {"resourceVersion": "900"}}))
        await response.write(faults.line("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}))
        return response

    server.faults["WATCH"].append(all_then_gone)
    async with server.serving(), server.client() as client:
        events: list[Any] = []
        versions: list[str] = []

        async def follow() -> None:
            async with aclosing(client.watch(LEASES, resource_version=str(version))) as batches:
                async for batch in batches:
                    events.extend(batch.changes)
                    versions.append(batch.resource_version)

        with pytest.raises(Gone, match="too old"):
            await follow()
    assert [type(event) for event in events] == [Modified, Deleted]
    assert (versions[0], versions[-1]) == (str(version), "900")
    ((_, path),) = server.requests
    assert "allowWatchBookmarks=true" in path


async def test_an_event_is_written_once_and_then_counted() -> None:
    server = Recorder()
    time = 0.0
    now = datetime(2026, 11, 1, 8, 0, tzinfo=UTC)
    about = ObjectReference(kind="Pod", namespace="team-a", name="p", uid="u")
    async with server.serving():
        timing = Timing(monotonic=lambda: time, now=lambda: now)
        async with KubeClient(Connection(server.url), timing=timing) as client:
            recorder = EventRecorder(client, "gpu-scheduler", "host-1")
            for _ in range(100):
                await recorder.record(about, "Waiting", "0/4 nodes fit", type="Warning")
            assert len(server.sent) == 1
            time = 31.0
            await recorder.record(about, "Waiting", "0/4 nodes fit", type="Warning")
            await recorder.record(about, "Placed", "on node-a")
    first, counted, other = server.sent
    assert first[:2] == ("POST", "/apis/events.k8s.io/v1/namespaces/team-a/events?fieldManager=gpufleet")
    event = msgspec.convert({**first[3], "metadata": {}}, EVENTS.type, strict=False)
    assert (event.reason, event.note, event.type) == ("Waiting", "0/4 nodes fit", "Warning")
    assert first[3]["eventTime"] == "2026-11-01T08:00:00.000001Z"
    assert counted[0] == "PATCH"
    assert counted[3]["series"]["count"] == 101
    assert other[3]["reason"] == "Placed"


async def test_an_event_that_can_not_be_written_is_ignored() -> None:
    server = Recorder({"kind": "Status", "code": 403, "reason": "Forbidden"}, code=403)
    async with server.serving(), server.client() as client:
        await EventRecorder(client, "c", "i").record(ObjectReference(kind="Pod", name="p"), "R", "note")
    assert len(server.sent) == 1


def test_a_namespaced_object_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="Lease a needs a namespace"):
        LEASES.path(name="a")
    assert LEASES.path("ns/../x", "a b") == "/apis/coordination.k8s.io/v1/namespaces/ns%2F..%2Fx/leases/a%20b"


def test_a_micro_time_always_has_six_decimals() -> None:
    whole = datetime(2026, 1, 1, tzinfo=UTC)
    assert msgspec.json.encode(micro_time(whole)) == b'"2026-01-01T00:00:00.000001Z"'
    assert micro_time(whole.replace(microsecond=120000)) == whole.replace(microsecond=120000)
    assert msgspec.json.encode(whole.replace(microsecond=120000)) == b'"2026-01-01T00:00:00.120000Z"'
