"""Server-side apply: field ownership, conflicts, and removal of fields no longer applied."""

from kubelite.contract.client import APPLY, Api
from kubelite.contract.resources import config_map


class TestServerSideApply:
    """Server-side apply."""

    async def test_apply_creates_and_repeats(self, api: Api) -> None:
        path = api.path("configmaps", "a")
        made = (await api.apply(path, config_map("a", {"k": "v"}), "one")).ok(201)
        entry = made["metadata"]["managedFields"][0]
        assert (entry["manager"], entry["operation"]) == ("one", "Apply")
        assert entry["fieldsV1"] == {"f:data": {"f:k": {}}}
        again = (await api.apply(path, config_map("a", {"k": "v"}), "one")).ok()
        assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    async def test_a_field_of_another_manager_conflicts_unless_forced(self, api: Api) -> None:
        path = api.path("configmaps", "a")
        (await api.apply(path, config_map("a", {"k": "v", "mine": "1"}), "one")).ok(201)
        body = (await api.apply(path, config_map("a", {"k": "w"}), "two")).refused(
            409, 'conflict with "one": .data.k'
        )
        assert body["details"]["causes"][0] == {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "one"',
            "field": ".data.k",
        }
        forced = (await api.apply(path, config_map("a", {"k": "w"}), "two", force="true")).ok()
        assert forced["data"] == {"k": "w", "mine": "1"}
        (await api.apply(path, config_map("a", {"k": "v", "mine": "1"}), "one")).refused(409, '"two"')

    async def test_managers_share_a_field_with_the_same_value(self, api: Api) -> None:
        path = api.path("configmaps", "a")
        (await api.apply(path, config_map("a", {"k": "v"}), "one")).ok(201)
        (await api.apply(path, config_map("a", {"k": "v"}), "two")).ok()
        left = (await api.apply(path, config_map("a", {"other": "x"}), "one")).ok()
        assert left["data"] == {"k": "v", "other": "x"}
        left = (await api.apply(path, config_map("a", {"second": "y"}), "two")).ok()
        assert left["data"] == {"other": "x", "second": "y"}

    async def test_a_field_no_longer_applied_is_removed(self, api: Api) -> None:
        path = api.path("configmaps", "a")
        (await api.apply(path, config_map("a", {"k": "v", "l": "w"}, labels={"x": "y"}), "one")).ok(201)
        left = (await api.apply(path, config_map("a", {"l": "w"}), "one")).ok()
        assert left["data"] == {"l": "w"}
        assert "labels" not in left["metadata"]

    async def test_a_plain_write_takes_ownership(self, api: Api) -> None:
        path = api.path("configmaps", "a")
        (await api.apply(path, config_map("a", {"k": "v"}), "one")).ok(201)
        (await api.patch(path, {"data": {"k": "w"}}, fieldManager="hand")).ok()
        (await api.apply(path, config_map("a", {"k": "v"}), "one")).refused(
            409, 'conflict with "hand" using v1', ".data.k"
        )

    async def test_lists_merge_by_their_keys(self, api: Api) -> None:
        path = api.path("services", "s")

        def service(**ports: int) -> dict[str, object]:
            listed = [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()]
            return {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "s"},
                "spec": {"ports": listed},
            }

        (await api.apply(path, service(a=80, b=81), "one")).ok(201)
        both = (await api.apply(path, service(c=82), "two")).ok()
        assert sorted(port["name"] for port in both["spec"]["ports"]) == ["a", "b", "c"]
        left = (await api.apply(path, service(b=81), "one")).ok()
        assert sorted(port["name"] for port in left["spec"]["ports"]) == ["b", "c"]

    async def test_apply_needs_a_manager_and_a_kind(self, api: Api) -> None:
        path = api.path("configmaps", "a")
        (await api.patch(path, config_map("a"), APPLY)).refused(
            422, "fieldManager", "required for apply patch"
        )
        (await api.apply(path, {"metadata": {"name": "a"}}, "one")).refused(400)
        (await api.apply(path, config_map("b"), "one")).refused(400, "does not match the name on the URL")

    async def test_yaml_is_applied(self, api: Api) -> None:
        text = b'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  when: "2026-01-02"\n'
        response = await api.call("PATCH", api.path("configmaps", "a"), text, APPLY, fieldManager="one")
        assert response.ok(201)["data"] == {"when": "2026-01-02"}
