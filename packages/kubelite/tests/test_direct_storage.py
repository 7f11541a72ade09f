"""Objects written past the API keep what a client could not choose, and are validated."""

import json

import aiohttp
import pytest

from kubelite import DirectStorage, KubeLite
from kubelite.errors import ApiError
from kubelite.json import Json
from kubelite.schema.jsonpath import json_path

_PODS = "/api/v1/namespaces/default/pods"
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


async def test_uid_age_and_status_stay_and_defaults_are_added(kubelite: KubeLite) -> None:
    DirectStorage(kubelite).put([POD])
    async with (
        aiohttp.ClientSession(kubelite.url, headers=kubelite.headers) as session,
        session.get(f"{_PODS}/old") as response,
    ):
        found = await response.json()
    assert found["metadata"]["uid"] == "11111111-2222-4333-8444-555555555555"
    assert found["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert found["status"] == {"phase": "Running", "startTime": "2026-01-02T03:04:06Z"} | found["status"]
    assert found["spec"]["restartPolicy"] == "Always"


async def test_watches_see_direct_writes(kubelite: KubeLite) -> None:
    storage = DirectStorage(kubelite)
    query = {"watch": "true", "resourceVersion": str(kubelite.store.version)}
    async with (
        aiohttp.ClientSession(kubelite.url, headers=kubelite.headers) as session,
        session.get(_PODS, params=query, timeout=aiohttp.ClientTimeout(total=10)) as stream,
    ):
        storage.put([POD])
        storage.put([{**POD, "status": {"phase": "Succeeded"}}])
        storage.remove([POD])
        events = [json.loads(await stream.content.readline())["type"] for _ in range(3)]
    assert events == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_subscriber_sees_existing_objects_and_every_change(kubelite: KubeLite) -> None:
    storage = DirectStorage(kubelite)
    storage.put([POD])
    seen: list[tuple[str, bool]] = []
    storage.subscribe("v1", "Pod", lambda item, deleted: seen.append((item["status"]["phase"], deleted)))
    assert seen == [("Running", False)]
    storage.put([{**POD, "status": {"phase": "Succeeded"}}])
    async with (
        aiohttp.ClientSession(kubelite.url, headers=kubelite.headers) as session,
        session.delete(f"{_PODS}/old") as response,
    ):
        assert response.status == 200
    assert seen == [("Running", False), ("Succeeded", False), ("Succeeded", True)]


async def test_an_object_with_another_uid_is_not_removed(kubelite: KubeLite) -> None:
    storage = DirectStorage(kubelite)
    storage.put([POD])
    other = {**POD, "metadata": {**POD["metadata"], "uid": "another"}}  # type: ignore[dict-item]
    storage.remove([other])
    assert len(kubelite.store.collection("pods").entries) == 1
    storage.remove([POD])
    storage.remove([POD])
    assert len(kubelite.store.collection("pods").entries) == 0


@pytest.mark.parametrize(
    "change",
    [{"spec": {"containers": []}}, {"spec": {"container": 1}}, {"metadata": {"name": "Not A Name"}}],
)
async def test_an_invalid_object_is_refused(kubelite: KubeLite, change: dict[str, object]) -> None:
    with pytest.raises(ApiError):
        DirectStorage(kubelite).put([{**POD, **change}])
    with pytest.raises(LookupError, match="no kind Pad in v1"):
        DirectStorage(kubelite).put([{**POD, "kind": "Pad"}])


@pytest.mark.parametrize(
    ("path", "found"),
    [(".a[-1:].b", [3]), (".a[-1].b", [3]), (".a[0].b", [1]), (".a[-4].b", []), (".a[3].b", [])],
)
def test_a_json_path_can_index_from_the_end(path: str, found: list[int]) -> None:
    assert json_path({"a": [{"b": 1}, {"b": 2}, {"b": 3}]}, path) == found


async def test_a_failing_subscriber_does_not_affect_the_others(kubelite: KubeLite) -> None:
    def fail(item: Json, deleted: bool) -> None:
        raise RuntimeError("broken callback")

    seen: list[str] = []
    storage = DirectStorage(kubelite)
    for callback in (fail, lambda item, deleted: seen.append(item["metadata"]["name"]), fail):
        storage.subscribe("v1", "Secret", callback)
    storage.put([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}])
    assert seen == ["s"]
