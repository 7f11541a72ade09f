"""A caller who is limited to a namespace, tried on every route of the server."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import httpx
import pytest
from starlette import routing
from tests.accounting.histories import HOUR
from tests.server.scope.conftest import NOW, SECRET, Gate, as_caller

from gpufleet.runtime.settings import StoreSettings, load_settings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.oidc.sign_in import SignIn
from gpufleet.server.http.routing import Route
from gpufleet.server.routes.platform.auth import auth_routes
from gpufleet.server.wiring.assemble import open_components

HOURS = f"start_time={datetime.fromtimestamp(HOUR, UTC):%Y-%m-%dT%H:%M:%SZ}&end_time=2030-01-01T00:00:00Z"
HOURS_NOW = f"{HOURS}&include_current=true"
DAY = f"{datetime.fromtimestamp(HOUR, UTC):%Y-%m-%d}"
WEEK = f"{DAY}..{datetime.fromtimestamp(HOUR + 20 * 86400, UTC):%Y-%m-%d}"
SPAN = f"start={int(NOW) - 1200}&end={int(NOW)}"
SPAN_MS = f"start={int(NOW - 1200) * 1000}&end={int(NOW) * 1000}"
UIDS = ("job", "mine-0", "mine-half", f"{SECRET}-job", f"{SECRET}-0", f"{SECRET}-ended", f"{SECRET}-waits")
A = "/api/v1/gpu-aggregation"
DIMENSIONS = (
    "dimension_type=label&dimension_key=team",
    "dimension_type=annotation&dimension_key=cost-center",
)

REQUESTS: dict[str, list[str]] = {
    "/": ["/"],
    "/assets/{name}": ["/assets/none"],
    "/favicon.ico": ["/favicon.ico"],
    "/docs": ["/docs"],
    "/docs/docs.css": ["/docs/docs.css"],
    "/docs/docs.js": ["/docs/docs.js"],
    "/openapi.json": ["/openapi.json"],
    "/livez": ["/livez"],
    "/auth/me": ["/auth/me"],
    "/readyz": ["/readyz"],
    "/metrics": ["/metrics"],
    "/debug/vars": ["/debug/vars"],
    "/debug/pprof/profile": ["/debug/pprof/profile?seconds=0.1"],
    "/api/healthz": ["/api/healthz"],
    "/api/clusters": ["/api/clusters"],
    "/api/clusters/overview": ["/api/clusters/overview"],
    "/api/clusters/consumers": ["/api/clusters/consumers?pageSize=100"],
    "/api/clusters/gpuHeatmap": ["/api/clusters/gpuHeatmap?topK=100"],
    "/api/workloads": [
        "/api/workloads?pageSize=100",
        f"/api/workloads?namespace={SECRET}",
        f"/api/workloads?name={SECRET}&sort=gpus&reverse=true",
        "/api/workloads?orderBy=end_at",
    ],
    "/api/workloads/{uid}": [f"/api/workloads/{uid}" for uid in UIDS],
    "/api/workloads/{uid}/hierarchy": [f"/api/workloads/{uid}/hierarchy" for uid in UIDS],
    "/api/workloads/{uid}/metrics": [f"/api/workloads/{uid}/metrics?{SPAN}" for uid in UIDS],
    "/api/workloads/{uid}/trainingPerformance": [
        f"/api/workloads/{uid}/trainingPerformance?{SPAN_MS}" for uid in UIDS
    ],
    "/api/workloads/{uid}/manifest": [f"/api/workloads/{uid}/manifest" for uid in UIDS],
    "/api/workloads/{uid}/events": [f"/api/workloads/{uid}/events" for uid in UIDS],
    "/api/workloads/{uid}/logs": [f"/api/workloads/{uid}/logs" for uid in UIDS],
    "/api/workloads/{uid}/reportToken": [],
    "/api/workloads//{rest}": [],
    "/api/workloadMetadata": ["/api/workloadMetadata"],
    "/api/v1/gpu/metrics": [
        "/api/v1/gpu/metrics",
        "/api/v1/gpu/metrics?node=a",
        f"/api/v1/gpu/metrics?namespace={SECRET}",
        f"/api/v1/gpu/metrics?workload={SECRET}-job",
    ],
    "/api/v1/gpu/processes": ["/api/v1/gpu/processes", "/api/v1/gpu/processes?node=a"],
    "/api/v1/gpu/map": [
        "/api/v1/gpu/map",
        "/api/v1/gpu/map?quantity=power",
        "/api/v1/gpu/map?cluster=*&details=true",
    ],
    "/api/gpus": ["/api/gpus?pageSize=1000", "/api/gpus?state=held", "/api/gpus?labelSelector=!none"],
    "/api/nodes": ["/api/nodes", "/api/nodes?sort=utilization", f"/api/nodes?team={SECRET}-team"],
    "/api/nodes/{name}": ["/api/nodes/a", "/api/nodes/b"],
    "/api/nodes/{name}/metrics": [f"/api/nodes/a/metrics?{SPAN}", f"/api/nodes/b/metrics?{SPAN}"],
    "/api/nodes/{name}/occupancy": [f"/api/nodes/{node}/occupancy?{SPAN}" for node in ("a", "b")],
    "/api/occupancy": [f"/api/occupancy?{SPAN}", f"/api/occupancy?{SPAN}&team={SECRET}-team"],
    "/api/events": ["/api/events"],
    "/api/claims": ["/api/claims", f"/api/claims?namespace={SECRET}"],
    "/api/queues": ["/api/queues"],
    "/api/leases": ["/api/leases", "/api/leases?node=a"],
    "/api/claims/{namespace}/{name}/explain": [
        "/api/claims/mine/mine-wants/explain",
        "/api/claims/mine/mine-held/explain",
        f"/api/claims/{SECRET}/{SECRET}-wants/explain",
    ],
    "/api/stragglers": ["/api/stragglers"],
    "/api/findings": ["/api/findings", "/api/findings?node=a"],
    "/api/repairs": ["/api/repairs", "/api/repairs?open=true"],
    "/api/repairs/costs": ["/api/repairs/costs"],
    "/api/repairs/{node}/acknowledge": [],
    "/api/repairs/{node}/silence": [],
    "/api/repairs/{node}/resume": [],
    "/api/pods/{namespace}/{name}/explain": [
        f"/api/pods/{namespace}/{name}/explain"
        for namespace in ("mine", SECRET)
        for name in ("mine-0", "mine-waits", f"{SECRET}-0", f"{SECRET}-waits")
    ],
    "/api/forecast": ["/api/forecast", "/api/forecast?by=namespace&budget=10"],
    "/api/queue": ["/api/queue"],
    "/api/queue/estimate": ["/api/queue/estimate?gpus=8", "/api/queue/estimate?gpus=4&namespace=mine"],
    "/api/queue/fit": [
        "/api/queue/fit?gpus=4",
        "/api/queue/fit?gpus=8&cpu=2&memory=1Gi&tolerations=*",
        "/api/queue/fit?gpus=4&namespace=mine",
    ],
    f"{A}/clusters": [f"{A}/clusters"],
    f"{A}/namespaces": [f"{A}/namespaces"],
    f"{A}/dimension-keys": [f"{A}/dimension-keys?dimension_type=label"],
    f"{A}/dimension-values": [f"{A}/dimension-values?{each}" for each in DIMENSIONS],
    f"{A}/cluster/hourly-stats": [
        f"{A}/cluster/hourly-stats?{HOURS}",
        f"{A}/cluster/hourly-stats?{HOURS_NOW}&page=1",
    ],
    f"{A}/namespaces/hourly-stats": [
        f"{A}/namespaces/hourly-stats?{HOURS_NOW}",
        f"{A}/namespaces/hourly-stats?{HOURS}&namespace={SECRET}",
    ],
    f"{A}/namespaces/use": [f"{A}/namespaces/use?half_life=31000000"],
    f"{A}/labels/hourly-stats": [f"{A}/labels/hourly-stats?{HOURS_NOW}&{each}" for each in DIMENSIONS],
    f"{A}/workloads/hourly-stats": [
        f"{A}/workloads/hourly-stats?{HOURS_NOW}",
        f"{A}/workloads/hourly-stats?{HOURS}&order_by=utilization&order_direction=desc",
        f"{A}/workloads/hourly-stats?{HOURS}&namespace={SECRET}",
        f"{A}/workloads/hourly-stats?{HOURS}&dimension_key=team",
        f"{A}/workloads/hourly-stats?{HOURS}&workload_name={SECRET}-bert",
    ],
    f"{A}/snapshots/latest": [f"{A}/snapshots/latest"],
    f"{A}/snapshots": [f"{A}/snapshots?details=true", f"{A}/snapshots?page=1"],
    f"{A}/report": [
        f"{A}/report?period={period}&group_by={group}&series=5&groups={groups}&format={kind}"
        for period in (DAY, WEEK)
        for group in ("namespace", "workload", "label:team", "annotation:cost-center")
        for groups in (0, 1)
        for kind in ("json", "csv")
    ]
    + [f"{A}/report?period={DAY}&group_by=workload&series=5&namespace={SECRET}"],
    f"{A}/focus": [f"{A}/focus?period={DAY[:7]}"],
    f"{A}/waste": [f"{A}/waste?{HOURS.replace('2030-01-01', DAY)}"],
}
"""What is called of each path; POST routes have tests of their own."""

NO_NAMES = {
    "/api/clusters/overview",
    "/api/clusters/gpuHeatmap",
    "/api/workloads/{uid}/metrics",
    "/api/v1/gpu/metrics",
    "/api/nodes",
    "/api/nodes/{name}/metrics",
    "/api/queue/estimate",
    f"{A}/dimension-keys",
    f"{A}/cluster/hourly-stats",
}
"""Paths whose responses have no names of namespaces or workloads: other tests check their numbers."""
FORMATS = ("application/json", "text/csv")


async def wired_routes(settings: StoreSettings, exit_stack: AsyncExitStack) -> list[Route]:
    """Return all routes of a server as it is started."""
    components = await open_components(load_settings({}, {}).replace(settings), exit_stack)
    app = create_app(Api(routes=components.routes, gate=Gate(), debug_counts={}))
    # The tools of /mcp call the other routes; tests/mcp_server tries them.
    others = [route for route in app.routes if not isinstance(route, Route)]
    assert [route.path for route in others if isinstance(route, routing.Route)] == ["/mcp"]
    assert len(others) == 1
    return [route for route in app.routes if isinstance(route, Route)]


async def test_every_route_has_a_scope_rule_and_is_tried_below(
    store_settings: StoreSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with AsyncExitStack() as exit_stack:
        routes = await wired_routes(store_settings, exit_stack)
        described = {path for route in routes if route.include_in_schema for path in [route.path_format]}
    sign_in_routes = auth_routes(login=True, sign_in=cast(SignIn, object()))  # with an identity provider only
    assert len(sign_in_routes) > 1
    assert [route.path_format for route in [*routes, *sign_in_routes] if route.scope is None] == []
    assert described <= REQUESTS.keys()
    assert {route.path_format for route in routes} == REQUESTS.keys()


async def test_nothing_of_another_namespace_is_in_any_response(
    http: httpx.AsyncClient, routes: list[Route]
) -> None:
    rules = {route.path_format: route.scope for route in routes if route.method == "GET"}
    for path, urls in REQUESTS.items():
        shown = ""
        for url in urls:
            for accept in FORMATS:
                limited = await http.get(url, headers=as_caller("mine", accept=accept))
                full = await http.get(url, headers=as_caller("all", accept=accept))
                echoed = url.count(SECRET) and limited.status_code == 404
                assert echoed or SECRET not in limited.text, (url, accept, limited.text)
                assert SECRET not in str(limited.headers), url
                assert limited.status_code in (200, 403, 404) or path == "/readyz", (url, limited.text)
                assert "x-gpufleet-scope" not in full.headers
                shown += full.text
                if rules.get(path) == "filtered":
                    assert limited.headers["x-gpufleet-scope"] == "mine"
        if rules.get(path) == "filtered" and path not in NO_NAMES:
            assert SECRET in shown, f"{path} shows no name of the other team even to an administrator"


async def test_a_caller_without_any_namespace_gets_empty_lists_and_no_error(
    http: httpx.AsyncClient, routes: list[Route]
) -> None:
    rules = {route.path_format: route.scope for route in routes if route.method == "GET"}
    for path, urls in REQUESTS.items():
        for url in urls if rules.get(path) == "filtered" else ():
            answer = await http.get(url, headers=as_caller("none"))
            assert answer.status_code in (200, 404), (url, answer.text)
            assert "mine" not in answer.text.replace(url, "") or answer.status_code == 404, (url, answer.text)
            assert answer.headers["x-gpufleet-scope"] == ""
