"""A server over the trial fleet in a thread of its own, and a real browser that looks at it."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.conftest import _execute, _template
from tests.dashboard.demo import Demo, running_demo
from tests.dashboard.trial_cluster import live_routes, open_trial

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import StoreSettings
from gpufleet.server.app import Api, create_app
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
    """The server as a test sees it: its address, and a way to change the fleet within its loop."""

    address: str
    cluster: Cluster
    loop: asyncio.AbstractEventLoop
    server: Server
    token: str = ""

    def change(self, act: Callable[[], None]) -> None:
        """Do something to the fleet where the server lives, and wait until it is done."""

        async def run() -> None:
            act()
            self.cluster.fleet.refresh()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)


class _Thread(threading.Thread):
    """Runs one server until told."""

    def __init__(self, url: str, tokens: Path | None = None) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._tokens = tokens
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
            cluster = await open_trial(store, NODES, time.time(), history=True)
            other = await open_trial(store, OTHER_NODES, time.time(), history=False, name="lab")
            lifecycle = Lifecycle()
            gate = None
            if self._tokens:
                gate = BearerGate(TokenFile(self._tokens), public=PUBLIC, public_folders=PUBLIC_FOLDERS)
            routes = live_routes(Clusters([cluster, other]), lifecycle)
            api = Api(routes=[*routes, *dashboard_routes()], lifecycle=lifecycle, simulated=True, gate=gate)
            with bind("127.0.0.1", 0) as listening:
                server = Server(create_app(api), lifecycle, shutdown_grace=1.0)
                site = Site(f"{address_of(listening)}/", cluster, asyncio.get_running_loop(), server)
                server.on_started = lambda: self._tell(site)
                await server.serve(sockets=[listening])

    def _tell(self, site: Site) -> None:
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


def _site(postgres: Postgres, name: str, tokens: Path | None = None) -> Iterator[Site]:
    template = _apart(lambda: _template(postgres))
    _apart(lambda: asyncio.run(_execute(postgres, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')))
    thread = _Thread(postgres.dsn_of(name), tokens)
    try:
        yield thread.begin()
    finally:
        thread.end()
        _apart(lambda: asyncio.run(_execute(postgres, f'DROP DATABASE "{name}" WITH (FORCE)')))


def _apart(act: Callable[[], T]) -> T:
    """Do something in a thread of its own: Playwright has an event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


@pytest.fixture(scope="module")
def browser(postgres: Postgres) -> Iterator[Browser]:
    """Chromium, for one module: while it is there, nothing else may run an event loop in this thread."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    if not (STATIC / "index.html").is_file():
        pytest.skip("needs the built page: make dashboard (Node.js 20 or newer)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def demo(browser: Browser) -> Iterator[Demo]:
    """A real `gpufleet demo`."""
    with running_demo(nodes=16, days=2) as started:
        yield started


@pytest.fixture(scope="module")
def site(browser: Browser, postgres: Postgres) -> Iterator[Site]:
    """One server for all tests that don't need login."""
    yield from _site(postgres, "dashboard")


@pytest.fixture
def locked_site(browser: Browser, postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    """A server that wants a token."""
    token, line = new_token("alice", "viewer")
    (tmp_path / "tokens").write_text(line + "\n")
    for site in _site(postgres, "dashboard_locked", tmp_path / "tokens"):
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
    """A page that must not raise, alert, or break its content policy."""
    faults: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: faults.append(str(error)))

    def dialog(shown: Any) -> None:
        faults.append(f"a dialog opened: {shown.message}")
        shown.dismiss()

    opened.on("dialog", dialog)
    opened.on(
        "console",
        lambda told: faults.append(told.text) if "Content Security Policy" in told.text else None,
    )
    yield opened
    assert faults == []
