"""Garbage collection: owners and dependents, namespaces and their content."""

from kubelite.contract.client import Api
from kubelite.contract.resources import config_map, owner


class TestGarbageCollection:
    """Garbage collection."""

    async def _create_parent_and_child(self, api: Api, *, block: bool = False) -> None:
        parent = {
            **(await api.post(api.path("configmaps"), config_map("parent"))).ok(201),
            "apiVersion": "v1",
            "kind": "ConfigMap",
        }
        child = config_map("child", ownerReferences=[owner(parent, block=block)])
        (await api.post(api.path("configmaps"), child)).ok(201)

    async def test_dependents_are_deleted_after_their_owner(self, api: Api) -> None:
        await self._create_parent_and_child(api)
        (await api.delete(api.path("configmaps", "parent"))).ok()
        await api.until_gone(api.path("configmaps", "child"))

    async def test_foreground_deletion_removes_dependents_first(self, api: Api) -> None:
        await self._create_parent_and_child(api, block=True)
        hold = {"metadata": {"finalizers": ["example.com/hold"]}}
        (await api.patch(api.path("configmaps", "child"), hold)).ok()
        deleting = (
            await api.delete(api.path("configmaps", "parent"), {"propagationPolicy": "Foreground"})
        ).ok()
        assert "foregroundDeletion" in deleting["metadata"]["finalizers"]

        async def child_is_deleting() -> bool:
            return "deletionTimestamp" in (await api.get(api.path("configmaps", "child"))).ok()["metadata"]

        await api.until("the child is being deleted", child_is_deleting)
        assert (await api.get(api.path("configmaps", "parent"))).status == 200
        (await api.patch(api.path("configmaps", "child"), {"metadata": {"finalizers": None}})).ok()
        await api.until_gone(api.path("configmaps", "parent"))

    async def test_orphans_stay_without_their_owner_reference(self, api: Api) -> None:
        await self._create_parent_and_child(api)
        (await api.delete(api.path("configmaps", "parent"), {"propagationPolicy": "Orphan"})).ok()
        await api.until_gone(api.path("configmaps", "parent"))
        assert "ownerReferences" not in (await api.get(api.path("configmaps", "child"))).ok()["metadata"]

    async def test_deleting_a_namespace_deletes_its_content(self, api: Api) -> None:
        inner = api.in_namespace(f"{api.namespace}-inner")
        space = f"/api/v1/namespaces/{inner.namespace}"
        (await api.post("/api/v1/namespaces", {"metadata": {"name": inner.namespace}})).ok(201)
        held = config_map("a", finalizers=["example.com/hold"])
        (await inner.post(inner.path("configmaps"), held)).ok(201)
        (await inner.post(inner.path("secrets"), {"metadata": {"name": "s"}})).ok(201)
        deleting = (await api.delete(space)).ok()
        assert deleting["status"]["phase"] == "Terminating"
        late = await inner.post(inner.path("configmaps"), config_map("late"))
        late.refused(403, "because it is being terminated")
        await api.until_gone(inner.path("secrets", "s"))
        assert (await api.get(space)).status == 200
        (await api.patch(inner.path("configmaps", "a"), {"metadata": {"finalizers": None}})).ok()
        await api.until_gone(space)
        (await api.delete("/api/v1/namespaces/default")).refused(403, "this namespace may not be deleted")
