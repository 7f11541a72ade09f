"""The audit log: every change and every refused login, without secrets, and without floods."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict
from tests.server.auth.test_gate import (
    OPERATOR,
    VIEWER,
    Clock,
    Kubernetes,
    Permissions,
    bearer,
    tokens,
)
from tests.server.conftest import Client
from tests.waiting import wait_until

from gpufleet.runtime.logs import configure_logs
from gpufleet.server import audit
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.http.answers import Answer
from gpufleet.server.http.routing import post

CHANGE = "/api/workloads/job/reports"
TRAINING = "/api/workloads/job/trainingPerformance"


@pytest.fixture
def log() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


def events(log: list[EventDict]) -> list[dict[str, Any]]:
    return [dict(line) for line in log if line["event"] == "audit"]


@pytest.fixture
def gate(tmp_path: Path) -> BearerGate:
    reviews = ReviewedTokens(Kubernetes(), Permissions(), 60, Clock())
    return BearerGate(tokens(tmp_path), reviews)


async def test_each_change_is_an_event_with_who_what_where_and_outcome(
    client: Client, gate: BearerGate, log: list[EventDict]
) -> None:
    async with client(gate=gate) as http:
        for _ in range(2):
            await http.post(CHANGE, json=[], headers=bearer(OPERATOR))
        await http.post(CHANGE, content=b"{", headers=bearer("alice"))
        await http.get("/api/clusters/rows", headers=bearer(OPERATOR))
    allowed, again, failed = events(log)
    assert allowed == again
    assert allowed == {
        "event": "audit",
        "component": "audit",
        "log_level": "info",
        "who": "ci",
        "login": "token",
        "action": "POST /api/workloads/{uid}/reports",
        "target": CHANGE,
        "address": "127.0.0.1",
        "outcome": "allowed",
        "status": 200,
        "reason": "",
        "count": 1,
    }
    assert (failed["who"], failed["login"], failed["outcome"], failed["status"]) == (
        "alice",
        "kubernetes",
        "failed",
        400,
    )
    assert "Expected `array`" in failed["reason"]


@pytest.mark.parametrize(
    ("method", "path", "token", "who", "status", "reason"),
    [
        ("GET", "/api/clusters/rows", "gpf_wrong", None, 401, "the token is not valid"),
        ("GET", "/auth/me", "gpf_wrong", None, 200, "the token is not valid"),
        ("GET", "/api/clusters/rows", "dave", "dave", 403, "bind dave"),
        ("GET", "/debug/vars", VIEWER, "grafana", 403, "this takes the role operator; grafana is a viewer"),
        ("POST", CHANGE, VIEWER, "grafana", 403, "this takes the role operator; grafana is a viewer"),
        ("POST", CHANGE, "", None, 401, "log in with the header `Authorization: Bearer TOKEN`"),
    ],
)
async def test_a_refused_login_or_operation_is_an_event(
    client: Client,
    gate: BearerGate,
    log: list[EventDict],
    method: str,
    path: str,
    token: str,
    who: str | None,
    status: int,
    reason: str,
) -> None:
    async with client(gate=gate, debug_counts={}) as http:
        await http.request(method, path, headers=bearer(token) if token else {})
    [event] = events(log)
    assert (event["who"], event["status"], event["reason"]) == (who, status, reason)
    assert (event["outcome"], event["log_level"], event["target"]) == ("refused", "warning", path)


async def test_reading_without_credentials_is_no_refused_login(
    client: Client, gate: BearerGate, log: list[EventDict]
) -> None:
    async with client(gate=gate) as http:
        assert (await http.get("/api/clusters/rows")).status_code == 401
    assert events(log) == []


async def test_repeated_refusals_are_counted(
    client: Client, gate: BearerGate, log: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REFUSED_SECONDS", 0.2)
    async with client(gate=gate) as http:
        for number in range(10):
            await http.get(f"/api/clusters/{number}", headers=bearer("wrong"))
        assert [event["count"] for event in events(log)] == [1]
        await wait_until(lambda: len(events(log)) > 1)
    assert [event["count"] for event in events(log)] == [1, 9]


async def test_a_job_that_reports_every_second_is_one_event_per_interval(
    client: Client, log: list[EventDict]
) -> None:
    @post("/api/workloads/{uid:str}/trainingPerformance")
    async def report(uid: str) -> Answer[str]:
        """Take numbers."""
        return Answer(uid)

    async with client(routes=[report]) as http:
        for _ in range(50):
            await http.post(TRAINING, headers={"content-type": "application/json"})
        assert [(event["who"], event["count"]) for event in events(log)] == [(None, 1)]


async def test_no_token_is_in_the_audit_log(client: Client, gate: BearerGate, log: list[EventDict]) -> None:
    secrets = ("gpf_c2VjcmV0", "gpw_am9i.c2ln", "eyJhbGciOiJub25lIn0.e30.")
    async with client(gate=gate) as http:
        for secret in secrets:
            await http.get(f"/api/{secret}?token={secret}", headers=bearer(secret))
            await http.post(f"/api/workloads/{secret}/reports", json=[], headers=bearer(OPERATOR))
    assert len(events(log)) == 4
    assert not any(secret in str(events(log)) for secret in secrets)


async def test_the_audit_log_is_written_at_every_log_level(
    client: Client, gate: BearerGate, capfd: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    configure_logs("error", "json")
    try:
        async with client(gate=gate) as http:
            await http.post(CHANGE, json=[], headers=bearer(OPERATOR))
    finally:
        structlog.configure(**before)
    [line] = capfd.readouterr().err.splitlines()
    assert '"event":"audit"' in line
    assert '"trace_id":"' in line
