import re
from collections.abc import AsyncIterator

import pytest
from tests.server.conftest import Client

from gpufleet.server.http.middleware import Limits
from gpufleet.server.limits.unread_body import LINGER_BYTES

ENVELOPE_PATHS = ["/api/workloads/a/reports", "/api/v1/gpu-aggregation/hours", "/api/v1/gpu/metrics"]
PATHS = [
    "/api/clusters/none",
    "/api/workloads/a/b/c",
    "/api/v1/gpu-aggregation/none",
    "/api/v1/gpu/none",
    "/none",
]


def assert_error(path: str, status: int, body: dict[str, object], trace: str) -> None:
    """Check that the body is the error envelope of the path and says the same as the status."""
    if path.startswith(("/api/clusters", "/api/workloads")):
        assert body.keys() == {"code", "message", "traceId"}
        assert (body["code"], body["traceId"]) == (status, trace)
        assert body["message"]
    elif path.startswith("/api/v1/gpu-aggregation"):
        assert body.keys() == {"code", "message", "error"}
        assert body["code"] == status
        assert body["error"]
    else:
        assert body.keys() == {"success", "error", "message", "data"}
        assert (body["success"], body["message"], body["data"]) == (False, None, None)
        assert body["error"]


async def test_the_clusters_envelope_answers_with_code_0_and_the_trace_id(client: Client) -> None:
    async with client() as http:
        answer = await http.get("/api/workloads/abc")
    assert answer.status_code == 200
    assert answer.json() == {
        "code": 0,
        "message": "success",
        "data": {"name": "abc", "value": 3},
        "traceId": answer.headers["x-trace-id"],
    }


async def test_the_aggregation_envelope_answers_with_code_200(client: Client) -> None:
    async with client() as http:
        answer = await http.get(
            "/api/v1/gpu-aggregation/hours",
            params={"start_time": "2025-11-05T08:00:00+08:00", "end_time": "2025-11-05T01:00:00Z"},
        )
    assert answer.json() == {
        "code": 200,
        "message": "success",
        "data": [
            {"name": "2025-11-05T00:00:00+00:00", "value": 1},
            {"name": "2025-11-05T01:00:00+00:00", "value": 2},
        ],
    }


async def test_the_live_envelope_answers_with_success_and_a_message(client: Client) -> None:
    async with client() as http:
        answer = await http.get("/api/v1/gpu/metrics")
    body = answer.json()
    assert body.keys() == {"success", "data", "message", "error"}
    assert (body["success"], body["message"], body["error"]) == (True, "500 GPUs", None)
    assert body["data"][499] == {"name": "gpu-499", "value": 499}


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_route_is_a_404_in_its_envelope(client: Client, path: str) -> None:
    async with client() as http:
        answer = await http.get(path)
    assert answer.status_code == 404
    assert_error(path, 404, answer.json(), answer.headers["x-trace-id"])


@pytest.mark.parametrize("path", ENVELOPE_PATHS)
async def test_a_wrong_method_is_a_405_that_names_the_right_ones(client: Client, path: str) -> None:
    async with client() as http:
        answer = await http.patch(path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) & {"GET", "POST"}
    assert_error(path, 405, answer.json(), answer.headers["x-trace-id"])


@pytest.mark.parametrize("path", ENVELOPE_PATHS)
async def test_a_body_too_large_is_a_413(client: Client, path: str) -> None:
    async with client(limits=Limits(max_body_bytes=2048)) as http:
        answer = await http.post(path, content=b"x" * 2049)
    assert answer.status_code == 413
    assert_error(path, 413, answer.json(), answer.headers["x-trace-id"])


async def test_a_body_that_hides_its_length_is_stopped_while_it_streams(client: Client) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 10_000_000:
            sent += 1024
            yield b" " * 1024

    async with client(limits=Limits(max_body_bytes=2048)) as http:
        answer = await http.post(
            "/api/workloads/a/reports", content=endless(), headers={"content-type": "application/json"}
        )
    assert answer.status_code == 413
    assert sent < 2 * LINGER_BYTES


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/clusters/rows?pageNum=0", 400, "parameter pageNum: '0' is not valid; it takes a whole number"),
        ("/api/v1/gpu-aggregation/hours?start_time=x", 400, "parameter start_time: 'x' is not valid"),
        ("/api/workloads/missing", 404, "no workload with uid missing"),
        ("/api/v1/gpu-aggregation/down", 503, "the database does not answer"),
    ],
)
async def test_an_error_says_what_is_wrong(client: Client, path: str, status: int, words: str) -> None:
    async with client() as http:
        answer = await http.get(path)
    assert answer.status_code == status
    assert words in answer.text
    assert_error(path, status, answer.json(), answer.headers["x-trace-id"])


async def test_an_unexpected_error_is_a_500_without_details(client: Client) -> None:
    async with client() as http:
        answer = await http.get("/api/workloads/broken")
    assert answer.status_code == 500
    assert_error("/api/workloads/", 500, answer.json(), answer.headers["x-trace-id"])
    assert not re.search("secret|Zero|Traceback|\\.py", answer.text)


async def test_a_request_that_takes_too_long_is_a_503(client: Client) -> None:
    async with client(limits=Limits(request_timeout=0.05)) as http:
        answer = await http.get("/api/workloads/slow")
    assert answer.status_code == 503
    assert "took too long" in answer.json()["message"]
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("body", "media_type", "status", "words"),
    [
        (
            b'[{"name":"a","value":"x"}]',
            "application/json",
            400,
            "body: Expected `int`, got `str` - at `$[0].value`",
        ),
        (b"[", "application/json", 400, "the body is not valid JSON"),
        (b"a=1", "application/x-www-form-urlencoded", 415, "this path takes application/json"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_reason(
    client: Client, body: bytes, media_type: str, status: int, words: str
) -> None:
    async with client() as http:
        answer = await http.post(
            "/api/workloads/a/reports", content=body, headers={"content-type": media_type}
        )
    assert answer.status_code == status
    assert words in answer.json()["message"]
