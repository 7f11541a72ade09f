"""Objects put behind the API keep what a client could not choose, and nothing else gets in."""

import asyncio

import pytest
from gpufleet.kubernetes import PODS, Connection, KubeClient

from kubelite import KubeLite
from kubelite.errors import ApiError
from kubelite.json import Json
from kubelite.schema.jsonpath import json_path
from kubelite.storage.direct import DirectStorage

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "old",
        "namespace": "default",
        "uid": "11111111-2222-4333-8444-555555555555",
        "creationTimestamp": "2026-01-02T03:04:05Z",
    },
    "spec": {"nodeName": "a", "containers": [{"name": "main", "image": "i"}]},
    "status": {"phase": "Running", "startTime": "2026-01-02T03:04:06Z"},
}


async def test_uid_age_and_status_stay_and_defaults_are_filled_in() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url)) as client:
        DirectStorage(server).put([POD])
        found = await client.read_json("/api/v1/namespaces/default/pods/old")
        assert found["metadata"]["uid"] == "11111111-2222-4333-8444-555555555555"
        assert found["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
        assert found["status"] == {"phase": "Running", "startTime": "2026-01-02T03:04:06Z"} | found["status"]
        assert found["spec"]["restartPolicy"] == "Always"


async def test_watchers_hear_of_what_is_put_and_dropped() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url)) as client:
        storage = DirectStorage(server)
        version = (await client.list(PODS)).resource_version
        heard: list[str] = []
        stands = asyncio.Event()

        async def listen() -> None:
            async for batch in client.watch(PODS, resource_version=version):
                stands.set()
                heard.extend(type(change).__name__ for change in batch.changes)
                if len(heard) == 3:
                    return

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(stands.wait(), 10)
        storage.put([POD])
        storage.put([{**POD, "status": {"phase": "Succeeded"}}])
        storage.remove([POD])
        await asyncio.wait_for(listening, 10)
        assert heard == ["Added", "Modified", "Deleted"]


async def test_a_subscriber_sees_existing_objects_and_every_change() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url)) as client:
        storage = DirectStorage(server)
        storage.put([POD])
        heard: list[tuple[str, bool]] = []
        storage.subscribe("v1", "Pod", lambda item, gone: heard.append((item["status"]["phase"], gone)))
        assert heard == [("Running", False)]
        storage.put([{**POD, "status": {"phase": "Succeeded"}}])
        await client.write_json("DELETE", "/api/v1/namespaces/default/pods/old", {})
        assert heard == [("Running", False), ("Succeeded", False), ("Succeeded", True)]


async def test_an_object_that_somebody_made_anew_is_not_dropped() -> None:
    async with KubeLite() as server:
        storage = DirectStorage(server)
        storage.put([POD])
        other = {**POD, "metadata": {**POD["metadata"], "uid": "another"}}  # type: ignore[dict-item]
        storage.remove([other])
        assert len(server.store.collection("pods").entries) == 1
        storage.remove([POD])
        storage.remove([POD])
        assert len(server.store.collection("pods").entries) == 0


@pytest.mark.parametrize(
    "change",
    [{"spec": {"containers": []}}, {"spec": {"container": 1}}, {"metadata": {"name": "Not A Name"}}],
)
async def test_what_the_api_could_not_hold_is_refused(change: dict[str, object]) -> None:
    async with KubeLite() as server:
        with pytest.raises(ApiError):
            DirectStorage(server).put([{**POD, **change}])
        with pytest.raises(LookupError, match="no kind Pad in v1"):
            DirectStorage(server).put([{**POD, "kind": "Pad"}])


@pytest.mark.parametrize(
    ("path", "found"),
    [(".a[-1:].b", [3]), (".a[-1].b", [3]), (".a[0].b", [1]), (".a[-4].b", []), (".a[3].b", [])],
)
def test_a_column_may_take_the_last_of_a_list(path: str, found: list[int]) -> None:
    assert json_path({"a": [{"b": 1}, {"b": 2}, {"b": 3}]}, path) == found


async def test_a_follower_that_fails_keeps_nobody_from_a_change(kubelite: KubeLite) -> None:
    def fail(item: Json, gone: bool) -> None:
        raise RuntimeError("not my day")

    heard: list[str] = []
    storage = DirectStorage(kubelite)
    for told in (fail, lambda item, gone: heard.append(item["metadata"]["name"]), fail):
        storage.subscribe("v1", "Secret", told)
    storage.put([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}])
    assert heard == ["s"]
