"""Compare the pages with stored pictures, in both themes, on a desktop and on a phone."""

import pytest
from dashboard.tools.sample_fleet import node_name
from playwright.sync_api import Browser, Page, expect
from tests.dashboard.conftest import Site
from tests.dashboard.sample_answers import answer_with_samples
from tests.dashboard.thumbnails import MOST_DIFFERENT, difference

pytestmark = pytest.mark.browser
SIZES = {"desktop": (1440, 1000), "phone": (390, 844)}
PAGES = {
    "overview": "?by=health",  # readings change with time
    "map": "?by=team&group=topology.kubernetes.io/zone",
    "nodes": "nodes",
    "node": f"nodes/{node_name(5)}",
    "workloads": "workloads?sort=name",
    "workload": "workloads/wl-00000",
    "compare": "compare?runs=wl-00000,wl-00001",
    "usage": "usage",
    "scheduling": "scheduling?count=8",
    "queue": "queue",
    "health": "health",
}
SAMPLED = {"usage", "scheduling", "queue", "health"}
"""Pages whose answers are samples of one moment, because their tables and charts depend on the time."""


def look(browser: Browser, address: str, name: str, theme: str, size: str) -> float:
    """Open a page and return how much it differs from its picture."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        is_mobile=size == "phone",
        timezone_id="UTC",
    )
    page = context.new_page()
    if name in SAMPLED:
        answer_with_samples(page)
    page.goto(address)
    _settle(page)
    share = difference(context.new_page(), page.screenshot(), f"{name}-{theme}-{size}")
    context.close()
    return share


def _settle(page: Page) -> None:
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    page.evaluate("document.fonts.ready.then(() => new Promise((done) => requestAnimationFrame(done)))")
    page.wait_for_timeout(300)  # charts and map draw after their data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_like_its_picture(
    site: Site, browser: Browser, name: str, theme: str, size: str
) -> None:
    assert look(browser, f"{site.address}#/{PAGES[name]}", name, theme, size) <= MOST_DIFFERENT


def test_another_page_does_not_match(site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDATE_PICTURES", raising=False)
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{site.address}#/workloads?sort=name")
    _settle(page)
    assert difference(context.new_page(), page.screenshot(), "node-dark-desktop") > MOST_DIFFERENT
    context.close()
