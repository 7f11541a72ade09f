import hashlib
from pathlib import Path

import pytest
from tests.server.conftest import Client

from gpufleet.errors import KubernetesUnavailable, SettingsError
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile, new_token, parse

VIEWER, OPERATOR = "gpf_viewer-token", "gpf_operator-token"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Kubernetes:
    """Reviews tokens as the API server would, and counts the requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.down = False

    async def review(self, token: str) -> TokenOwner | None:
        self.requests += 1
        if self.down:
            raise KubernetesUnavailable("the Kubernetes API does not answer")
        return {"alice": TokenOwner("alice", ("gpu-admins",)), "bob": TokenOwner("bob")}.get(token)


def line(name: str, role: str, token: str) -> str:
    return f"{name} {role} sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"


def tokens(tmp_path: Path, clock: Clock | None = None) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text("# callers\n" + line("grafana", "viewer", VIEWER) + line("ci", "operator", OPERATOR))
    return TokenFile(path, clock or Clock())


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_without_a_token_everything_but_health_and_pages_is_a_401_in_its_envelope(
    client: Client, tmp_path: Path
) -> None:
    async with client(gate=BearerGate(tokens(tmp_path))) as http:
        paths = ["/api/clusters/rows", "/api/v1/gpu-aggregation/x", "/metrics", "/openapi.json", "/nothing"]
        refused = [await http.get(path) for path in paths]
        public = [await http.get(path) for path in ("/livez", "/api/healthz", "/docs", "/docs/docs.js")]
    assert [answer.status_code for answer in refused] == [401] * 5
    assert all(answer.headers["www-authenticate"].startswith("Bearer ") for answer in refused)
    assert refused[0].json()["code"] == 401
    assert refused[1].json()["error"]
    assert refused[2].json()["success"] is False
    assert [answer.status_code for answer in public] == [200] * 4


async def test_a_viewer_reads_and_an_operator_also_changes(client: Client, tmp_path: Path) -> None:
    async with client(gate=BearerGate(tokens(tmp_path)), debug_counts={}) as http:
        reads = [await http.get("/api/clusters/rows", headers=bearer(each)) for each in (VIEWER, OPERATOR)]
        writes = [
            await http.post("/api/workloads/a/reports", json=[], headers=bearer(each))
            for each in (VIEWER, OPERATOR)
        ]
        debugs = [await http.get("/debug/vars", headers=bearer(each)) for each in (VIEWER, OPERATOR)]
    assert [answer.status_code for answer in reads] == [200, 200]
    assert [answer.status_code for answer in writes] == [403, 200]
    assert [answer.status_code for answer in debugs] == [403, 200]
    assert writes[0].json()["message"] == "this takes the role operator; grafana is a viewer"


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic Zm9v", "Bearer " + "x" * 9000, "gpf"])
async def test_a_wrong_token_is_a_401(client: Client, tmp_path: Path, header: str) -> None:
    async with client(gate=BearerGate(tokens(tmp_path))) as http:
        answer = await http.get("/api/clusters/rows", headers={"authorization": header})
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/docs/../metrics", "/docs/%2e%2e/metrics", "/docs//../../metrics"])
async def test_a_public_folder_does_not_open_private_paths(client: Client, tmp_path: Path, path: str) -> None:
    async with client(gate=BearerGate(tokens(tmp_path))) as http:
        answer = await http.get(path)
    assert answer.status_code == 401


async def test_after_too_many_invalid_tokens_only_known_ones_pass(client: Client, tmp_path: Path) -> None:
    clock, kubernetes = Clock(), Kubernetes()
    gate = BearerGate(tokens(tmp_path), ReviewedTokens(kubernetes, (), 60, clock), clock=clock)
    async with client(gate=gate) as http:
        tried = [await http.get("/api/clusters/rows", headers=bearer(f"guess-{n}")) for n in range(25)]
        right = await http.get("/api/clusters/rows", headers=bearer(VIEWER))
        clock.now += 61
        later = await http.get("/api/clusters/rows", headers=bearer("guess-99"))
    assert [answer.status_code for answer in tried] == [401] * 20 + [429] * 5
    assert int(tried[-1].headers["retry-after"]) > 0
    assert kubernetes.requests == 21
    assert right.status_code == 200
    assert later.status_code == 401


async def test_kubernetes_authenticates_and_the_settings_give_the_role(
    client: Client,
) -> None:
    gate = BearerGate(reviews=ReviewedTokens(Kubernetes(), ("gpu-admins",), 60, Clock()))
    async with client(gate=gate) as http:
        answers = [
            await http.post("/api/workloads/a/reports", json=[], headers=bearer(token))
            for token in ("alice", "bob", "mallory")
        ]
    assert [answer.status_code for answer in answers] == [200, 403, 401]


async def test_a_review_is_cached_and_a_rejection_for_a_shorter_time() -> None:
    clock, kubernetes = Clock(), Kubernetes()
    reviews = ReviewedTokens(kubernetes, (), 60, clock)
    for token, seconds in (("bob", 60), ("mallory", 10)):
        before = kubernetes.requests
        await reviews.caller(token)
        await reviews.caller(token)
        clock.now += seconds - 0.1
        await reviews.caller(token)
        assert kubernetes.requests == before + 1
        clock.now += 0.2
        await reviews.caller(token)
        assert kubernetes.requests == before + 2


async def test_a_kubernetes_that_does_not_answer_is_a_503(client: Client) -> None:
    kubernetes = Kubernetes()
    kubernetes.down = True
    async with client(gate=BearerGate(reviews=ReviewedTokens(kubernetes, (), 60, Clock()))) as http:
        answer = await http.get("/api/clusters/rows", headers=bearer("alice"))
    assert answer.status_code == 503


def test_a_changed_file_is_read_again_and_an_invalid_line_is_ignored(tmp_path: Path) -> None:
    clock = Clock()
    file = tokens(tmp_path, clock)
    assert file.caller(VIEWER) is not None
    (tmp_path / "tokens").write_text("grafana viewer sha256:oops\n" + line("ci", "operator", OPERATOR))
    clock.now += 1.1
    assert file.caller(VIEWER) is None
    assert file.caller(OPERATOR) is not None
    (tmp_path / "tokens").unlink()
    clock.now += 1.1
    assert file.caller(OPERATOR) is None
    tokens(tmp_path)
    clock.now += 1.1
    assert file.caller(OPERATOR) is not None


def test_an_invalid_line_at_the_start_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(line("a", "viewer", "t") + "b admin sha256:00\n")
    with pytest.raises(SettingsError, match="line 2 is invalid"):
        TokenFile(path)


def test_the_line_of_a_new_token_has_only_its_hash() -> None:
    token, made = new_token("grafana", "viewer")
    assert token not in made
    ((digest, caller),), wrong = parse(made)
    assert digest == hashlib.sha256(token.encode()).digest()
    assert (caller.name, caller.role, wrong) == ("grafana", "viewer", [])
    with pytest.raises(SettingsError, match="takes letters"):
        new_token("a b", "viewer")
