import asyncio

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import Client, sample_routes, slow_route
from tests.waiting import wait_until

from gpufleet.errors import GpufleetError, MetricsUnavailable
from gpufleet.server.health import Dependencies, DependencyHealth
from gpufleet.server.http.errors import http_error
from gpufleet.server.http.middleware import Limits
from gpufleet.server.http.routing import LARGE_BODY_BYTES, post
from gpufleet.server.http.tracing import trace_id_from
from gpufleet.server.metrics import ServerMetrics

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("traceparent", "taken"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        ("nonsense", False),
    ],
)
async def test_a_valid_traceparent_gives_the_trace_id(client: Client, traceparent: str, taken: bool) -> None:
    async with client() as http:
        answer = await http.get("/api/workloads/a", headers={"traceparent": traceparent})
    assert (answer.headers["x-trace-id"] == TRACE) is taken
    assert answer.json()["traceId"] == answer.headers["x-trace-id"]
    assert answer.headers["traceresponse"].split("-")[1] == answer.headers["x-trace-id"]


@given(st.binary(max_size=80))
@settings(max_examples=200, deadline=None)
def test_whatever_the_header_the_trace_id_is_32_hexadecimal_digits(header: bytes) -> None:
    made = trace_id_from(header, lambda bits: int("01" * (bits // 8), 16))
    assert len(made) == 32
    assert int(made, 16) > 0


async def test_more_concurrent_requests_than_allowed_get_a_503_with_retry_after(client: Client) -> None:
    began, end = asyncio.Event(), asyncio.Event()
    routes = [*sample_routes(), slow_route(began, end)]
    async with client(routes=routes, limits=Limits(max_requests=1)) as http:
        slow = asyncio.create_task(http.get("/api/clusters/slow"))
        await began.wait()
        refused = await http.get("/api/workloads/a")
        probed = [(await http.get(path)).status_code for path in ("/livez", "/api/healthz", "/metrics")]
        end.set()
        assert (await slow).status_code == 200
        after = await http.get("/api/workloads/a")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert after.status_code == 200
    assert probed == [200, 200, 200], "a restart under load makes the load worse"


async def test_a_small_request_does_not_wait_for_all_large_bodies_before_it(client: Client) -> None:
    taken: list[int] = []

    @post("/api/clusters/rows")
    async def take(body: list[int]) -> int:
        """Count rows."""
        taken.append(len(body))
        return len(body)

    large = b"[" + b"1," * LARGE_BODY_BYTES + b"1]"
    async with client(routes=[*sample_routes(), take]) as http:
        headers = {"Content-Type": "application/json"}
        posts = [
            asyncio.create_task(http.post("/api/clusters/rows", content=large, headers=headers))
            for _ in range(20)
        ]
        small = asyncio.create_task(http.get("/api/workloads/a"))
        assert (await small).status_code == 200
        assert len(taken) < len(posts)
        assert {answer.status_code for answer in await asyncio.gather(*posts)} == {200}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'[{"name": "\xff", "value": 1}]', "is not UTF-8"),
        (
            b'[{"name": "a", "value": 1, "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
            "nested too deeply",
        ),
        (b"[{", "is not valid JSON"),
        (b'[{"name": 1, "value": 1}]', "body: Expected `str`"),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_a_400(client: Client, body: bytes, words: str) -> None:
    async with client() as http:
        answer = await http.post(
            "/api/workloads/a/reports", content=body, headers={"content-type": "application/json"}
        )
    assert (answer.status_code, words in answer.json()["message"]) == (400, True)


async def test_pages_of_allowed_origins_may_call_and_no_others(client: Client) -> None:
    async with client(cors_origins=("https://grafana.example",)) as http:
        preflight = {
            "access-control-request-method": "GET",
            "access-control-request-headers": "authorization",
        }
        allowed = await http.options(
            "/api/workloads/a", headers={**preflight, "origin": "https://grafana.example"}
        )
        other = await http.options(
            "/api/workloads/a", headers={**preflight, "origin": "https://evil.example"}
        )
        answer = await http.get("/api/workloads/a", headers={"origin": "https://grafana.example"})
        error = await http.get("/api/clusters/none", headers={"origin": "https://grafana.example"})
    assert allowed.status_code == 200
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in other.headers
    for each in (answer, error):
        assert each.headers["access-control-allow-origin"] == "https://grafana.example"
        assert "origin" in each.headers["vary"].lower()


async def test_without_origins_in_the_settings_no_page_may_call(client: Client) -> None:
    async with client() as http:
        answer = await http.get("/api/workloads/a", headers={"origin": "https://grafana.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_the_metrics_count_requests_by_route_and_never_by_path(client: Client) -> None:
    clock = [1000.0]
    metrics = ServerMetrics(clock=lambda: clock[0])
    metrics.refreshed("readings", "demo")
    metrics.source_error("prometheus", "demo")
    metrics.store_error("fetch")
    clock[0] += 30
    async with client(metrics=metrics) as http:
        for path in ("/api/workloads/a", "/api/workloads/b", "/made-up-1", "/made-up-2"):
            await http.get(path)
        answer = await http.get("/metrics")
    samples = {
        (sample.name, sample.labels.get("route") or sample.labels.get("source") or ""): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["gpufleet_http_request_seconds_count", "/api/workloads/{uid}"] == 2
    assert samples["gpufleet_http_request_seconds_count", "unmatched"] == 2
    assert samples["gpufleet_refresh_age_seconds", "readings"] == 30
    assert samples["gpufleet_source_errors_total", "prometheus"] == 1
    assert samples["gpufleet_store_errors_total", ""] == 1
    assert "made-up" not in answer.text


async def test_debug_answers_only_on_loopback_and_only_if_enabled(client: Client) -> None:
    async with client(debug_counts={"queue": lambda: 3}) as http:
        local = await http.get("/debug/vars")
        remote = httpx.ASGITransport(http._transport.app, client=("192.0.2.7", 1))  # type: ignore[attr-defined]
        async with httpx.AsyncClient(transport=remote, base_url="http://127.0.0.1") as other:
            refused = await other.get("/debug/vars")
    async with client() as http:
        off = await http.get("/debug/vars")
    assert local.json()["queue"] == 3
    assert (refused.status_code, off.status_code) == (403, 404)


async def test_a_probe_that_raises_is_repeated_and_does_not_stop_the_others() -> None:
    calls = 0

    async def breaks() -> str:
        raise KeyError("gitVersion")

    async def counts() -> str:
        nonlocal calls
        calls += 1
        return f"called {calls} times"

    dependencies = Dependencies({"kubernetes": breaks, "store": counts}, interval=0.01)
    watching = asyncio.create_task(dependencies.watch())
    await wait_until(lambda: calls >= 3)
    watching.cancel()
    assert dependencies.states["kubernetes"] == DependencyHealth("down", "'gitVersion'")
    assert dependencies.states["store"].state == "ok"


def test_the_message_of_a_dependency_that_refuses_is_passed_on() -> None:
    error = http_error(GpufleetError("GET /api/v1/pods: pods is forbidden: cannot list"))
    assert (error.status_code, error.detail) == (500, "GET /api/v1/pods: pods is forbidden: cannot list")
    assert "forbidden" not in http_error(RuntimeError("forbidden knowledge")).detail


async def test_a_lost_dependency_makes_the_service_degraded_and_not_dead(client: Client) -> None:
    async def lost() -> str:
        raise MetricsUnavailable("Prometheus does not answer")

    async with client(probes={"metrics": lost}) as http:
        answer = await http.get("/api/healthz")
    data = answer.json()["data"]
    assert answer.status_code == 200
    assert (data["status"], data["dependencies"]["metrics"]["state"]) == ("degraded", "down")
    assert data["dependencies"]["store"] == {"state": "off", "message": "not configured"}
    assert data["timestamp"].endswith("Z")
    assert answer.json()["message"] == "Service is degraded: metrics not available"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("LocalHost", 200),
        ("demo.localhost:1", 200),
        ("[::1]:8080", 200),
        ("gpus.example", 200),
        ("GPUs.example.:443", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("localhost.evil.example", 421),
    ],
)
async def test_a_server_without_login_answers_only_to_its_own_host_names(
    client: Client, host: str, status: int
) -> None:
    async with client(hosts=("gpus.example",)) as http:
        answer = await http.get("/api/workloads/a", headers={"host": host})
    assert answer.status_code == status
    if status == 421:
        assert "server.hosts" in answer.text


async def test_without_a_host_rule_every_host_name_is_answered(client: Client) -> None:
    async with client() as http:
        assert (await http.get("/api/workloads/a", headers={"host": "gpus.example"})).status_code == 200
