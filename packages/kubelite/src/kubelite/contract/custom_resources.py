"""Custom resources: definitions created at run time, schemas, CEL rules, status, columns."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubelite.contract.client import STRATEGIC, Api
from kubelite.contract.resources import GROUP, Json, definition

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@asynccontextmanager
async def installed_definition(api: Api) -> AsyncIterator[tuple[str, str]]:
    """Create a definition for one test and yield its plural and kind once it is served."""
    mark = secrets.token_hex(3)
    plural, kind = f"things{mark}", f"Thing{mark}"
    (await api.post(_DEFINITIONS, definition(plural, kind))).ok(201)
    path = f"{_DEFINITIONS}/{plural}.{GROUP}"

    async def established() -> bool:
        conditions = (await api.get(path)).ok().get("status", {}).get("conditions") or []
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    async def served() -> bool:
        return (await api.get(api.path(plural, version=f"{GROUP}/v1"))).status == 200

    await api.until("the definition is established", established)
    await api.until("the resource is served", served)
    yield plural, kind
    await api.delete(path)


def custom_object(kind: str, name: str, **spec: object) -> Json:
    """Return an object of the definition."""
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


class TestCustomResources:
    """Custom resources."""

    async def test_deleting_a_definition_deletes_its_objects(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            made = (await api.post(path, custom_object(kind, "a", count=2))).ok(201)
            assert made["spec"] == {"count": 2, "policy": "contiguous"}
            assert made["metadata"]["generation"] == 1
            listed = (await api.get(f"/apis/{GROUP}/v1")).ok()
            names = [one["name"] for one in listed["resources"] if one["name"].startswith(plural)]
            assert sorted(names) == [plural, f"{plural}/scale", f"{plural}/status"]
            found = (await api.get(path)).ok()
            assert (found["kind"], len(found["items"])) == (f"{kind}List", 1)
            (await api.delete(f"{_DEFINITIONS}/{plural}.{GROUP}")).ok()
            await api.until_gone(f"{_DEFINITIONS}/{plural}.{GROUP}")
            await api.until_gone(path)

    async def test_values_must_match_the_schema(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            (await api.post(path, custom_object(kind, "a"))).refused(422, "spec.count: Required value")
            (await api.post(path, custom_object(kind, "a", count=0))).refused(
                422, "spec.count: Invalid value: 0", "greater than or equal to 1"
            )
            (await api.post(path, custom_object(kind, "a", count="two"))).refused(
                422, 'spec.count: Invalid value: "string"', "must be of type integer"
            )
            (await api.post(path, custom_object(kind, "a", count=1, policy="x"))).refused(
                422, 'spec.policy: Unsupported value: "x"'
            )
            (await api.post(path, custom_object(kind, "a", count=8, ids=[1, 2, 3, 4, 5]))).refused(
                422, "spec.ids: Too many"
            )
            twice = [{"name": "p"}, {"name": "p"}]
            (await api.post(path, custom_object(kind, "a", count=1, parts=twice))).refused(
                422, "spec.parts[1]: Duplicate value"
            )

    async def test_cel_rules_are_enforced(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            (await api.post(path, custom_object(kind, "a", count=1, ids=[1, 2]))).refused(
                422, "no more ids than count"
            )
            (await api.post(path, custom_object(kind, "a", count=2, ids=[1, 2], owner="me"))).ok(201)
            (await api.patch(f"{path}/a", {"spec": {"owner": "you"}})).refused(422, "owner can't change")
            assert (await api.patch(f"{path}/a", {"spec": {"count": 3}})).ok()["metadata"]["generation"] == 2

    async def test_unknown_fields_are_pruned(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            made = (
                await api.post(
                    path, custom_object(kind, "a", count=1, unknown=True), fieldValidation="Ignore"
                )
            ).ok(201)
            assert "unknown" not in made["spec"]
            strict = await api.post(
                path, custom_object(kind, "b", count=1, unknown=True), fieldValidation="Strict"
            )
            strict.refused(400, 'strict decoding error: unknown field "spec.unknown"')

    async def test_status_and_spec_are_written_separately(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            made = (
                await api.post(path, {**custom_object(kind, "a", count=1), "status": {"phase": "Early"}})
            ).ok(201)
            assert "status" not in made
            change = {"spec": {"count": 5}, "status": {"phase": "Bound"}}
            patched = (await api.patch(f"{path}/a/status", change)).ok()
            assert (patched["spec"]["count"], patched["status"]) == (1, {"phase": "Bound"})
            assert patched["metadata"]["generation"] == 1
            patched = (await api.patch(f"{path}/a", {**change, "status": {"phase": "Other"}})).ok()
            assert (patched["spec"]["count"], patched["status"]) == (5, {"phase": "Bound"})

    async def test_an_update_needs_a_version_and_strategic_patches_are_refused(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            made = (await api.post(path, custom_object(kind, "a", count=1))).ok(201)
            (await api.put(f"{path}/a", custom_object(kind, "a", count=2))).refused(
                422, "metadata.resourceVersion", "must be specified for an update"
            )
            made["spec"]["count"] = 2
            assert (await api.put(f"{path}/a", made)).ok()["spec"]["count"] == 2
            (await api.patch(f"{path}/a", {"spec": {"count": 3}}, STRATEGIC)).refused(415)

    async def test_printer_columns_are_returned_as_a_table(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            (await api.post(path, custom_object(kind, "a", count=3))).ok(201)
            (await api.patch(f"{path}/a/status", {"status": {"phase": "Bound"}})).ok()
            accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
            table = (await api.call("GET", path, accept=accept)).ok()
            assert [column["name"] for column in table["columnDefinitions"]] == [
                "Name",
                "Count",
                "Phase",
                "Policy",
                "Age",
            ]
            assert [column["priority"] for column in table["columnDefinitions"]] == [0, 0, 0, 1, 0]
            assert table["rows"][0]["cells"][:4] == ["a", 3, "Bound", "contiguous"]

    async def test_scale_reads_and_writes_the_declared_paths(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, version=f"{GROUP}/v1")
            (await api.post(path, custom_object(kind, "a", count=3))).ok(201)
            scale = (await api.get(f"{path}/a/scale")).ok()
            assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 0})
            assert (await api.patch(f"{path}/a/scale", {"spec": {"replicas": 4}})).ok()["spec"] == {
                "replicas": 4
            }
            assert (await api.get(f"{path}/a")).ok()["spec"]["count"] == 4

    async def test_apply_merges_lists_that_are_maps(self, api: Api) -> None:
        async with installed_definition(api) as (plural, kind):
            path = api.path(plural, "a", version=f"{GROUP}/v1")
            (
                await api.apply(
                    path, custom_object(kind, "a", count=3, parts=[{"name": "x", "size": 1}]), "one"
                )
            ).ok(201)
            second = custom_object(kind, "a", parts=[{"name": "y", "size": 2}])
            merged = (await api.apply(path, second, "two")).ok()
            assert merged["spec"]["parts"] == [{"name": "x", "size": 1}, {"name": "y", "size": 2}]
            third = custom_object(kind, "a", parts=[{"name": "x", "size": 9}])
            (await api.apply(path, third, "two")).refused(409, '.spec.parts[name="x"].size')

    async def test_an_invalid_definition_is_refused(self, api: Api) -> None:
        body = definition("somethings", "Something")
        (await api.post(_DEFINITIONS, {**body, "metadata": {"name": "other.example.com"}})).refused(
            422, "spec.names.plural"
        )
        version = body["spec"]["versions"][0]
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = [
            {"rule": "self.count >"}
        ]
        (await api.post(_DEFINITIONS, body)).refused(422, "compilation failed")
