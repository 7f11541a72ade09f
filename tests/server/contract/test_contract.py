"""Compare a running server with the documented contract."""

import http.client
import re
import socket
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.server.contract.conftest import Running
from tests.server.contract.expectations import ATTACKS, COLORS, PROMISES, VALUES, Promise

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TRACE = re.compile(r"[0-9a-f]{32}")
_STATUSES = set(COLORS)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TYPES: dict[str, Any] = {
    "text": lambda value: isinstance(value, str),
    "integer": _whole,
    "count": lambda value: _whole(value) and value >= 0,
    "number": _number,
    "rate": lambda value: _number(value) and 0 <= value <= 1,
    "percent": lambda value: _number(value) and 0 <= value <= 100,
    "seconds": lambda value: _whole(value) and (value == 0 or 10**9 < value < 10**10),
    "milliseconds": lambda value: _whole(value) and 10**12 < value < 10**13,
    "moment": lambda value: isinstance(value, str) and _MOMENT.fullmatch(value) is not None,
    "counts": lambda value: isinstance(value, dict) and all(map(_whole, value.values())),
    "status": lambda value: value in _STATUSES,
    "color": lambda value: value in COLORS.values(),
    "amount": lambda value: _number(value) and value >= 0,
    "hour": lambda value: (
        isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00:00Z", value) is not None
    ),
    "texts": lambda value: (
        isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair)
    ),
    "health": lambda value: value in ("healthy", "degraded"),
    "point": lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and _number(value[0])
        and _whole(value[1])
        and 10**12 < value[1] < 10**13
    ),
    "null": lambda value: value is None,
}


def differences(value: Any, shape: Any, where: str = "data") -> list[str]:
    """Return how `value` differs from the documented shape."""
    if isinstance(shape, str):
        return (
            []
            if any(TYPES[kind](value) for kind in shape.split(" or "))
            else [f"{where}: {value!r} is no {shape}"]
        )
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [each for n, item in enumerate(value) for each in differences(item, shape[0], f"{where}[{n}]")]
    if not isinstance(value, dict):
        return [f"{where}: {value!r} is no object"]
    found = [f"{where}.{name} is missing" for name in shape if name not in value]
    for name in shape.keys() & value.keys():
        found += differences(value[name], shape[name], f"{where}.{name}")
    return found


@pytest.mark.parametrize(
    ("value", "shape", "difference"),
    [
        ({"a": 1}, {"a": "count", "b": "text"}, "data.b is missing"),
        ({"a": "1"}, {"a": "count"}, "data.a: '1' is no count"),
        ({"a": True}, {"a": "integer"}, "data.a: True is no integer"),
        ({"a": 75.0}, {"a": "rate"}, "data.a: 75.0 is no rate"),
        ({"a": None}, {"a": "rate"}, "data.a: None is no rate"),
        ([{"a": 1}, {"a": -1}], [{"a": "count"}], "data[1].a: -1 is no count"),
        ({"a": 1609459200}, {"a": "milliseconds"}, "data.a: 1609459200 is no milliseconds"),
        ({"a": "2024-01-01 12:00"}, {"a": "moment"}, "data.a: '2024-01-01 12:00' is no moment"),
        ({}, [{}], "data: {} is no list"),
    ],
)
def test_the_checker_finds_differences(value: Any, shape: Any, difference: str) -> None:
    assert differences(value, shape) == [difference]


