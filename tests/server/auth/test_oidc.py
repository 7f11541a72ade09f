"""Login with OpenID Connect, against a provider with real signatures: bearer tokens, sign-in, sessions."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from structlog.testing import capture_logs
from tests.oidc_provider import ALICE, CLIENT, SECRET, Key, Provider, query_of
from tests.server.auth.test_gate import VIEWER, Clock, bearer, tokens
from tests.server.conftest import sample_routes

from gpufleet.errors import IdentityProviderUnavailable, SettingsError
from gpufleet.runtime.settings import AuthSettings, OidcSettings, load_settings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.oidc import provider as provider_module
from gpufleet.server.auth.oidc.sessions import Sessions, SignedCookies, session_key
from gpufleet.server.auth.oidc.sign_in import SignIn
from gpufleet.server.auth.oidc.tokens import Identity, IdentityTokens
from gpufleet.server.auth.permissions import GroupPermissions, LoginRefused
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.login import open_identity_provider

HOME = "http://127.0.0.1:8080/"
READ, CHANGE = "/api/clusters/rows", "/api/workloads/a/reports"
GROUPS = GroupPermissions(frozenset({"admins"}), frozenset({"staff"}), {"nlp": ("nlp",)})


@dataclass
class Site:
    """A server with OIDC, its provider, and a client that keeps cookies as a browser does."""

    provider: Provider
    http: httpx.AsyncClient
    clock: Clock
    time: Clock
    oidc: provider_module.Provider

    async def begin(self, page: str = "") -> str:
        """Begin a sign-in and return the URL that the provider sends the browser back to."""
        begun = await self.http.get("/auth/login", params={"page": page})
        assert begun.status_code == 302, begun.text
        async with httpx.AsyncClient() as browser:
            return (await browser.get(begun.headers["location"])).headers["location"]

    async def finish(self, url: str) -> httpx.Response:
        return await self.http.get(url.removeprefix(HOME.rstrip("/")))

    async def sign_in(self, page: str = "") -> httpx.Response:
        return await self.finish(await self.begin(page))

    async def status(self, token: str) -> int:
        return (await self.http.get(READ, headers=bearer(token))).status_code


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    (tmp_path / "secret").write_text(SECRET + "\n")
    async with Provider().serving() as provider, AsyncExitStack() as stack:
        settings = OidcSettings(
            issuer=provider.issuer,
            client_id=CLIENT,
            client_secret_file=tmp_path / "secret",
            redirect_url=f"{HOME}auth/callback",
            audiences=("gpufleet-api",),
        )
        yield await _open(stack, provider, settings, tmp_path)


async def _open(stack: AsyncExitStack, provider: Provider, settings: OidcSettings, folder: Path) -> Site:
    clock, wall = Clock(), Clock()
    wall.now = time.time()
    oidc = await stack.enter_async_context(provider_module.Provider(settings, clock))
    identities = IdentityTokens(oidc, settings, GROUPS)
    cookies = SignedCookies(b"k" * 32, secure=settings.redirect_url.startswith("https"), clock=wall)
    sign_in = SignIn(oidc, identities, Sessions(cookies, settings, GROUPS), cookies, settings)
    gate = BearerGate(tokens(folder), identities=identities, sessions=sign_in.sessions)
    app = create_app(Api(routes=sample_routes(), gate=gate, sign_in=sign_in))
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=settings.redirect_url[: -len("/auth/callback")]
    )
    return Site(provider, await stack.enter_async_context(client), clock, wall, oidc)


# Bearer tokens


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_a_token_of_the_provider_is_admitted(site: Site, algorithm: str) -> None:
    site.provider.rotate(algorithm)
    answer = await site.http.get("/auth/me", headers=bearer(site.provider.token()))
    assert answer.json()["data"] == {
        "user": "alice@example.com",
        "role": "viewer",
        "namespaces": None,
        "login": "oidc",
        "signIn": "oidc",
    }
    assert await site.status(site.provider.token()) == 200
    assert await site.status(site.provider.token(aud=["other", "gpufleet-api"])) == 200


@pytest.mark.parametrize(
    ("groups", "read", "change", "namespaces"),
    [
        (["admins"], 200, 200, None),
        ("staff", 200, 403, None),
        (["nlp", "unknown"], 200, 403, ["nlp"]),
        (["unknown"], 403, 403, None),
        (None, 403, 403, None),
        ([1, None, {"admins": 1}], 403, 403, None),
    ],
)
async def test_the_groups_of_a_token_give_the_permission(
    site: Site, groups: object, read: int, change: int, namespaces: list[str] | None
) -> None:
    headers = bearer(site.provider.token(groups=groups))
    assert (await site.http.get(READ, headers=headers)).status_code == read
    assert (await site.http.post(CHANGE, json=[], headers=headers)).status_code == change
    assert (await site.http.get("/auth/me", headers=headers)).json()["data"]["namespaces"] == namespaces


async def test_a_person_without_permission_learns_which_setting_to_ask_for(site: Site) -> None:
    answers = [
        await site.http.get(READ, headers=bearer(site.provider.token(groups=groups)))
        for groups in (["x"], None)
    ]
    assert all("auth.viewer_groups" in answer.json()["message"] for answer in answers)
    assert "the token has no groups (claim groups)" in answers[1].json()["message"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": int(time.time()) - 120}, "expired"),
        ({"exp": None}, "lacks a claim"),
        ({"nbf": int(time.time()) + 600}, "not valid yet"),
        ({"iat": int(time.time()) + 600}, "not valid yet"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "lacks a claim"),
        ({"sub": None}, "lacks a claim"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused(site: Site, changes: dict[str, Any], reason: str) -> None:
    answer = await site.http.get(READ, headers=bearer(site.provider.token(**changes)))
    assert answer.status_code == 401
    assert reason in answer.json()["message"]


async def test_a_token_of_another_issuer_is_refused(site: Site) -> None:
    for issuer in ("https://evil.example", site.provider.issuer + "/", None):
        assert await site.status(site.provider.token(iss=issuer)) == 401


def _segment(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


async def test_forged_signatures_are_refused(site: Site) -> None:
    provider = site.provider
    valid = provider.token()
    head, body, signature = valid.split(".")
    stranger = Key.new("first")
    public = jwt.PyJWK(provider.keys[0].public).key.public_numbers()
    der = str(public.n).encode()  # any public bytes: an HS256 key would be known to all
    unsigned = f"{_segment({'alg': 'HS256', 'kid': 'first', 'typ': 'JWT'})}.{body}"
    mac = base64.urlsafe_b64encode(hmac.new(der, unsigned.encode(), hashlib.sha256).digest()).rstrip(b"=")
    operator = _segment({**jwt.decode(valid, options={"verify_signature": False}), "groups": ["admins"]})
    forged = {
        "a key of somebody else with the same id": provider.token(key=stranger),
        "another key type with the same id": provider.token(key=Key.new("first", "ES256")),
        "no signature": f"{_segment({'alg': 'none', 'typ': 'JWT'})}.{body}.",
        "no signature in capitals": f"{_segment({'alg': 'NONE', 'kid': 'first'})}.{body}.",
        "HS256": f"{unsigned}.{mac.decode()}",
        "changed claims": f"{head}.{operator}.{signature}",
        "cut signature": f"{head}.{body}.{signature[:-8]}",
        "empty signature": f"{head}.{body}.",
        "an extension that must be understood": provider.token(headers={"crit": ["x"], "x": 1}),
        "an unknown key": provider.token(key=Key.new("unknown")),
        "a key in the header": provider.token(key=stranger, headers={"jwk": stranger.public, "kid": "first"}),
    }
    assert await site.status(valid) == 200
    assert {name: await site.status(token) for name, token in forged.items()} == dict.fromkeys(forged, 401)


async def test_a_rotated_key_is_accepted_and_reading_keys_again_is_limited(site: Site) -> None:
    provider, clock = site.provider, site.clock
    old = provider.token()
    assert await site.status(old) == 200
    assert provider.key_reads == 1
    for number in range(15):
        assert await site.status(provider.token(key=Key.new(f"unknown-{number}", "ES256"))) == 401
    assert provider.key_reads == 1
    provider.rotate()
    assert await site.status(provider.token()) == 401
    clock.now += provider_module.RETRY_SECONDS + 1
    assert await site.status(provider.token()) == 200
    assert provider.key_reads == 2
    assert await site.status(old) == 401, "the old key is not in the set any more"


async def test_a_withdrawn_key_stops_counting_within_an_hour(site: Site) -> None:
    leaked = site.provider.token(exp=int(time.time()) + 10_000)
    assert await site.status(leaked) == 200
    site.provider.rotate()
    assert await site.status(leaked) == 200
    site.clock.now += provider_module.MAX_AGE_SECONDS + 1
    assert await site.status(leaked) == 401


async def test_an_email_that_is_not_verified_is_neither_name_nor_group(site: Site) -> None:
    token = site.provider.token(email_verified=False)
    me = (await site.http.get("/auth/me", headers=bearer(token))).json()["data"]
    assert me["user"] == ALICE["sub"]


async def test_tokens_of_the_file_work_beside_the_provider(site: Site) -> None:
    assert await site.status(VIEWER) == 200
    assert await site.status("gpf_wrong") == 401


# The provider's answers


async def test_a_provider_that_is_down_is_a_503_and_recovers(tmp_path: Path) -> None:
    provider = Provider()
    async with provider.serving():
        settings = OidcSettings(issuer=provider.issuer, client_id=CLIENT)
        token = provider.token()
    async with AsyncExitStack() as stack:
        site = await _open(stack, provider, replace(settings, redirect_url=f"{HOME}auth/callback"), tmp_path)
        answer = await site.http.get(READ, headers=bearer(token))
        page = await site.http.get("/auth/login")
        with pytest.raises(IdentityProviderUnavailable, match="refused"):
            await site.oidc.probe()
    assert (answer.status_code, page.status_code) == (503, 503)
    assert "Connection refused" in answer.json()["message"]
    assert "text/html" in page.headers["content-type"]


async def test_the_discovery_document_must_name_the_issuer(tmp_path: Path) -> None:
    async with Provider().serving() as provider:
        settings = OidcSettings(issuer=provider.issuer + "/", client_id=CLIENT)
        async with provider_module.Provider(settings) as oidc:
            with pytest.raises(IdentityProviderUnavailable, match=r"set oidc\.issuer to exactly that"):
                await oidc.metadata()


# Sign-in of the page


async def test_a_person_signs_in_and_out(site: Site) -> None:
    with capture_logs() as log:
        done = await site.sign_in("#/nodes?state=faulty")
        me = (await site.http.get("/auth/me")).json()["data"]
        read = await site.http.get(READ)
        out = await site.http.post("/auth/logout", json={}, headers={"origin": HOME.rstrip("/")})
        after = await site.http.get(READ)
    assert (done.status_code, done.headers["location"]) == (302, f"{HOME}#/nodes?state=faulty")
    assert (me["user"], me["role"], me["login"]) == ("alice@example.com", "viewer", "session")
    assert (read.status_code, out.status_code, after.status_code) == (200, 204, 401)
    audited = [(e["who"], e["action"], e["outcome"]) for e in log if e["event"] == "audit"]
    assert audited == [
        ("alice@example.com", "sign in", "allowed"),
        ("alice@example.com", "POST /auth/logout", "allowed"),
    ]


async def test_the_cookies_are_out_of_reach_for_scripts_and_other_sites(site: Site, tmp_path: Path) -> None:
    begun = await site.http.get("/auth/login")
    done = await site.finish(await site.begin())
    for cookie in (begun.headers["set-cookie"], *done.headers.get_list("set-cookie")):
        assert cookie.startswith("gpufleet-")
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
    secure = SignedCookies(b"k" * 32, secure=True).set("gpufleet-session", {}, 60)
    assert secure.startswith("__Host-gpufleet-session=")
    assert secure.endswith("; Secure")
    assert "Domain" not in secure


async def test_a_session_ends_after_its_lifetime(site: Site) -> None:
    await site.sign_in()
    site.time.now += 8 * 3600 - 1
    assert (await site.http.get(READ)).status_code == 200
    site.time.now += 2
    over = await site.http.get(READ)
    assert (over.status_code, over.json()["message"]) == (401, "the session is over; sign in again")


def test_only_groups_with_a_permission_are_in_a_session_and_too_many_are_refused() -> None:
    names = [f"{number:036}" for number in range(200)]
    cookies = SignedCookies(b"k" * 32, secure=True)
    for permissions, is_refused in ((GROUPS, False), (GroupPermissions(viewers=frozenset(names)), True)):
        sessions = Sessions(cookies, OidcSettings(redirect_url=f"{HOME}auth/callback"), permissions)
        if is_refused:
            with pytest.raises(LoginRefused, match="too many for a cookie"):
                sessions.begin(Identity("alice", (*names, "staff")))
        else:
            assert len(sessions.begin(Identity("alice", (*names, "staff")))) < 400


async def test_only_this_server_makes_sessions(site: Site) -> None:
    await site.sign_in()
    own = site.http.cookies["gpufleet-session"]
    head, _, signature = own.split(".")
    claims = {**jwt.decode(own, options={"verify_signature": False}), "groups": ["admins"]}
    sign_in = SignedCookies(b"k" * 32, secure=False).set("gpufleet-sign-in", claims, 60)
    forged = [
        f"{head}.{_segment(claims)}.{signature}",
        f"{_segment({'alg': 'none'})}.{_segment(claims)}.",
        jwt.encode(claims, b"x" * 32, "HS256"),
        sign_in.split(";")[0].partition("=")[2],
        "",
        "gpufleet-session",
    ]
    for cookie in forged:
        answer = await httpx.AsyncClient(transport=site.http._transport, base_url=HOME).get(
            READ, headers={"cookie": f"gpufleet-session={cookie}"}
        )
        assert answer.status_code == 401
    assert await site.status(own) == 401, "a session is no bearer token"


async def test_a_change_in_a_session_must_come_from_the_own_page(site: Site) -> None:
    site.provider.user["groups"] = ["admins"]
    await site.sign_in()
    origins = (HOME.rstrip("/"), "https://evil.example", "http://127.0.0.1:9999", "null", None)
    answers = [
        await site.http.post(CHANGE, json=[], headers={"origin": origin} if origin else {})
        for origin in origins
    ]
    assert [answer.status_code for answer in answers] == [200, 403, 403, 403, 403]
    form = {"origin": HOME.rstrip("/"), "content-type": "text/plain"}
    assert (await site.http.post(CHANGE, content=b"[]", headers=form)).status_code == 415
    bare = await site.http.post(CHANGE, content=b"[]", headers={"origin": HOME.rstrip("/")})
    assert bare.status_code == 415


async def test_a_code_works_once(site: Site) -> None:
    url = await site.begin()
    cookies = dict(site.http.cookies)
    assert (await site.finish(url)).status_code == 302
    site.http.cookies.clear()
    again = await site.finish(url)
    assert (again.status_code, "not begun in this browser" in again.text) == (401, True)
    for name, value in cookies.items():
        site.http.cookies.set(name, value)
    replayed = await site.finish(url)
    assert (replayed.status_code, "invalid_grant" in replayed.text) == (401, True)
    assert (await site.http.get(READ)).status_code == 401


async def test_a_code_of_another_sign_in_is_refused(site: Site) -> None:
    """An attacker lets the victim's browser finish the attacker's sign-in (login CSRF)."""
    attackers = await site.begin()
    site.http.cookies.clear()
    victims = await site.begin()
    wrong_state = await site.finish(attackers)
    assert (wrong_state.status_code, "(state)" in wrong_state.text) == (401, True)
    await site.begin()
    state = query_of(victims)["state"]
    mixed = await site.finish(f"{HOME}auth/callback?code={query_of(attackers)['code']}&state={state}")
    assert mixed.status_code == 401


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nonce": "other"}, "(nonce)"),
        ({"aud": "other"}, "another audience"),
        ({"aud": "gpufleet-api"}, "another audience"),
        ({"azp": "other"}, "(azp)"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"exp": int(time.time()) - 120}, "expired"),
        ({"groups": ["unknown"]}, "no permission here"),
    ],
)
async def test_an_id_token_that_does_not_fit_begins_no_session(
    site: Site, changes: dict[str, Any], reason: str
) -> None:
    url = await site.begin()
    if "nonce" in changes:
        site.provider._codes[query_of(url)["code"]]["nonce"] = changes["nonce"]
    else:
        site.provider.changed_claims = changes
    with capture_logs() as log:
        refused = await site.finish(url)
    assert refused.status_code in (401, 403)
    assert reason in refused.text
    assert "gpufleet-session" not in site.http.cookies
    [event] = [each for each in log if each["event"] == "audit"]
    assert (event["action"], event["outcome"], reason in event["reason"]) == ("sign in", "refused", True)


async def test_the_code_is_bound_to_this_server_by_pkce(site: Site) -> None:
    url = await site.begin()
    site.provider._codes[query_of(url)["code"]]["code_challenge"] = "stolen"
    refused = await site.finish(url)
    assert (refused.status_code, "invalid_grant" in refused.text) == (401, True)


async def test_a_refusal_of_the_provider_is_shown_as_text(site: Site) -> None:
    await site.begin()
    refused = await site.http.get(
        "/auth/callback", params={"error": "<script>alert(1)</script>", "state": "x"}
    )
    assert refused.status_code == 401
    assert "<script>" not in refused.text
    assert "default-src 'none'" in refused.headers["content-security-policy"]


@pytest.mark.parametrize(
    "page", ["https://evil.example", "//evil.example", "/\\evil", "javascript:alert(1)", "#x"]
)
async def test_a_sign_in_leads_back_to_the_own_page_only(site: Site, page: str) -> None:
    assert (await site.sign_in(page)).headers["location"] == HOME


# Settings


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"issuer": "http://provider.example"}, "must begin with https"),
        ({"client_id": ""}, r"oidc\.client_id"),
        ({"redirect_url": "http://fleet.example/auth/callback"}, "must begin with https"),
        ({"redirect_url": "https://fleet.example/"}, "end with /auth/callback"),
        ({"client_secret_file": Path("/nonexistent")}, "client_secret_file"),
        ({"ca_file": Path("/nonexistent")}, "ca_file"),
    ],
)
def test_mistakes_in_the_settings_stop_the_server(changes: dict[str, Any], sentence: str) -> None:
    settings = replace(OidcSettings(issuer="https://provider.example", client_id="x"), **changes)
    with pytest.raises(SettingsError, match=sentence):
        provider_module.Provider(settings)


async def test_a_provider_without_groups_or_without_issuer_is_a_mistake() -> None:
    base = load_settings({}, {})
    cases: list[tuple[object, object, str]] = [
        (OidcSettings(issuer="https://p.example", client_id="x"), AuthSettings(), "would admit no user"),
        (OidcSettings(client_id="x"), AuthSettings(), "give the URL of the provider"),
    ]
    for oidc, auth, sentence in cases:
        async with AsyncExitStack() as stack:
            with pytest.raises(SettingsError, match=sentence):
                await open_identity_provider(Components(base.replace(oidc, auth), stack))


def test_the_key_of_sessions_comes_from_a_file_or_is_new(tmp_path: Path) -> None:
    assert session_key(OidcSettings()) != session_key(OidcSettings())
    (tmp_path / "key").write_text("k" * 40 + "\n")
    assert session_key(OidcSettings(session_key_file=tmp_path / "key")) == b"k" * 40
    (tmp_path / "key").write_text("short")
    with pytest.raises(SettingsError, match="at least 32"):
        session_key(OidcSettings(session_key_file=tmp_path / "key"))
