"""Changes on a server without login: pages of other sites can't request them."""

from pathlib import Path

import pytest
from tests.server.auth.test_gate import OPERATOR, bearer, tokens
from tests.server.conftest import Client

from gpufleet.server.auth.gate import BearerGate

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({**JSON, "origin": "http://127.0.0.1"}, 200),
        ({**JSON, "origin": "https://gpus.example"}, 200),
        ({**JSON, "origin": "https://grafana.example"}, 200),
        ({**JSON, "origin": "http://127.0.0.1:3000"}, 403),
        ({**JSON, "origin": "https://evil.example"}, 403),
        ({**JSON, "origin": "https://gpus.example.evil.example"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "origin": "http://["}, 403),
    ],
)
async def test_a_change_needs_a_json_content_type_and_no_foreign_origin(
    client: Client, headers: dict[str, str], status: int
) -> None:
    async with client(hosts=("gpus.example",), cors_origins=("https://grafana.example",)) as http:
        answer = await http.post("/api/workloads/a/reports", content=b"[]", headers=headers)
    assert answer.status_code == status


async def test_reads_and_requests_with_a_token_need_neither(client: Client, tmp_path: Path) -> None:
    foreign = {"origin": "https://evil.example"}
    async with client(hosts=()) as http:
        read = await http.get("/api/workloads/a", headers=foreign)
    async with client(gate=BearerGate(tokens(tmp_path))) as http:
        changed = await http.post(
            "/api/workloads/a/reports", content=b"[]", headers={**bearer(OPERATOR), **foreign}
        )
    assert (read.status_code, changed.status_code) == (200, 200)