class Answer:
    """An answer read from the wire."""

    def __init__(self, running: Running, target: str, method: str = "GET") -> None:
        url = urlsplit(running.url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
        try:
            connection.request(method, target)
            answer = connection.getresponse()
            self.status, self.headers, self.content = answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def json(self) -> Any:
        return msgspec.json.decode(self.content)


def target(promise: Promise, query: str) -> str:
    if query.startswith("/") or not query:
        return query or promise.path
    return promise.path + "?" + query.removeprefix("?")


GOOD = [(promise, query) for promise in PROMISES for query in promise.good]
WRONG = [(promise, query, 400) for promise in PROMISES for query in promise.wrong]
WRONG += [(promise, query, 404) for promise in PROMISES for query in promise.unknown]


def named(value: Any) -> str:
    return value.path if isinstance(value, Promise) else str(value)


@pytest.mark.parametrize(("promise", "query"), GOOD, ids=named)
def test_every_field_has_its_type_and_unit_in_the_documented_envelope(
    running: Running, promise: Promise, query: str
) -> None:
    answer = Answer(running, target(promise, query))
    body = answer.json()
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    if promise.envelope == "clusters":
        assert list(body) == ["code", "message", "data", "traceId"]
        assert (body["code"], body["message"]) == (0, "success")
        assert _TRACE.fullmatch(body["traceId"])
        assert body["traceId"] == answer.headers["x-trace-id"]
    elif promise.envelope == "aggregation":
        assert list(body) == ["code", "message", "data"]
        assert (body["code"], body["message"]) == (200, "success")
        assert _TRACE.fullmatch(answer.headers["x-trace-id"])
    else:
        assert set(body) == {"success", "data", "message", "error"}
        assert (body["success"], body["error"], body["message"]) == (True, None, promise.message)
    assert differences(body["data"], promise.data) == []


@pytest.mark.parametrize(
    ("promise", "left", "right"),
    [(promise, *pair) for promise in PROMISES for pair in promise.same],
    ids=named,
)
def test_defaults_are_the_documented_ones(running: Running, promise: Promise, left: str, right: str) -> None:
    one, other = Answer(running, target(promise, left)), Answer(running, target(promise, right))
    assert one.json()["data"] == other.json()["data"]


@pytest.mark.parametrize(("promise", "query", "status"), WRONG, ids=named)
def test_errors_have_their_status_in_the_documented_envelope(
    running: Running, promise: Promise, query: str, status: int
) -> None:
    answer = Answer(running, target(promise, query))
    body = answer.json()
    assert answer.status == status, body
    if promise.envelope == "clusters":
        assert list(body) == ["code", "message", "traceId"]
        assert body["code"] == status
        assert body["message"]
    elif promise.envelope == "aggregation":
        assert list(body) == ["code", "message", "error"]
        assert body["code"] == status
        assert body["message"]
        assert body["error"]
    else:
        assert (body["success"], body["message"], body["data"]) == (False, None, None)
        assert body["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("promise", PROMISES, ids=named)
def test_an_undocumented_method_is_rejected(running: Running, promise: Promise, method: str) -> None:
    answer = Answer(running, promise.path, method)
    if promise.path.endswith("/trainingPerformance") and method == "POST":
        assert answer.status == 415  # a change without a content type, on a server without login
    else:
        assert (answer.status, "GET" in answer.headers["allow"]) == (405, True)


@pytest.mark.parametrize("path", VALUES)
def test_values_that_the_documents_fix(running: Running, path: str) -> None:
    data = Answer(running, path).json()["data"]
    for place, expected in VALUES[path].items():
        found = data
        for part in place.split("."):
            found = found[int(part) if part.isdecimal() else part]
        assert found == expected, place


def test_lists_are_not_empty_so_that_their_rows_were_compared(running: Running) -> None:
    for promise in PROMISES:
        data = Answer(running, target(promise, promise.good[0])).json()["data"]
        rows = data.get("data", data) if isinstance(data, dict) else data
        assert rows, promise.path


def test_status_and_color_belong_together(running: Running) -> None:
    rows = Answer(running, "/api/workloads").json()["data"]["data"]
    assert len({row["status"] for row in rows}) >= 3
    assert all(COLORS[row["status"]] == row["statusColor"] for row in rows)


def test_utilizations_are_rates_and_power_is_in_watts(running: Running) -> None:
    (query,) = [path for path in VALUES if "metrics" in path]
    graphs = Answer(running, query).json()["data"]
    for name, most in (("GPU Utilization", 1.0), ("GPU Memory Utilization", 1.0), ("GPU Power", 1000.0)):
        values = [value for line in graphs[name]["series"] for value, _ in line["points"]]
        assert values
        assert all(0 <= value <= most for value in values)
    assert max(value for line in graphs["GPU Power"]["series"] for value, _ in line["points"]) > 100


def test_an_unknown_parameter_is_ignored_with_a_warning(running: Running) -> None:
    answer = Answer(running, "/api/workloads?pagesize=1")
    assert answer.status == 200
    assert "pagesize" in answer.headers["warning"]
    assert "pageSize" in answer.headers["warning"]


# Attacks

PLACES = [(promise, name) for promise in PROMISES for name in promise.parameters]
PATHS = sorted({promise.path for promise in PROMISES if promise.path.startswith("/api/workloads/")})


def rejected_or_empty(running: Running, raw: bytes, before: Any = None) -> None:
    """Send a raw request and check that it is rejected or finds nothing."""
    status, head, body = send(running, raw)
    assert status in (200, 400, 404, 414, 431), (status, body[:200])
    assert b"x-injected" not in head.lower()
    if status == 200 and before is not None:
        data = msgspec.json.decode(body)["data"]
        rows = data.get("data", data) if isinstance(data, dict) else data
        assert rows == [], "a value that no row has must match nothing"


def send(running: Running, raw: bytes) -> tuple[int, bytes, bytes]:
    url = urlsplit(running.url)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=10) as connection:
        connection.sendall(raw)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head, body


def request(target: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n"


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(("promise", "name"), PLACES, ids=named)
def test_an_attack_in_a_parameter_gets_an_error_or_nothing(
    running: Running, promise: Promise, name: str, attack: str
) -> None:
    values = {**promise.parameters, name: ""}
    encoded = "&".join(f"{other}={value}" for other, value in values.items() if other != name)
    query = f"{encoded}&{name}=".encode() + quote(ATTACKS[attack], safe="").encode()
    rejected_or_empty(running, request(promise.path.encode() + b"?" + query), before=promise)
    assert running.queried <= {"job", "job@ml"}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("path", PATHS)
def test_an_attack_in_the_path_finds_nothing(running: Running, path: str, attack: str) -> None:
    tail = path.split("/", 4)[4] if path.count("/") > 3 else ""
    query = {"metrics": b"?start=1&end=2", "trainingPerformance": b"?start=1&end=2"}.get(tail, b"")
    uid = quote(ATTACKS[attack], safe="").encode()
    raw = request(b"/api/workloads/" + uid + (f"/{tail}".encode() if tail else b"") + query)
    status, head, _ = send(running, raw)
    assert status in (400, 404, 414, 431)
    assert b"x-injected" not in head.lower()
    assert running.queried <= {"job", "job@ml"}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    "header", [b"Traceparent", b"Accept", b"If-None-Match", b"Accept-Encoding", b"Authorization"]
)
def test_an_attack_in_a_header_changes_no_answer(running: Running, header: bytes, attack: str) -> None:
    value = ATTACKS[attack].replace(b"\r\n", b" ").replace(b"\x00", b"")
    status, head, body = send(running, request(b"/api/clusters/consumers", header + b": " + value + b"\r\n"))
    assert status in (200, 400, 431), body
    assert b"x-injected" not in head.lower()
    if status == 200:
        assert msgspec.json.decode(body)["data"]["total"] == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /api/workloads?name=\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /api/workloads/\x00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /api/workloads?name=a b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /api/workloads HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: \x00\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
)
def test_a_malformed_request_is_rejected(running: Running, raw: bytes) -> None:
    status, _, body = send(running, raw)
    assert status in (400, 404), body


# The OpenAPI description

load_all_checks()
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_no_request_made_from_the_description_gets_a_5xx_or_an_undescribed_answer(running: Running) -> None:
    described = schemathesis.openapi.from_url(f"{running.url}/openapi.json").exclude(
        path_regex=r"^/(api/events|docs|openapi\.json|favicon\.ico)"  # a stream, and pages
    )
    tried = 0
    for found in described.get_all_operations():
        assert isinstance(found, Ok)
        _try(found.ok())
        tried += 1
    assert tried >= 18


def _try(operation: Any) -> None:
    @given(case=operation.as_strategy())
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def conforms(case: Any) -> None:
        case.call_and_validate(checks=_CHECKS)

    conforms()
