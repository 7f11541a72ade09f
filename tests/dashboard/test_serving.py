"""Test how the dashboard's files are served: content types, content policy, caching, login, missing build."""

import gzip
from pathlib import Path

import httpx
import pytest

from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.tokens import TokenFile, new_token
from gpufleet.server.dashboard import PUBLIC, PUBLIC_FOLDERS, dashboard_routes

SCRIPT = b"console.log('gpufleet');" * 80


@pytest.fixture
def build(tmp_path: Path) -> Path:
    assets = tmp_path / "static" / "assets"
    assets.mkdir(parents=True)
    (tmp_path / "static" / "index.html").write_text(
        '<!doctype html><script src="./assets/app-1a2b.js"></script>'
    )
    (assets / "app-1a2b.js").write_bytes(SCRIPT)
    (assets / "font-3c4d.woff2").write_bytes(b"wOF2")
    return tmp_path / "static"


def client_of(api: Api) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(api))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def test_the_page_is_revalidated_and_its_assets_are_cached_for_a_year(build: Path) -> None:
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        page, script = await http.get("/"), await http.get("/assets/app-1a2b.js")
        font = await http.get("/assets/font-3c4d.woff2")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    assert script.content == SCRIPT
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["content-encoding"] == "gzip"
    assert "immutable" in script.headers["cache-control"]
    assert font.headers["content-type"] == "font/woff2"
    assert "content-encoding" not in font.headers


async def test_the_content_policy_allows_only_this_server_and_nothing_inline(build: Path) -> None:
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        policy = (await http.get("/")).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_pages_without_an_icon_of_their_own_get_one(build: Path, tmp_path: Path) -> None:
    (build / "assets" / "icon-5e6f.svg").write_text("<svg/>")
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        icon = await http.get("/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    async with client_of(Api(routes=dashboard_routes(tmp_path / "none"))) as http:
        assert (await http.get("/favicon.ico")).status_code == 204


async def test_a_matching_etag_gets_a_304(build: Path) -> None:
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        first = await http.get("/")
        again = await http.get("/", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


async def test_clients_without_gzip_get_uncompressed_files(build: Path) -> None:
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        script = await http.get("/assets/app-1a2b.js", headers={"accept-encoding": "identity"})
        compressed = await http.get("/assets/app-1a2b.js", headers={"accept-encoding": "gzip"})
    assert script.content == compressed.content == SCRIPT
    assert len(gzip.compress(SCRIPT)) < len(SCRIPT)
    assert "content-encoding" not in script.headers


@pytest.mark.parametrize(
    "path", ["/assets/other.js", "/assets/..%2findex.html", "/assets/../../pages.py", "/x"]
)
async def test_other_paths_are_a_404_in_the_envelope(build: Path, path: str) -> None:
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        answer = await http.get(path)
    assert answer.status_code == 404
    assert answer.json()["success"] is False


async def test_without_a_build_the_page_explains_how_to_build_it(tmp_path: Path) -> None:
    async with client_of(Api(routes=dashboard_routes(tmp_path))) as http:
        page, health = await http.get("/"), await http.get("/api/healthz")
    assert page.status_code == 503
    assert "make dashboard" in page.text
    assert health.status_code == 200


async def test_the_files_are_public_and_the_data_needs_a_token(build: Path, tmp_path: Path) -> None:
    token, line = new_token("alice", "viewer")
    (tmp_path / "tokens").write_text(line + "\n")
    gate = BearerGate(TokenFile(tmp_path / "tokens"), public=PUBLIC, public_folders=PUBLIC_FOLDERS)
    async with client_of(Api(routes=dashboard_routes(build), gate=gate)) as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/assets/app-1a2b.js")).status_code == 200
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers={"authorization": f"Bearer {token}"})).status_code == 200


async def test_head_works_wherever_get_does(build: Path) -> None:
    async with client_of(Api(routes=dashboard_routes(build))) as http:
        answers = [await http.head(path) for path in ("/", "/assets/app-1a2b.js", "/assets/other.js")]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert answers[1].headers["content-type"].startswith("text/javascript")
