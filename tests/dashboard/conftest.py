"""Fixtures: a server over the sample fleet in its own thread, and a real browser."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from dashboard.tools.demo_process import Demo, running_demo
from dashboard.tools.sample_cluster import live_routes, open_sample_cluster
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.conftest import _execute, _template

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import StoreSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.tokens import TokenFile, new_token
from gpufleet.server.dashboard import PUBLIC, PUBLIC_FOLDERS, STATIC, dashboard_routes
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.store import open_store
from gpufleet.store.postgres.data_directory import DataDirectory as Postgres

T = TypeVar("T")
NODES = 24
OTHER_NODES = 3
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


class LimitedGate(BearerGate):
    """Admits callers with a valid token and limits them to namespaces."""

    namespaces: frozenset[str]

    async def authenticate(
        self, method: str, path: str, address: str, authorization: bytes | None
    ) -> Caller | None:
        caller = await super().authenticate(method, path, address, authorization)
        return replace(caller, namespaces=self.namespaces) if caller is not None else None


class _Thread(threading.Thread):
    """Runs one server until `end`."""

    def __init__(
        self, url: str, tokens: Path | None = None, namespaces: frozenset[str] | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._tokens = tokens
        self._namespaces = namespaces
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
        settings = StoreSettings(url=self._url, pool_size=4, retry_timeout=5.0, start_timeout=10.0)
        async with open_store(settings) as store:
            cluster = await open_sample_cluster(store, NODES, time.time(), history=True)
            other = await open_sample_cluster(store, OTHER_NODES, time.time(), history=False, name="lab")
            lifecycle = Lifecycle()
            gate = None
            if self._tokens:
                kind = BearerGate if self._namespaces is None else LimitedGate
                gate = kind(TokenFile(self._tokens), public=PUBLIC, public_folders=PUBLIC_FOLDERS)
                if isinstance(gate, LimitedGate):
                    gate.namespaces = self._namespaces or frozenset()
            routes = live_routes(Clusters([cluster, other]), lifecycle, store)
            api = Api(routes=[*routes, *dashboard_routes()], lifecycle=lifecycle, simulated=True, gate=gate)
            with bind("127.0.0.1", 0) as listening:
                server = Server(create_app(api), lifecycle, shutdown_grace=1.0)
                site = Site(f"{address_of(listening)}/", cluster, asyncio.get_running_loop(), server)
                server.on_started = lambda: self._set_ready(site)
                await server.serve(sockets=[listening])

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
    postgres: Postgres, name: str, tokens: Path | None = None, namespaces: frozenset[str] | None = None
) -> Iterator[Site]:
    template = _in_thread(lambda: _template(postgres))
    _in_thread(lambda: asyncio.run(_execute(postgres, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')))
    thread = _Thread(postgres.dsn_of(name), tokens, namespaces)
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
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def demo(browser: Browser) -> Iterator[Demo]:
    """Run a real `gpufleet demo`."""
    with running_demo(nodes=16, days=2) as running:
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


@pytest.fixture
def limited_site(browser: Browser, postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    """Run a server that shows two namespaces to the owner of its token."""
    token, line = new_token("alice", "viewer")
    (tmp_path / "tokens").write_text(line + "\n")
    namespaces = frozenset({"research", "vision"})
    for site in _site(postgres, "dashboard_limited", tmp_path / "tokens", namespaces):
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
