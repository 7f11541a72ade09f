import asyncio
import hashlib
from pathlib import Path

import pytest
from tests.server.conftest import Client

from gpufleet.errors import KubernetesUnavailable, SettingsError
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.server.auth.caller import Caller, Role
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.permissions import LoginRefused, Permission
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile, new_token, parse
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import get

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
        names = ("alice", "bob", "carol", "dave")
        pods = {"dave": "p1", "alice": "p2"}
        return TokenOwner(token, pod_uid=pods.get(token, "")) if token in names else None


class Permissions:
    """Gives alice the role operator, bob all namespaces, carol one of them, and dave nothing."""

    def __init__(self) -> None:
        self.requests = 0
        self.namespaces_of_carol = frozenset({"nlp"})

    async def is_operator(self, owner: TokenOwner) -> bool:
        return owner.user == "alice"

    async def of(self, owner: TokenOwner) -> Permission | None:
        self.requests += 1
        carol = Permission("viewer", self.namespaces_of_carol)
        everywhere = {"alice": Permission("operator"), "bob": Permission("viewer")}
        return {**everywhere, "carol": carol}.get(owner.user)

    def advice(self, owner: TokenOwner) -> str:
        return f"bind {owner.user}"


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
    gate = BearerGate(tokens(tmp_path), ReviewedTokens(kubernetes, Permissions(), 60, clock), clock=clock)
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


async def test_a_kubernetes_token_alone_is_not_a_permission(client: Client) -> None:
    gate = BearerGate(reviews=ReviewedTokens(Kubernetes(), Permissions(), 60, Clock()))
    names = ("alice", "bob", "carol", "dave", "mallory")
    async with client(gate=gate) as http:
        reads = [await http.get("/api/clusters/rows", headers=bearer(name)) for name in names]
        writes = [
            await http.post("/api/workloads/a/reports", json=[], headers=bearer(name)) for name in names
        ]
    assert [answer.status_code for answer in reads] == [200, 200, 200, 403, 401]
    assert [answer.status_code for answer in writes] == [200, 403, 403, 403, 401]
    assert reads[3].json()["message"] == "bind dave"
    assert 'error="insufficient_scope"' in reads[3].headers["www-authenticate"]


async def test_a_caller_limited_to_namespaces_is_no_operator() -> None:
    gate = BearerGate()
    roles: tuple[Role, ...] = ("viewer", "operator")
    for role in roles:
        limited = Caller("carol", role, namespaces=frozenset({"nlp"}))
        gate.authorize(limited, "GET", "/api/workloads")
        for method, path in (("POST", "/api/workloads/a/reportToken"), ("GET", "/debug/vars")):
            with pytest.raises(LoginRefused, match="takes the role operator"):
                gate.authorize(limited, method, path)


async def test_a_pod_without_permission_reports_training_and_nothing_else() -> None:
    permissions = Permissions()
    gate = BearerGate(reviews=ReviewedTokens(Kubernetes(), permissions, 60, Clock()))
    report = "/api/workloads/job/trainingPerformance"
    caller = await gate.authenticate("POST", report, "::1", b"Bearer dave")
    assert caller is not None
    assert (caller.name, caller.role, caller.pod_uid, permissions.requests) == ("dave", "viewer", "p1", 0)
    operator = await gate.authenticate("POST", report, "::1", b"Bearer alice")
    assert operator is not None
    assert operator.role == "operator", "it may report for other workloads"
    for method, path in (("GET", report), ("POST", "/api/workloads/job/reportToken")):
        with pytest.raises(LoginRefused, match="bind dave"):
            await gate.authenticate(method, path, "::1", b"Bearer dave")


async def test_requests_at_once_cause_one_review() -> None:
    kubernetes, permissions = Kubernetes(), Permissions()
    reviews = ReviewedTokens(kubernetes, permissions, 60, Clock())
    callers = await asyncio.gather(*(reviews.caller("carol") for _ in range(20)))
    assert {caller.namespaces for caller in callers if caller} == {frozenset({"nlp"})}
    assert (kubernetes.requests, permissions.requests) == (1, 1)


async def test_a_review_is_cached_and_a_rejection_for_a_shorter_time() -> None:
    clock, kubernetes = Clock(), Kubernetes()
    reviews = ReviewedTokens(kubernetes, Permissions(), 60, clock)
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
    async with client(
        gate=BearerGate(reviews=ReviewedTokens(kubernetes, Permissions(), 60, Clock()))
    ) as http:
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


def test_a_viewers_token_may_be_limited_to_namespaces(tmp_path: Path) -> None:
    token, made = new_token("nlp", "viewer", ["nlp", "nlp-dev"])
    (tmp_path / "tokens").write_text(f"{made}   # the team\n" + line("ci", "operator", OPERATOR))
    file = TokenFile(tmp_path / "tokens")
    limited, unlimited = file.caller(token), file.caller(OPERATOR)
    assert limited is not None
    assert limited.namespaces == frozenset({"nlp", "nlp-dev"})
    assert unlimited is not None
    assert unlimited.namespaces is None


def test_an_operators_token_can_not_be_limited_to_namespaces() -> None:
    with pytest.raises(SettingsError, match="operator"):
        new_token("ci", "operator", ["nlp"])
    assert parse(line("ci", "operator", "t").strip() + " namespaces=nlp") == ([], [1])
    for wrong in ("namespaces=", "namespaces=a,", "namespaces=a b", "namespace=a", "nlp"):
        assert parse(line("x", "viewer", "t").strip() + f" {wrong}") == ([], [1])


async def test_me_says_who_the_caller_is_and_how_to_log_in(client: Client) -> None:
    gate = BearerGate(reviews=ReviewedTokens(Kubernetes(), Permissions(), 60, Clock()))
    async with client(gate=gate) as http:
        answers = [
            await http.get("/auth/me", headers=bearer(name)) for name in ("alice", "carol", "dave", "mallory")
        ]
    assert [answer.status_code for answer in answers] == [200] * 4
    known = [answer.json()["data"] for answer in answers]
    assert [(each["user"], each["role"], each["namespaces"]) for each in known] == [
        ("alice", "operator", None),
        ("carol", "viewer", ["nlp"]),
        (None, None, None),
        (None, None, None),
    ]
    assert {each["signIn"] for each in known} == {"token"}
    async with client() as http:
        assert (await http.get("/auth/me")).json()["data"]["signIn"] == "none"


async def test_a_stream_may_not_go_on_with_other_namespaces(client: Client) -> None:
    clock, permissions = Clock(), Permissions()
    gate = BearerGate(reviews=ReviewedTokens(Kubernetes(), permissions, 60, clock), clock=clock)
    contexts: list[RequestContext] = []

    @get("/api/clusters/stream", scope="public")
    async def stream(context: RequestContext) -> str:
        """Keep the context, as a stream does."""
        contexts.append(context)
        return ""

    async with client(gate=gate, routes=[stream]) as http:
        await http.get("/api/clusters/stream", headers=bearer("carol"))
    assert await contexts[0].still_allowed()
    permissions.namespaces_of_carol = frozenset({"vision"})
    assert await contexts[0].still_allowed(), "the permission is cached"
    clock.now += 61
    assert not await contexts[0].still_allowed()
