"""Discovery, OpenAPI and reviews."""

from kubelite.contract.client import Api

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


class TestDiscovery:
    """The requests with which clients begin."""

    async def test_health_and_version_are_served(self, api: Api) -> None:
        assert (await api.get("/healthz")).body == {"text": "ok"}
        assert (await api.get("/readyz")).status == 200
        assert (await api.get("/version")).ok()["major"] == "1"
        assert (await api.get("/nothing")).status == 404

    async def test_both_forms_of_discovery_agree(self, api: Api) -> None:
        old = (await api.get("/apis/apps/v1")).ok()
        known = {one["name"]: one for one in old["resources"]}
        assert known["deployments"]["shortNames"] == ["deploy"]
        assert known["deployments"]["categories"] == ["all"]
        assert set(known["deployments"]["verbs"]) >= {
            "create",
            "get",
            "list",
            "watch",
            "patch",
            "update",
            "delete",
            "deletecollection",
        }
        assert known["deployments/scale"]["kind"] == "Scale"
        new = (await api.call("GET", "/apis", accept=_AGGREGATED)).ok()
        apps = next(item for item in new["items"] if item["metadata"]["name"] == "apps")
        found = {one["resource"]: one for one in apps["versions"][0]["resources"]}
        assert found["deployments"]["scope"] == "Namespaced"
        assert {one["subresource"] for one in found["deployments"]["subresources"]} == {"status", "scale"}
        core = (await api.call("GET", "/api", accept=_AGGREGATED)).ok()
        names = {one["resource"] for one in core["items"][0]["versions"][0]["resources"]}
        assert {"pods", "nodes", "namespaces", "events", "configmaps"} <= names
        assert (await api.get("/api")).ok()["versions"] == ["v1"]
        assert {"apps", "batch"} <= {group["name"] for group in (await api.get("/apis")).ok()["groups"]}

    async def test_openapi_announces_field_validation(self, api: Api) -> None:
        paths = (await api.get("/openapi/v3")).ok()["paths"]
        address = paths["apis/apps/v1"]["serverRelativeURL"]
        document = (await api.get(address.partition("?")[0])).ok()
        operation = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
        assert "fieldValidation" in {one["name"] for one in operation["parameters"]}
        assert operation["x-kubernetes-group-version-kind"] == {
            "group": "apps",
            "version": "v1",
            "kind": "Deployment",
        }

    async def test_an_administrator_may_do_everything(self, api: Api) -> None:
        body = {
            "spec": {"resourceAttributes": {"namespace": api.namespace, "verb": "delete", "resource": "pods"}}
        }
        response = (await api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)).ok(201)
        assert response["status"]["allowed"] is True
        response = (await api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})).ok(201)
        assert response["status"]["userInfo"]["username"]

    async def test_an_unknown_token_is_not_authenticated(self, api: Api) -> None:
        body = {"spec": {"token": "not-a-token"}}
        response = (await api.post("/apis/authentication.k8s.io/v1/tokenreviews", body)).ok(201)
        assert not response["status"].get("authenticated")
        assert not response["status"]["user"].get("username")

    async def test_an_unsupported_verb_is_refused(self, api: Api) -> None:
        (await api.put(api.path("pods"), {})).refused(405)
        (await api.get("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")).refused(405)
