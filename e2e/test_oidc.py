"""Test login with a real OpenID Connect provider, dex: sign-in in a browser, bearer tokens, new keys."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from playwright.sync_api import Page, expect
from tests.waiting import block_until

from e2e import dex
from e2e.cluster import Unavailable
from e2e.cluster.cluster import free_ports
from e2e.conftest import progress_printer
from e2e.system.browser import new_page

SETTINGS = """
[server]
port = {port}
[oidc]
issuer = "{issuer}"
client_id = "{client}"
client_secret_file = "secret"
redirect_url = "{address}/auth/callback"
scopes = ["openid", "email", "groups"]
[auth]
viewer_groups = ["staff"]
"""


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Path:
    """Return dex. Skip the test without it."""
    try:
        return dex.find(progress_printer(pytestconfig))
    except Unavailable as reason:
        pytest.skip(f"no dex: {reason}")


class Site:
    """A running server and its provider, which can be replaced by one with other keys."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._ports = free_ports(2)
        self.address = f"http://127.0.0.1:{self._ports[0]}"
        self.provider = ExitStack()
        self.issuer = ""

    def start_provider(self) -> None:
        """Run dex; each run has keys of its own."""
        running = dex.serving(self._program, self._ports[1], f"{self.address}/auth/callback")
        self.issuer = self.provider.enter_context(running)

    @contextmanager
    def serving(self, data: Path) -> Iterator[None]:
        """Run `gpufleet serve`."""
        (data / "secret").write_text(dex.SECRET)
        fields = {"issuer": self.issuer, "client": dex.CLIENT, "address": self.address}
        (data / "gpufleet.toml").write_text(SETTINGS.format(port=self._ports[0], **fields))
        command = [sys.executable, "-m", "gpufleet", "serve", "--local", "--log-level", "error"]
        with subprocess.Popen(
            [*command, "--data", str(data / "data")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=data,
            env={**os.environ, "DATABASE_URL": ""},
        ) as process:
            try:
                assert process.stdout is not None
                assert self.address in process.stdout.readline()
                yield
            finally:
                process.terminate()
                process.wait(30)

    def status(self, token: str) -> int:
        """Return the status of a read with a bearer token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{self.address}/api/clusters", headers=headers).status_code


@pytest.fixture
def site(program: Path, data: Path) -> Iterator[Site]:
    """Run dex and a server that finds it by its issuer."""
    site = Site(program)
    with site.provider:
        site.start_provider()
        with site.serving(data):
            yield site


def test_a_person_signs_in_with_a_password_and_signs_out(site: Site) -> None:
    with new_page() as page:
        opened = _opened_urls(page)
        page.goto(site.address)
        page.get_by_role("link", name="Sign in").click()
        page.get_by_placeholder("email address").fill(dex.USER)
        page.get_by_placeholder("password").fill("wrong")
        page.get_by_role("button", name="Login").click()
        expect(page.get_by_text("Invalid")).to_be_visible()
        page.get_by_placeholder("password").fill(dex.PASSWORD)
        page.get_by_role("button", name="Login").click()
        expect(page.locator(".account")).to_have_text(dex.USER)
        assert _me(page) == {
            "user": dex.USER,
            "role": "viewer",
            "namespaces": None,
            "login": "session",
            "signIn": "oidc",
        }
        begun = next(parse_qs(urlsplit(url).query) for url in opened if "/dex/auth?" in url)
        assert begun["code_challenge_method"] == ["S256"]
        assert begun.keys() >= {"state", "nonce", "code_challenge"}
        [callback] = [url for url in opened if "/auth/callback?" in url]
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("link", name="Sign in")).to_be_visible()
        answer = page.goto(callback)
        assert answer is not None
        assert answer.status == 401, "the code was used"
        page.goto(site.address)
        assert _me(page)["user"] is None


def test_tokens_of_the_provider_are_admitted_and_others_refused(site: Site) -> None:
    token = dex.id_token(site.issuer)
    assert jwt.decode(token, options={"verify_signature": False})["groups"] == ["staff", "others"]
    assert site.status(token) == 200
    head, _, signature = token.rpartition(".")
    assert site.status(f"{head}.{signature[::-1]}") == 401
    assert site.status(dex.id_token(site.issuer, "other", "secret")) == 401


def test_new_keys_of_the_provider_replace_the_old_ones(site: Site) -> None:
    old = dex.id_token(site.issuer)
    assert site.status(old) == 200
    site.provider.close()
    assert site.status(old) == 200, "known keys work without the provider"
    site.start_provider()
    new = dex.id_token(site.issuer)
    block_until(lambda: site.status(new) == 200)
    assert site.status(old) == 401


def _me(page: Page) -> Any:
    return page.evaluate("fetch('/auth/me').then(answer => answer.json())")["data"]


def _opened_urls(page: Page) -> list[str]:
    """Return a list to which every URL that the page opens is added."""
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url) if request.is_navigation_request() else None)
    return urls
