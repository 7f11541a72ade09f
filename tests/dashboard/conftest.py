"""Fixtures: a server over the sample fleet in its own thread, and a real browser."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from dashboard.tools.demo_process import Demo, running_demo
from dashboard.tools.sample_cluster import live_routes, open_sample_cluster
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.conftest import _execute, _template
from tests.oidc_provider import ALICE, CLIENT, Provider
from tests.waiting import block_until

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import OidcSettings, StoreSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.oidc.provider import Provider as OidcClient
from gpufleet.server.auth.oidc.sessions import Sessions, SignedCookies
from gpufleet.server.auth.oidc.sign_in import SignIn
from gpufleet.server.auth.oidc.tokens import IdentityTokens
from gpufleet.server.auth.permissions import GroupPermissions
from gpufleet.server.auth.tokens import TokenFile, new_token
from gpufleet.server.dashboard import PUBLIC, PUBLIC_FOLDERS, STATIC, dashboard_routes
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.store import open_store
from gpufleet.store.postgres.data_directory import DataDirectory as Postgres

T = TypeVar("T")
NODES = 24
OTHER_NODES = 3
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
SCREENS = [(theme, size) for theme in ("dark", "light") for size in SIZES]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Site:
    """A running server: its address, and a way to change its fleet from the test's thread."""

    address: str
    cluster: Cluster
    loop: asyncio.AbstractEventLoop
    server: Server
    token: str = ""

    def change(self, action: Callable[[], None]) -> None:
        """Run `action` on the server's event loop, refresh the fleet and wait until both are done."""

        async def run() -> None:
            action()
            self.cluster.fleet.refresh()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)


class _Thread(threading.Thread):
    """Runs one server until `end`."""

    def __init__(self, url: str, tokens: Path | None = None, provider: Provider | None = None) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._tokens = tokens
        self._provider = provider
        self._ready = threading.Event()
        self._site: Site | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        settings = StoreSettings(url=self._url, pool_size=4, start_timeout=10.0)
        async with open_store(settings) as store:
            cluster = await open_sample_cluster(store, NODES, time.time(), history=True)
            other = await open_sample_cluster(store, OTHER_NODES, time.time(), history=False, name="lab")
            lifecycle = Lifecycle()
            routes = live_routes(Clusters([cluster, other]), lifecycle, store)
            async with AsyncExitStack() as stack:
                listening = stack.enter_context(bind("127.0.0.1", 0))
                gate, sign_in = await self._login(address_of(listening), stack)
                api = Api(
                    routes=[*routes, *dashboard_routes()],
                    lifecycle=lifecycle,
                    simulated=True,
                    gate=gate,
                    sign_in=sign_in,
                )
                server = Server(create_app(api), lifecycle, shutdown_grace=1.0)
                site = Site(f"{address_of(listening)}/", cluster, asyncio.get_running_loop(), server)
                server.on_started = lambda: self._set_ready(site)
                await server.serve(sockets=[listening])

    async def _login(self, address: str, stack: AsyncExitStack) -> tuple[BearerGate | None, SignIn | None]:
        if not self._tokens and not self._provider:
            return None, None
        identities = sign_in = None
        if self._provider:
            await stack.enter_async_context(self._provider.serving())
            groups = GroupPermissions(viewers=frozenset({"staff"}), namespaces={"nlp": ("nlp", "nlp-dev")})
            settings = OidcSettings(
                issuer=self._provider.issuer, client_id=CLIENT, redirect_url=f"{address}/auth/callback"
            )
            client = await stack.enter_async_context(OidcClient(settings))
            identities = IdentityTokens(client, settings, groups)
            cookies = SignedCookies(b"k" * 32, secure=False)
            sign_in = SignIn(client, identities, Sessions(cookies, settings, groups), cookies, settings)
        gate = BearerGate(
            TokenFile(self._tokens) if self._tokens else None,
            identities=identities,
            sessions=sign_in.sessions if sign_in else None,
            public=PUBLIC,
            public_folders=PUBLIC_FOLDERS,
        )
        return gate, sign_in

    def _set_ready(self, site: Site) -> None:
        self._site = site
        self._ready.set()

    def begin(self) -> Site:
        self.start()
        assert self._ready.wait(60), "the server did not start"
        if self._error is not None:
            raise self._error
        assert self._site is not None
        return self._site

    def end(self) -> None:
        if self._site is not None:
            self._site.server.should_exit = True
        self.join(20)


