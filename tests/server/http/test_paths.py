"""Spellings of paths: the gate and the router see the same path, and a viewer stays a viewer."""

import hashlib
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from tests.server.conftest import sample_routes

from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.http.paths import normalized

SEPARATORS = ["/", "//", "/./", "/x/../", "/%2f", "%2F", "/%2e/", "/a/%2E%2e/", "/../"]
ENDS = ["", "/", "//", "/.", "/x/..", "%2f"]
OPERATOR_PATHS = [["debug", "vars"], ["debug", "pprof", "profile"]]


class SeenPaths(BearerGate):
    """A gate that notes the path of the last request."""

    def __init__(self, tokens: TokenFile) -> None:
        super().__init__(tokens)
        self.path = ""

    def authorize(self, caller: Caller, method: str, path: str) -> None:
        self.path = path
        super().authorize(caller, method, path)


def spelling(segments: list[str]) -> st.SearchStrategy[str]:
    parts = [st.sampled_from(SEPARATORS)]
    for segment in segments:
        encoded = "".join(f"%{ord(each):02x}" for each in segment)
        parts += [st.sampled_from([segment, encoded]), st.sampled_from(SEPARATORS)]
    return st.tuples(*parts[:-1], st.sampled_from(ENDS)).map("".join).map(lambda path: "/" + path)


@pytest.fixture
def gate(tmp_path: Path) -> SeenPaths:
    path = tmp_path / "tokens"
    path.write_text(f"grafana viewer sha256:{hashlib.sha256(b'token').hexdigest()}\n")
    return SeenPaths(TokenFile(path))


async def call(gate: SeenPaths, raw_path: str, method: str = "GET") -> tuple[int, str]:
    """Send a request as uvicorn passes it on; return its status and the path that the router saw."""
    app = create_app(Api(routes=sample_routes(), gate=gate, debug_counts={}))
    status = 0
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer token"), (b"host", b"a")],
        "client": ("127.0.0.1", 1),
    }
    routed = ""
    router = app.router.app

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal routed
        routed = scope["path"]
        await router(scope, receive, send)

    app.router.middleware_stack = seen

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]  # type: ignore[assignment]

    await app(scope, receive, send)  # type: ignore[arg-type]
    return status, routed


@given(raw_path=st.sampled_from(OPERATOR_PATHS).flatmap(spelling))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_spelling_opens_an_operator_route_to_a_viewer(gate: SeenPaths, raw_path: str) -> None:
    status, _ = await call(gate, raw_path)
    if normalized(unquote(raw_path)) in ("/debug/vars", "/debug/pprof/profile"):
        assert status == 403
    assert status in (403, 404)


@given(
    raw_path=st.lists(st.sampled_from(["api", "clusters", "rows", "x", "%2e%2e", ".."]), max_size=4).flatmap(
        spelling
    )
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_gate_and_the_router_see_the_same_path(gate: SeenPaths, raw_path: str) -> None:
    gate.path = ""
    _, routed = await call(gate, raw_path)
    assert not gate.path or gate.path == routed
    assert routed == normalized(routed)


@pytest.mark.parametrize(
    ("raw_path", "status"),
    [
        ("//debug/vars", 403),
        ("/%2fdebug/vars", 403),
        ("/./debug/vars", 403),
        ("/debug/../debug/vars/", 403),
        ("/x/%2e%2e/debug/vars", 403),
        ("//api/clusters/rows//", 200),
        ("/api/clusters//rows", 404),
        ("/api/clusters/%2e/rows", 200),
    ],
)
async def test_a_spelling_is_the_path_that_it_resolves_to(
    gate: SeenPaths, raw_path: str, status: int
) -> None:
    assert (await call(gate, raw_path))[0] == status


@given(st.text(alphabet="/.ab%", max_size=20))
def test_a_normalized_path_stays_as_it_is(path: str) -> None:
    once = normalized(path)
    assert normalized(once) == once
    assert once.startswith("/")
    assert not {".", ".."} & set(once.split("/"))
    assert once == "/" or (once[1] != "/" and once[-1] != "/")
