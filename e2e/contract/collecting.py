"""What goes with what: owners and dependents, namespaces and their content."""

from e2e.contract.server import Api
from e2e.contract.things import config_map, owner


class Collecting:
    """Garbage collection keeps to these."""

    async def _family(self, api: Api, *, block: bool = False) -> None:
        parent = {
            **(await api.post(api.path("configmaps"), config_map("parent"))).ok(201),
            "apiVersion": "v1",
            "kind": "ConfigMap",
        }
        child = config_map("child", ownerReferences=[owner(parent, block=block)])
        (await api.post(api.path("configmaps"), child)).ok(201)

    async def test_dependents_go_after_their_owner(self, api: Api) -> None:
        await self._family(api)
        (await api.delete(api.path("configmaps", "parent"))).ok()
        await api.until_gone(api.path("configmaps", "child"))

    async def test_in_the_foreground_dependents_go_first(self, api: Api) -> None:
        await self._family(api, block=True)
        hold = {"metadata": {"finalizers": ["gpufleet.example/hold"]}}
        (await api.patch(api.path("configmaps", "child"), hold)).ok()
        going = (await api.delete(api.path("configmaps", "parent"), {"propagationPolicy": "Foreground"})).ok()
        assert "foregroundDeletion" in going["metadata"]["finalizers"]

        async def child_goes() -> bool:
            return "deletionTimestamp" in (await api.get(api.path("configmaps", "child"))).ok()["metadata"]

        await api.until("the child is going", child_goes)
        assert (await api.get(api.path("configmaps", "parent"))).status == 200
        (await api.patch(api.path("configmaps", "child"), {"metadata": {"finalizers": None}})).ok()
        await api.until_gone(api.path("configmaps", "parent"))

    async def test_orphans_stay_and_forget_their_owner(self, api: Api) -> None:
        await self._family(api)
        (await api.delete(api.path("configmaps", "parent"), {"propagationPolicy": "Orphan"})).ok()
        await api.until_gone(api.path("configmaps", "parent"))
        assert "ownerReferences" not in (await api.get(api.path("configmaps", "child"))).ok()["metadata"]

    async def test_a_namespace_takes_its_content_along(self, api: Api) -> None:
        inner = api.elsewhere(f"{api.namespace}-inner")
        space = f"/api/v1/namespaces/{inner.namespace}"
        (await api.post("/api/v1/namespaces", {"metadata": {"name": inner.namespace}})).ok(201)
        held = config_map("a", finalizers=["gpufleet.example/hold"])
        (await inner.post(inner.path("configmaps"), held)).ok(201)
        (await inner.post(inner.path("secrets"), {"metadata": {"name": "s"}})).ok(201)
        going = (await api.delete(space)).ok()
        assert going["status"]["phase"] == "Terminating"
        late = await inner.post(inner.path("configmaps"), config_map("late"))
        late.refused(403, "because it is being terminated")
        await api.until_gone(inner.path("secrets", "s"))
        assert (await api.get(space)).status == 200
        (await api.patch(inner.path("configmaps", "a"), {"metadata": {"finalizers": None}})).ok()
        await api.until_gone(space)
        (await api.delete("/api/v1/namespaces/default")).refused(403, "this namespace may not be deleted")