def _site(
    postgres: Postgres, name: str, tokens: Path | None = None, provider: Provider | None = None
) -> Iterator[Site]:
    template = _in_thread(lambda: _template(postgres))
    _in_thread(lambda: asyncio.run(_execute(postgres, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')))
    thread = _Thread(postgres.dsn_of(name), tokens, provider)
    try:
        yield thread.begin()
    finally:
        thread.end()
        _in_thread(lambda: asyncio.run(_execute(postgres, f'DROP DATABASE "{name}" WITH (FORCE)')))


def _in_thread(action: Callable[[], T]) -> T:
    """Run `action` in another thread: Playwright runs an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


@pytest.fixture(scope="module")
def browser(postgres: Postgres) -> Iterator[Browser]:
    """Start Chromium for one module. Until it is closed, this thread cannot run another event loop."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    if not (STATIC / "index.html").is_file():
        pytest.skip("needs the built page: make dashboard (Node.js 20 or newer)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--lang=en-US"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def demo(browser: Browser) -> Iterator[Demo]:
    """Run a real `gpufleet demo` whose past hours are all accounted; it adds them after its start."""
    now = datetime.now(UTC)
    period = f"{now - timedelta(days=3):%Y-%m-%d}..{now + timedelta(days=1):%Y-%m-%d}"
    with running_demo(nodes=16, days=2) as running:
        block_until(
            lambda: running.get(f"api/v1/gpu-aggregation/report?period={period}")["hours_accounted"] > 46
        )
        yield running


@pytest.fixture(scope="module")
def site(browser: Browser, postgres: Postgres) -> Iterator[Site]:
    """Run one server without login for all tests of a module."""
    yield from _site(postgres, "dashboard")


@pytest.fixture
def locked_site(browser: Browser, postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    """Run a server that requires a token."""
    token, line = new_token("alice", "viewer")
    (tmp_path / "tokens").write_text(line + "\n")
    for site in _site(postgres, "dashboard_locked", tmp_path / "tokens"):
        site.token = token
        yield site


@pytest.fixture(scope="module")
def _provider() -> Provider:
    return Provider(ask=True, public_client=True)


@pytest.fixture
def provider(_provider: Provider) -> Provider:
    """Return an identity provider that asks before it signs Alice in, and needs no secret of its client."""
    _provider.user = dict(ALICE)
    return _provider


@pytest.fixture(scope="module")
def oidc_site(browser: Browser, postgres: Postgres, _provider: Provider) -> Iterator[Site]:
    """Run a server with sign-in at an identity provider, which runs in the same thread."""
    yield from _site(postgres, "dashboard_oidc", provider=_provider)


@pytest.fixture
def limited_site(browser: Browser, postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    """Run a server that shows two namespaces to the owner of its token."""
    token, line = new_token("alice", "viewer", ["research", "vision"])
    (tmp_path / "tokens").write_text(line + "\n")
    for site in _site(postgres, "dashboard_limited", tmp_path / "tokens"):
        site.token = token
        yield site


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    opened.set_default_timeout(15_000)
    expect.set_options(timeout=15_000)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a page and fail the test if it throws, opens a dialog or violates its content policy."""
    problems: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: problems.append(str(error)))

    def on_dialog(dialog: Any) -> None:
        problems.append(f"a dialog opened: {dialog.message}")
        dialog.dismiss()

    opened.on("dialog", on_dialog)
    opened.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
    )
    yield opened
    assert problems == []


def new_page(browser: Browser, theme: str, size: str, problems: list[str]) -> Page:
    """Open a page that notes errors of scripts and of the console."""
    width, height = SIZES[size]
    phone = size == "phone"
    context: BrowserContext = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        is_mobile=phone,
        has_touch=phone,
        reduced_motion="reduce" if phone else "no-preference",
    )
    context.set_default_timeout(15_000)
    expect.set_options(timeout=15_000)
    opened = context.new_page()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    return opened


@pytest.fixture(params=SCREENS, ids="-".join)
def screen(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open a page in each theme and size, and fail the test if the console has an error."""
    problems: list[str] = []
    theme, size = request.param
    opened = new_page(browser, theme, size, problems)
    yield opened
    opened.context.close()
    assert problems == []


@pytest.fixture
def desktop(browser: Browser) -> Iterator[Page]:
    """Open a page on a desktop, and fail the test if the console has an error."""
    problems: list[str] = []
    opened = new_page(browser, "dark", "desktop", problems)
    yield opened
    opened.context.close()
    assert problems == []
