"""Reading and writing objects: names, versions, patches, selectors, pages, deletion."""

from kubelite.contract.client import JSON_PATCH, STRATEGIC, Api
from kubelite.contract.resources import config_map, owner, pod


class TestObjects:
    """Behaviour common to all kinds."""

    async def test_the_server_completes_a_created_object(self, api: Api) -> None:
        made = (await api.post(api.path("configmaps"), config_map("a", {"k": "v"}))).ok(201)
        metadata = made["metadata"]
        assert metadata["namespace"] == api.namespace
        assert metadata["uid"]
        assert metadata["resourceVersion"].isdigit()
        assert metadata["creationTimestamp"].endswith("Z")
        assert metadata["managedFields"][0]["manager"] == "contract"
        assert metadata["managedFields"][0]["fieldsV1"] == {"f:data": {".": {}, "f:k": {}}}
        assert (await api.get(api.path("configmaps", "a"))).ok() == made

    async def test_a_second_object_with_the_same_name_is_refused(self, api: Api) -> None:
        (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
        body = (await api.post(api.path("configmaps"), config_map("a"))).refused(
            409, 'configmaps "a" already exists'
        )
        assert body["reason"] == "AlreadyExists"

    async def test_a_missing_object_is_not_found(self, api: Api) -> None:
        body = (await api.get(api.path("pods", "none"))).refused(404, 'pods "none" not found')
        assert body["details"] == {"name": "none", "kind": "pods"}
        (await api.get("/api/v1/nothing")).refused(404, "could not find the requested resource")
        body = (await api.get(api.path("deployments", "none", version="apps/v1"))).refused(404)
        assert body["message"] == 'deployments.apps "none" not found'

    async def test_the_namespace_must_exist(self, api: Api) -> None:
        path = "/api/v1/namespaces/not-there/configmaps"
        (await api.post(path, config_map("a"))).refused(404, 'namespaces "not-there" not found')
        assert (await api.get(path)).ok()["items"] == []

    async def test_an_invalid_name_is_refused(self, api: Api) -> None:
        body = (await api.post(api.path("configmaps"), config_map("Not_Good"))).refused(
            422, "metadata.name: Invalid value"
        )
        assert body["details"]["causes"][0]["field"] == "metadata.name"
        (await api.post(api.path("configmaps"), {"data": {}})).refused(
            422, "name or generateName is required"
        )
        bad = config_map("a", labels={"k": "not good"})
        (await api.post(api.path("configmaps"), bad)).refused(422, "metadata.labels: Invalid value")

    async def test_a_name_is_generated(self, api: Api) -> None:
        body = {"metadata": {"generateName": "made-"}}
        names = {(await api.post(api.path("configmaps"), body)).ok(201)["metadata"]["name"] for _ in range(3)}
        assert len(names) == 3
        assert all(name.startswith("made-") and len(name) == 10 for name in names)

    async def test_a_stale_update_conflicts(self, api: Api) -> None:
        first = (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
        path = api.path("configmaps", "a")
        second = (await api.put(path, {**first, "data": {"k": "1"}})).ok()
        assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
        body = (await api.put(path, {**first, "data": {"k": "2"}})).refused(
            409, "the object has been modified"
        )
        assert body["reason"] == "Conflict"
        stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"k": "3"}}
        (await api.patch(path, stale)).refused(409)
        assert (await api.get(path)).ok()["data"] == {"k": "1"}

    async def test_an_update_for_another_uid_conflicts(self, api: Api) -> None:
        made = (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
        made["metadata"].pop("resourceVersion")
        made["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        (await api.put(api.path("configmaps", "a"), made)).refused(409, "UID in precondition")

    async def test_a_write_that_changes_nothing_keeps_the_version(self, api: Api) -> None:
        made = (await api.post(api.path("configmaps"), config_map("a", {"k": "v"}))).ok(201)
        again = (await api.patch(api.path("configmaps", "a"), {"data": {"k": "v"}})).ok()
        assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    async def test_a_merge_patch_sets_and_removes(self, api: Api) -> None:
        (await api.post(api.path("configmaps"), config_map("a", {"k": "v", "old": "x"}))).ok(201)
        patched = (await api.patch(api.path("configmaps", "a"), {"data": {"old": None, "new": "y"}})).ok()
        assert patched["data"] == {"k": "v", "new": "y"}

    async def test_a_json_patch_is_all_or_nothing(self, api: Api) -> None:
        (await api.post(api.path("configmaps"), config_map("a", {"k": "v"}))).ok(201)
        path = api.path("configmaps", "a")
        good = [
            {"op": "test", "path": "/data/k", "value": "v"},
            {"op": "add", "path": "/metadata/annotations", "value": {"x/y": "z"}},
        ]
        assert (await api.patch(path, good, JSON_PATCH)).ok()["metadata"]["annotations"] == {"x/y": "z"}
        slashed = [{"op": "replace", "path": "/metadata/annotations/x~1y", "value": "w"}]
        assert (await api.patch(path, slashed, JSON_PATCH)).ok()["metadata"]["annotations"] == {"x/y": "w"}
        bad = [
            {"op": "add", "path": "/data/n", "value": "m"},
            {"op": "test", "path": "/data/k", "value": "w"},
        ]
        (await api.patch(path, bad, JSON_PATCH)).refused(422)
        assert (await api.get(path)).ok()["data"] == {"k": "v"}
        wrong = [{"op": "add", "path": "/data/x~1y", "value": "z"}]
        (await api.patch(path, wrong, JSON_PATCH)).refused(422, "a valid config key must consist of")

    async def test_a_strategic_patch_merges_lists_by_their_key(self, api: Api) -> None:
        body = {
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "d"}},
                "template": {
                    "metadata": {"labels": {"app": "d"}},
                    "spec": {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]},
                },
            },
        }
        path = api.path("deployments", "d", version="apps/v1")
        (await api.post(api.path("deployments", version="apps/v1"), body)).ok(201)
        change = {
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1"}]}
                }
            }
        }
        found = (await api.patch(path, change, STRATEGIC)).ok()["spec"]["template"]["spec"]["containers"]
        assert sorted((one["name"], one["image"]) for one in found) == [
            ("a", "a:1"),
            ("b", "b:2"),
            ("c", "c:1"),
        ]
        removed = {"spec": {"template": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}}}
        found = (await api.patch(path, removed, STRATEGIC)).ok()["spec"]["template"]["spec"]["containers"]
        assert sorted(one["name"] for one in found) == ["b", "c"]

    async def test_the_selector_of_a_deployment_is_immutable(self, api: Api) -> None:
        template = {
            "metadata": {"labels": {"app": "d", "x": "y"}},
            "spec": {"containers": [{"name": "a", "image": "a:1"}]},
        }
        spec = {"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template}
        made = (
            await api.post(
                api.path("deployments", version="apps/v1"), {"metadata": {"name": "d"}, "spec": spec}
            )
        ).ok(201)
        assert made["metadata"]["generation"] == 1
        assert made["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": "25%", "maxSurge": "25%"}
        path = api.path("deployments", "d", version="apps/v1")
        (await api.patch(path, {"spec": {"selector": {"matchLabels": {"x": "y"}}}})).refused(
            422, "spec.selector", "field is immutable"
        )
        other = {"metadata": {"name": "e"}, "spec": {**spec, "selector": {"matchLabels": {"app": "other"}}}}
        (await api.post(api.path("deployments", version="apps/v1"), other)).refused(
            422, "`selector` does not match template `labels`"
        )

    async def test_unknown_fields_warn_or_are_refused(self, api: Api) -> None:
        body = {**config_map("a"), "unknown": 1}
        response = await api.post(api.path("configmaps"), body, fieldValidation="Warn")
        assert "unknown" not in response.ok(201)
        assert 'unknown field \\"unknown\\"' in response.warnings[0]
        body = {**config_map("b"), "unknown": 1}
        (await api.post(api.path("configmaps"), body, fieldValidation="Strict")).refused(
            400, 'strict decoding error: unknown field "unknown"'
        )
        response = await api.post(api.path("configmaps"), body, fieldValidation="Ignore")
        assert response.ok(201)["metadata"]["name"] == "b"
        assert response.warnings == []

    async def test_a_value_of_the_wrong_type_is_refused(self, api: Api) -> None:
        (await api.post(api.path("configmaps"), config_map("a", {"k": 1}))).refused(
            400, "cannot unmarshal number"
        )
        (await api.post(api.path("configmaps"), pod("p"))).refused(400)
        (await api.post(api.path("configmaps"), b"{")).refused(400)

    async def test_a_dry_run_stores_nothing(self, api: Api) -> None:
        made = (await api.post(api.path("configmaps"), config_map("a"), dryRun="All")).ok(201)
        assert made["metadata"]["uid"]
        (await api.get(api.path("configmaps", "a"))).refused(404)
        (await api.post(api.path("configmaps"), config_map("a", {"k": "v"}))).ok(201)
        changed = (await api.patch(api.path("configmaps", "a"), {"data": {"k": "w"}}, dryRun="All")).ok()
        assert changed["data"] == {"k": "w"}
        (await api.delete(api.path("configmaps", "a"), dryRun="All")).ok()
        assert (await api.get(api.path("configmaps", "a"))).ok()["data"] == {"k": "v"}

    async def test_label_selectors_filter_a_list(self, api: Api) -> None:
        for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "y"}), ("c", {})):
            (
                await api.post(
                    api.path("configmaps"), config_map(name, labels=labels, annotations={"mine": "yes"})
                )
            ).ok(201)

        async def chosen(selector: str) -> list[str]:
            items = (await api.get(api.path("configmaps"), labelSelector=selector)).ok()["items"]
            return [
                item["metadata"]["name"]
                for item in items
                if item["metadata"].get("annotations", {}).get("mine")
            ]

        assert await chosen("app=x") == ["a"]
        assert await chosen("app==x,tier") == ["a"]
        assert await chosen("app!=x") == ["b", "c"]
        assert await chosen("app in (x, y)") == ["a", "b"]
        assert await chosen("app notin (x)") == ["b", "c"]
        assert await chosen("!tier") == ["b", "c"]
        (await api.get(api.path("configmaps"), labelSelector="a=b=c")).refused(
            400, "found '=', expected: ',' or 'end of string'"
        )

    async def test_field_selectors_filter_a_list(self, api: Api) -> None:
        for name in ("a", "b"):
            (await api.post(api.path("pods"), pod(name))).ok(201)
        found = (await api.get(api.path("pods"), fieldSelector="metadata.name=b,status.phase!=Running")).ok()[
            "items"
        ]
        assert [item["metadata"]["name"] for item in found] == ["b"]
        assert len((await api.get(api.path("pods"), fieldSelector="spec.nodeName=")).ok()["items"]) == 2
        (await api.get(api.path("pods"), fieldSelector="spec.foo=1")).refused(
            400, "field label not supported: spec.foo"
        )

    async def test_pages_show_one_snapshot(self, api: Api) -> None:
        for number in range(7):
            (await api.post(api.path("configmaps"), config_map(f"c{number}", labels={"mine": "yes"}))).ok(201)
        path = api.path("configmaps")
        first = (await api.get(path, limit="3", labelSelector="mine=yes")).ok()
        assert [item["metadata"]["name"] for item in first["items"]] == ["c0", "c1", "c2"]
        (await api.delete(api.path("configmaps", "c4"))).ok()
        (await api.post(path, config_map("c45", labels={"mine": "yes"}))).ok(201)
        names = []
        token = first["metadata"]["continue"]
        while token:
            page = (await api.get(path, limit="3", labelSelector="mine=yes", **{"continue": token})).ok()
            assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            names += [item["metadata"]["name"] for item in page["items"]]
            token = page["metadata"].get("continue", "")
        assert names == ["c3", "c4", "c5", "c6"]
        (await api.get(path, limit="3", **{"continue": "nonsense"})).refused(400)
        (await api.get(path, limit="x")).refused(400, 'strconv.ParseInt: parsing "x": invalid syntax')

    async def test_deletion_checks_preconditions(self, api: Api) -> None:
        made = (await api.post(api.path("configmaps"), config_map("a"))).ok(201)
        path = api.path("configmaps", "a")
        (await api.delete(path, {"preconditions": {"uid": "other"}})).refused(
            409, "the UID in the precondition (other) does not match"
        )
        (await api.patch(path, {"data": {"k": "v"}})).ok()
        old = {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}}
        (await api.delete(path, old)).refused(409, "the ResourceVersion in the precondition")
        response = (await api.delete(path, {"preconditions": {"uid": made["metadata"]["uid"]}})).ok()
        assert response["status"] == "Success"
        assert response["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
        (await api.delete(path)).refused(404)

    async def test_a_finalizer_delays_deletion(self, api: Api) -> None:
        (await api.post(api.path("configmaps"), config_map("a", finalizers=["example.com/hold"]))).ok(201)
        path = api.path("configmaps", "a")
        deleting = (await api.delete(path)).ok()
        assert deleting["metadata"]["deletionTimestamp"]
        assert deleting["metadata"]["deletionGracePeriodSeconds"] == 0
        (
            await api.patch(path, {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})
        ).refused(422, "no new finalizers can be added")
        (await api.patch(path, {"data": {"still": "here"}})).ok()
        (await api.patch(path, {"metadata": {"finalizers": None}})).ok()
        (await api.get(path)).refused(404)

    async def test_deletecollection_takes_a_label_selector(self, api: Api) -> None:
        for name, label in (("a", "go"), ("b", "go"), ("c", "stay")):
            (await api.post(api.path("configmaps"), config_map(name, labels={"do": label}))).ok(201)
        (await api.delete(api.path("configmaps"), labelSelector="do=go")).ok()
        left = (await api.get(api.path("configmaps"), labelSelector="do")).ok()["items"]
        assert [item["metadata"]["name"] for item in left] == ["c"]

    async def test_a_table_is_made_for_kubectl(self, api: Api) -> None:
        (await api.post(api.path("pods"), pod("a"))).ok(201)
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        table = (await api.call("GET", api.path("pods"), accept=accept)).ok()
        assert table["kind"] == "Table"
        shown = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
        assert shown == ["Name", "Ready", "Status", "Restarts", "Age"]
        assert table["rows"][0]["cells"][:3] == ["a", "0/1", "Pending"]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"

    async def test_updating_a_lease_needs_its_resource_version(self, api: Api) -> None:
        version = "coordination.k8s.io/v1"
        body = {
            "metadata": {"name": "l"},
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            },
        }
        made = (await api.post(api.path("leases", version=version), body)).ok(201)
        path = api.path("leases", "l", version=version)
        (await api.put(path, body)).refused(422, "metadata.resourceVersion")
        made["spec"]["holderIdentity"] = "b"
        assert (await api.put(path, made)).ok()["spec"]["holderIdentity"] == "b"
        bad = {"metadata": {"name": "m"}, "spec": {"leaseDurationSeconds": 0}}
        (await api.post(api.path("leases", version=version), bad)).refused(422, "must be greater than 0")

    async def test_both_event_groups_serve_the_same_events(self, api: Api) -> None:
        made = (await api.post(api.path("pods"), pod("a"))).ok(201)
        about = {**owner({**made, "apiVersion": "v1", "kind": "Pod"}), "namespace": api.namespace}
        event = {
            "metadata": {"name": "e"},
            "involvedObject": about,
            "reason": "Tried",
            "message": "it works",
            "type": "Normal",
        }
        (await api.post(api.path("events"), event)).ok(201)
        other = (await api.get(api.path("events", "e", version="events.k8s.io/v1"))).ok()
        assert (other["regarding"]["name"], other["note"], other["apiVersion"]) == (
            "a",
            "it works",
            "events.k8s.io/v1",
        )
        found = (await api.get(api.path("events"), fieldSelector="involvedObject.name=a")).ok()["items"]
        assert [item["message"] for item in found] == ["it works"]

    async def test_a_scale_changes_replicas(self, api: Api) -> None:
        template = {
            "metadata": {"labels": {"app": "d"}},
            "spec": {"containers": [{"name": "a", "image": "a:1"}]},
        }
        spec = {"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template}
        (
            await api.post(
                api.path("replicasets", version="apps/v1"), {"metadata": {"name": "r"}, "spec": spec}
            )
        ).ok(201)
        path = api.path("replicasets", "r", "scale", version="apps/v1")
        scale = (await api.get(path)).ok()
        assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {}, "app=d")
        assert (await api.patch(path, {"spec": {"replicas": 0}})).ok()["kind"] == "Scale"

    async def test_string_data_of_a_secret_is_returned_as_base64(self, api: Api) -> None:
        made = (
            await api.post(api.path("secrets"), {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
        ).ok(201)
        assert made["data"] == {"k": "dg=="}
        assert made["type"] == "Opaque"
        assert "stringData" not in made
