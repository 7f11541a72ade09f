"""Examples fit their schemas, and so does every response that schemathesis can provoke."""

import json
import time
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import settings
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from tests.server.conftest import Client, sample_routes

from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Dependencies, Lifecycle
from gpufleet.server.http.answers import Raw
from gpufleet.server.http.openapi import openapi
from gpufleet.server.http.routing import get
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.platform.health import health_routes

load_all_checks()
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
_app = create_app(Api(routes=[route for route in sample_routes() if route.name != "down"]))
_schema = schemathesis.openapi.from_asgi("/openapi.json", _app)


@_schema.parametrize()
@settings(max_examples=25, deadline=None)
def test_generated_requests_get_no_5xx_and_responses_fit_their_schemas(case: Any) -> None:
    case.call_and_validate(checks=_CHECKS)


async def document(client: Client) -> dict[str, Any]:
    async with client() as http:
        answer = await http.get("/openapi.json")
    described: dict[str, Any] = answer.json()
    return described


async def test_every_example_fits_its_schema(client: Client) -> None:
    described = await document(client)
    seen = 0
    for methods in described["paths"].values():
        for operation in methods.values():
            for response in operation["responses"].values():
                response = _resolved(response, described)
                for content in response.get("content", {}).values():
                    if "example" in content:
                        schema = {**content["schema"], "components": described["components"]}
                        jsonschema_rs.validate(schema, content["example"])
                        seen += 1
    assert seen > len(described["paths"])


def _resolved(node: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found: Any = described
    for key in node["$ref"].removeprefix("#/").split("/"):
        found = found[key]
    assert isinstance(found, dict)
    return found


async def test_parameters_come_from_the_struct_with_its_names_and_limits(client: Client) -> None:
    described = await document(client)
    page_num, order_by, kind = described["paths"]["/api/clusters/rows"]["get"]["parameters"]
    assert page_num == {
        "name": "pageNum",
        "in": "query",
        "required": False,
        "description": "Page number.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1},
    }
    assert order_by["schema"] == {"enum": ["end_at", "start_at"]}
    assert kind["schema"]["items"] == {"type": "string"}
    start_time, *_ = described["paths"]["/api/v1/gpu-aggregation/hours"]["get"]["parameters"]
    assert (start_time["required"], start_time["schema"]["format"]) == (True, "date-time")


def test_the_description_says_which_paths_need_login() -> None:
    routes = health_routes(
        Dependencies({}), Lifecycle(), ServerMetrics(), simulated=False, public_details=False, clock=time.time
    )
    described = json.loads(openapi(routes, "1", login=True))
    assert described["security"] == [{"bearer": []}]
    assert described["paths"]["/api/healthz"]["get"]["security"] == []
    assert "security" not in described["paths"]["/metrics"]["get"]
    assert json.loads(openapi(routes, "1", login=False))["security"] == []


@pytest.mark.parametrize("path", ["/docs", "/docs/docs.js", "/docs/docs.css"])
async def test_the_documentation_page_loads_nothing_from_other_hosts(client: Client, path: str) -> None:
    async with client() as http:
        answer = await http.get(path)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("// Shows", "")


def test_all_media_types_of_a_report_are_described() -> None:
    @get("/api/v1/gpu-aggregation/report", extra_media_types=("text/csv",))
    async def report() -> Raw | list[int]:
        """A report."""
        return [1]

    described = json.loads(openapi([report], "1", login=False))
    content = described["paths"]["/api/v1/gpu-aggregation/report"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["application/json", "text/csv"]
