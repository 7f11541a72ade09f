"""Open pages in a real browser, such as the dashboard, logged in with a service account token."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from e2e.system.system import System
from gpufleet.server.dashboard import STATIC

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing() -> str:
    """Return what this machine lacks to open the dashboard, or an empty string."""
    if _CHROMIUM is None:
        return "Chromium (apt-get install chromium)"
    if not (STATIC / "index.html").is_file():
        return "the built page (make dashboard, Node.js 20 or newer)"
    return ""


@contextmanager
def new_page() -> Iterator[Page]:
    """Open a new browser, or skip the test without one.

    Playwright runs an event loop in this thread, so the block cannot run another one.
    """
    if needed := missing():
        pytest.skip(f"needs {needed}")
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(30_000)
        yield page
        browser.close()


@contextmanager
def dashboard(system: System) -> Iterator[Page]:
    """Open the overview in a new browser, or skip the test without one."""
    with new_page() as page:
        page.goto(f"{system.server.url}/")
        page.get_by_label("Token").fill(system.login()["Authorization"].removeprefix("Bearer "))
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("GPUs on")).to_be_visible()
        yield page
