"""Watches: events, their order, selectors and bookmarks."""

from kubelite.contract.client import Api
from kubelite.contract.resources import config_map, pod


class TestWatches:
    """Watches."""

    async def test_a_watch_continues_after_a_list(self, api: Api) -> None:
        path = api.path("configmaps")
        version = (await api.get(path)).ok()["metadata"]["resourceVersion"]
        made = (await api.post(path, config_map("a"))).ok(201)
        async with api.watch(path, resourceVersion=version, fieldSelector="metadata.name=a") as events:
            kind, item = await events.next()
            assert (kind, item) == ("ADDED", made)
            changed = (await api.patch(api.path("configmaps", "a"), {"data": {"k": "v"}})).ok()
            assert await events.next() == ("MODIFIED", changed)
            (await api.delete(api.path("configmaps", "a"))).ok()
            kind, item = await events.next()
            assert kind == "DELETED"
            assert int(item["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])
            assert item["data"] == {"k": "v"}

    async def test_a_watch_without_a_version_starts_with_existing_objects(self, api: Api) -> None:
        made = (await api.post(api.path("pods"), pod("a"))).ok(201)
        async with api.watch(api.path("pods")) as events:
            kind, item = await events.next()
            assert (kind, item["metadata"]["uid"]) == ("ADDED", made["metadata"]["uid"])

    async def test_an_object_enters_and_leaves_a_selector(self, api: Api) -> None:
        path, one = api.path("configmaps"), api.path("configmaps", "a")
        version = (await api.post(path, config_map("a"))).ok(201)["metadata"]["resourceVersion"]
        async with api.watch(path, resourceVersion=version, labelSelector="on=yes") as events:
            (await api.patch(one, {"metadata": {"labels": {"on": "yes"}}})).ok()
            kind, item = await events.next()
            assert (kind, item["metadata"]["labels"]) == ("ADDED", {"on": "yes"})
            (await api.patch(one, {"data": {"k": "v"}})).ok()
            assert (await events.next())[0] == "MODIFIED"
            left = (await api.patch(one, {"metadata": {"labels": {"on": "no"}}})).ok()
            kind, item = await events.next()
            assert (kind, item["metadata"]["labels"]) == ("DELETED", {"on": "yes"})
            assert item["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]

    async def test_a_watch_ends_after_its_timeout(self, api: Api) -> None:
        version = (await api.get(api.path("configmaps"))).ok()["metadata"]["resourceVersion"]
        async with api.watch(
            api.path("configmaps"),
            resourceVersion=version,
            timeoutSeconds="1",
            fieldSelector="metadata.name=none",
        ) as events:
            assert await events.end()

    async def test_initial_events_end_with_a_bookmark(self, api: Api) -> None:
        (await api.post(api.path("configmaps"), config_map("a", labels={"mine": "yes"}))).ok(201)
        query = {
            "sendInitialEvents": "true",
            "allowWatchBookmarks": "true",
            "resourceVersionMatch": "NotOlderThan",
            "labelSelector": "mine=yes",
        }
        async with api.watch(api.path("configmaps"), **query) as events:
            kind, item = await events.next()
            assert (kind, item["metadata"]["name"]) == ("ADDED", "a")
            kind, item = await events.next()
            assert kind == "BOOKMARK"
            assert item["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            assert item["metadata"]["resourceVersion"].isdigit()
        response = await api.get(api.path("configmaps"), watch="true", sendInitialEvents="true")
        response.refused(422, "resourceVersionMatch")

    async def test_a_version_from_the_future_is_refused(self, api: Api) -> None:
        (await api.get(api.path("configmaps"), resourceVersion="999999999999")).refused(
            504, "Too large resource version"
        )
        (await api.get(api.path("configmaps"), resourceVersion="x")).refused(400)

    async def test_a_watch_can_return_tables(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        async with api.watch(api.path("pods"), accept=accept) as events:
            kind, table = await events.next()
            assert (kind, table["kind"], table["rows"][0]["cells"][0]) == ("ADDED", "Table", "a")
            assert table["columnDefinitions"]
            (await api.patch(api.path("pods", "a"), {"metadata": {"labels": {"x": "y"}}})).ok()
            kind, table = await events.next()
            assert (kind, table["rows"][0]["cells"][0]) == ("MODIFIED", "a")
            assert not table["columnDefinitions"]
